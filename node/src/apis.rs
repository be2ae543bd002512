//! The gRPC interfaces, generated from `node/proto`.
#![expect(
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    unused_qualifications,
    reason = "generated"
)]

include!(concat!(env!("OUT_DIR"), "/apis.rs"));
