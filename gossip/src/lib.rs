//! How regions and nodes talk: a pure core (membership, replica, exchange) and QUIC.
