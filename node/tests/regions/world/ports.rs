//! Ports for servers that must come back at the same address after they were killed.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the range that the system takes the ports of outgoing connections from: one of those could
/// else sit on the port of a server that is down for a while.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// A port that nobody listens on, for both TCP and UDP.
pub(crate) fn free() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test processes that run at the same time start at different places.
    let start = u16::try_from(std::process::id() * 97 % u32::from(COUNT)).expect("small");
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + (start + step % COUNT) % COUNT;
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, port));
        if tcp.is_ok() && UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no free port");
}
