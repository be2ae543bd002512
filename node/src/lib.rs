//! The Tidegate process: front ends, configuration, admin interface and command line.

pub mod apis;
