//! The stores, asked as the decision path asks them.

#[cfg(feature = "redis")]
mod equal;
mod memory;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod server;
mod support;
