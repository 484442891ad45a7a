//! The memory limit for the outboxes of all sinks of all streams together.
//!
//! An empty outbox takes one frame even when the budget is spent, so that no stream stops another. Further frames then wait
//! in the journal.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The memory limit that the streams of a process share.
#[derive(Clone, Debug)]
pub struct Budget {
    used: Arc<AtomicU64>,
    max: u64,
}

impl Budget {
    /// A limit of `max` bytes.
    pub fn new(max: u64) -> Budget {
        Budget { used: Arc::default(), max }
    }

    /// A part of the limit, of 0 bytes at first.
    pub fn portion(&self) -> Portion {
        Portion { budget: self.clone(), bytes: 0 }
    }
}

/// The bytes that one sink, or the live requests of a stream, use. Dropping the portion returns them to the budget.
#[derive(Debug)]
pub struct Portion {
    budget: Budget,
    bytes: u64,
}

impl Portion {
    /// Whether bytes of the budget are left. Streams that ask at the same time may each exceed the limit by one frame.
    pub fn has_room(&self) -> bool {
        self.budget.used.load(Ordering::Relaxed) < self.budget.max
    }

    /// Sets the bytes that are used now.
    pub fn set(&mut self, bytes: u64) {
        if bytes != self.bytes {
            // A smaller value wraps around, which subtracts.
            self.budget.used.fetch_add(bytes.wrapping_sub(self.bytes), Ordering::Relaxed);
            self.bytes = bytes;
        }
    }
}

impl Drop for Portion {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_one_sink_are_missing_to_the_others_until_it_returns_them() {
        let budget = Budget::new(100);
        let (mut one, mut other) = (budget.portion(), budget.portion());
        one.set(60);
        assert!(other.has_room());
        other.set(40);
        assert!(!one.has_room() && !other.has_room());
        one.set(59);
        assert!(other.has_room());
        other.set(70);
        drop(one);
        assert_eq!(budget.used.load(Ordering::Relaxed), 70);
        drop(other);
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
    }
}
