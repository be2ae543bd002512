//! How regions and nodes talk: a pure core (membership, replica, exchange) and QUIC.

pub mod codec;
#[cfg(feature = "net")]
pub mod dues;
pub mod exchange;
pub mod frame;
pub mod identity;
pub mod members;
pub mod membership;
pub mod replica;
#[cfg(feature = "net")]
pub mod service;
#[cfg(feature = "net")]
pub mod transport;
