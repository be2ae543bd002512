//! The Tidegate process: front ends, configuration, admin interface and command line.

pub mod admin;
pub mod apis;
pub mod certs;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod demo;
pub mod front;
pub mod output;
pub mod serve;
pub mod stores;
pub mod tasks;
pub mod telemetry;
pub mod waits;
