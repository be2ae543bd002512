//! Bounded, named and metered queues that say what happens when they are full.
//!
//! Sending never waits and takes no lock, so that the decision path may send.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crossbeam_queue::ArrayQueue;
use tokio::sync::Notify;

/// What a full queue does with one more item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// The oldest item makes room: for news that later news replaces.
    DropOldest,
    /// The new item is dropped: for hints that will be given again.
    DropNewest,
    /// The sender gets the item back and decides.
    Reject,
}

/// The item that did not fit, or that nobody will receive any more. Nothing was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue is full or its receiver is gone")]
pub struct Refused<T>(pub T);

/// The sending end. Cloned freely.
#[derive(Debug)]
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

/// The receiving end.
#[derive(Debug)]
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
}

/// What is measured of a queue.
#[derive(Debug)]
pub struct Meter {
    name: &'static str,
    capacity: usize,
    depth: AtomicUsize,
    dropped: AtomicU64,
}

#[derive(Debug)]
struct Shared<T> {
    items: ArrayQueue<T>,
    when_full: WhenFull,
    arrived: Notify,
    senders: AtomicUsize,
    abandoned: AtomicBool,
    meter: Arc<Meter>,
}

/// Makes a queue of at most `capacity` items.
#[must_use]
pub fn bounded<T>(
    capacity: NonZeroUsize,
    name: &'static str,
    when_full: WhenFull,
) -> (Sender<T>, Receiver<T>) {
    let meter = Arc::new(Meter {
        name,
        capacity: capacity.get(),
        depth: AtomicUsize::new(0),
        dropped: AtomicU64::new(0),
    });
    let shared = Arc::new(Shared {
        items: ArrayQueue::new(capacity.get()),
        when_full,
        arrived: Notify::new(),
        senders: AtomicUsize::new(1),
        abandoned: AtomicBool::new(false),
        meter,
    });
    let sender = Sender {
        shared: Arc::clone(&shared),
    };
    (sender, Receiver { shared })
}

impl<T> Sender<T> {
    /// Queues an item, or does what the queue does when it is full.
    ///
    /// # Errors
    /// If the queue rejects when full and is full, or if the receiver is gone.
    pub fn send(&self, item: T) -> Result<(), Refused<T>> {
        if self.shared.abandoned.load(Ordering::Acquire) {
            return Err(Refused(item));
        }
        let displaced = match self.shared.when_full {
            WhenFull::DropOldest => self.shared.items.force_push(item),
            WhenFull::DropNewest => self.shared.items.push(item).err(),
            WhenFull::Reject => {
                if let Err(item) = self.shared.items.push(item) {
                    self.shared.meter.count_dropped();
                    return Err(Refused(item));
                }
                None
            }
        };
        if displaced.is_some() {
            self.shared.meter.count_dropped();
        }
        self.shared.measure();
        self.shared.arrived.notify_one();
        Ok(())
    }

    /// What is measured of this queue.
    #[must_use]
    pub fn meter(&self) -> Arc<Meter> {
        Arc::clone(&self.shared.meter)
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.shared.senders.fetch_add(1, Ordering::Relaxed);
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.shared.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.arrived.notify_one();
        }
    }
}

impl<T> Receiver<T> {
    /// Waits for the next item; `None` when the queue is empty and every sender is gone.
    ///
    /// Cancel-safe: an item is taken only by a call that returns it.
    pub async fn recv(&mut self) -> Option<T> {
        loop {
            if let Some(item) = self.try_recv() {
                return Some(item);
            }
            if self.shared.senders.load(Ordering::Acquire) == 0 {
                return self.try_recv();
            }
            // The permit of a notification that came since the look is kept: nothing is missed.
            self.shared.arrived.notified().await;
        }
    }

    /// The next item, if there is one now.
    pub fn try_recv(&mut self) -> Option<T> {
        let item = self.shared.items.pop();
        self.shared.measure();
        item
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.abandoned.store(true, Ordering::Release);
        while self.try_recv().is_some() {}
    }
}

impl<T> Shared<T> {
    fn measure(&self) {
        self.meter.depth.store(self.items.len(), Ordering::Relaxed);
    }
}

impl Meter {
    /// The queue's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The most items that it holds.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// The items that it holds now.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depth.load(Ordering::Relaxed)
    }

    /// The items that did not fit, so far.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three(when_full: WhenFull) -> (Sender<u32>, Receiver<u32>) {
        let capacity = NonZeroUsize::new(3).expect("three is not zero");
        bounded(capacity, "three", when_full)
    }

    fn drain(receiver: &mut Receiver<u32>) -> Vec<u32> {
        std::iter::from_fn(|| receiver.try_recv()).collect()
    }

    #[test]
    fn queue_drops_what_it_says_when_full() {
        for (when_full, kept) in [
            (WhenFull::DropOldest, [2, 3, 4]),
            (WhenFull::DropNewest, [0, 1, 2]),
            (WhenFull::Reject, [0, 1, 2]),
        ] {
            let (sender, mut receiver) = three(when_full);
            for item in 0..5 {
                let refused = when_full == WhenFull::Reject && item > 2;
                let expected = if refused { Err(Refused(item)) } else { Ok(()) };
                assert_eq!(sender.send(item), expected, "{when_full:?}");
            }
            let meter = sender.meter();
            assert_eq!((meter.depth(), meter.dropped()), (3, 2));
            assert_eq!(drain(&mut receiver), kept);
            assert_eq!(meter.depth(), 0);
        }
    }

    #[tokio::test]
    async fn receiver_ends_when_every_sender_is_gone() {
        let (sender, mut receiver) = three(WhenFull::Reject);
        let other = sender.clone();
        sender.send(1).expect("there is room");
        drop(sender);
        let waiting = async {
            assert_eq!(receiver.recv().await, Some(1));
            receiver.recv().await
        };
        let (end, ()) = tokio::join!(waiting, async move { drop(other) });
        assert_eq!(end, None);
    }

    #[tokio::test]
    async fn sender_is_refused_when_the_receiver_is_gone() {
        let (sender, receiver) = three(WhenFull::DropOldest);
        drop(receiver);
        assert_eq!(sender.send(7), Err(Refused(7)));
    }
}
