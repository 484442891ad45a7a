//! Bytes that may wait in memory for all sinks of all streams together.
//!
//! A sink whose outbox is empty may always take one frame, so that no stream stops another; all further ones wait in the
//! journal while the budget is spent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Shared by the streams of a process.
#[derive(Clone, Debug)]
pub struct Budget {
    used: Arc<AtomicU64>,
    max: u64,
}

impl Budget {
    /// So many bytes.
    pub fn new(max: u64) -> Budget {
        Budget { used: Arc::default(), max }
    }

    /// A sink's part of it; nothing at first.
    pub fn portion(&self) -> Portion {
        Portion { budget: self.clone(), bytes: 0 }
    }
}

/// What one sink uses. Gives it back when it is dropped.
#[derive(Debug)]
pub struct Portion {
    budget: Budget,
    bytes: u64,
}

impl Portion {
    /// Something is left of the budget. What streams take at the same time may pass it by a frame each.
    pub fn has_room(&self) -> bool {
        self.budget.used.load(Ordering::Relaxed) < self.budget.max
    }

    /// So many bytes wait now.
    pub fn set(&mut self, bytes: u64) {
        if bytes != self.bytes {
            // Wraps where it is less, and so takes off.
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
    fn what_one_sink_uses_the_others_have_not_until_it_gives_it_back() {
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
