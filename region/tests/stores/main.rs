//! The stores, asked as the decision path asks them.

#[cfg(feature = "redis")]
mod equal;
#[cfg(feature = "redis")]
mod links;
mod memory;
mod oracle;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod replicas;
#[cfg(feature = "redis")]
mod server;
mod support;
