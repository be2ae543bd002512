//! The Tidegate process: front ends, configuration, admin interface and command line.

pub mod admin;
pub mod apis;
pub mod config;
pub mod front;
pub mod output;
pub mod queue;
pub mod tasks;
pub mod telemetry;
