//! The clock of a stream: the machine's, or one that a test owns.

use afterbay_batch::Timestamp;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp { instant: Instant::now(), unix_ns: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX) }
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}
