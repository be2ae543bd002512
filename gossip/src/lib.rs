//! How regions and nodes talk: a pure core (membership, replica, exchange) and QUIC.

pub mod codec;
pub mod exchange;
pub mod frame;
pub mod identity;
pub mod membership;
pub mod replica;
