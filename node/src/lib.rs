//! The Tidegate process: front ends, configuration, admin interface and command line.

pub mod admin;
pub mod apis;
pub mod cli;
pub mod config;
pub mod front;
pub mod output;
pub mod queue;
pub mod serve;
pub mod stores;
pub mod tasks;
pub mod telemetry;
