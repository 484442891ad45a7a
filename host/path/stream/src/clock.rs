//! The clock of a stream: the machine's, or one that a test owns.

use afterbay_batch::Timestamp;
use std::time::Duration;

/// Returns the time, and waits.
pub trait Clock: Send + Sync {
    /// The time now.
    fn now(&self) -> Timestamp;
    /// Returns after this time has passed.
    fn sleep(&self, time: Duration);
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}
