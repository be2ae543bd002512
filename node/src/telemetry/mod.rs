//! What the node tells about itself: metrics, logs and health.

pub mod health;
pub mod log;
pub mod metrics;
pub mod timings;
