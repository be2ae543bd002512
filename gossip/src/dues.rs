//! How decisions tell the control plane that a key is under pressure: without lock, wait or memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use region::limiter::Pressure;
use region::units::{Key, Tokens};
use tokio::sync::mpsc;

use crate::frame::Due;
use crate::replica::TICK;

/// The most dues that wait for the control plane. A due that finds no place comes again with the
/// next request.
const DUES_MAX: usize = 4_096;

/// How many keys are remembered as said in this tick; two that meet in one place are said more
/// often.
const SLOTS: usize = 4_096;

/// The decisions' end. Says a key at most about once a tick, whatever its rate.
#[derive(Debug)]
pub struct Dues {
    queue: mpsc::Sender<Due>,
    said: Box<[AtomicU64]>,
    start: Instant,
    dropped: AtomicU64,
}

/// The control plane's end.
#[derive(Debug)]
pub struct DueReceiver(pub(crate) mpsc::Receiver<Due>);

impl Dues {
    /// Both ends of a queue.
    #[must_use]
    pub fn channel() -> (Arc<Self>, DueReceiver) {
        let (queue, receiver) = mpsc::channel(DUES_MAX);
        let said = (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
        let (start, dropped) = (Instant::now(), AtomicU64::new(0));
        (
            Arc::new(Self {
                queue,
                said,
                start,
                dropped,
            }),
            DueReceiver(receiver),
        )
    }

    /// Dues that found no place.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Pressure for Dues {
    fn offer(&self, key: Key, wanted: Tokens) {
        let [low, high] = [key.client.0 & u128::from(u64::MAX), key.client.0 >> 64];
        let mixed = u64::try_from(low ^ high).unwrap_or(0) ^ key.policy.0;
        let tick = self.start.elapsed().as_micros() / TICK.as_micros();
        let tick = u64::try_from(tick).unwrap_or(u64::MAX).wrapping_add(1);
        let mark = (mixed ^ wanted.0).rotate_left(17) ^ tick.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = usize::try_from(mixed % 4_096).unwrap_or(0);
        if self.said[place].swap(mark, Ordering::Relaxed) == mark {
            return;
        }
        if self.queue.try_send(Due { key, wanted }).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use region::units::{Client, PolicyId};

    use super::*;

    #[test]
    fn dues_are_said_about_once_a_tick_and_never_wait() {
        let (dues, mut receiver) = Dues::channel();
        let key = |client| Key {
            client: Client(client),
            policy: PolicyId(1),
        };
        let start = Instant::now();
        for _ in 0..10_000 {
            dues.offer(key(1), Tokens(0));
        }
        let ticks = start.elapsed().as_micros() / TICK.as_micros() + 2;
        let mut said = 0;
        while receiver.0.try_recv().is_ok() {
            said += 1;
        }
        assert!((1..=ticks).contains(&said), "{said} in {ticks} ticks");
        for client in 0..20_000 {
            dues.offer(key(client << 70), Tokens(1));
        }
        assert!(dues.dropped() > 0);
    }
}
