//! Chaos scenarios for Tidegate: the simulator that runs them, random worlds, and measurements.

pub mod measure;
pub mod sim;
pub mod soak;
