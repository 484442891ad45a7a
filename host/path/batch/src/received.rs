//! The time at which a frame is received, and the received frame.

use bytes::Bytes;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// One point in time, on the monotonic clock and as Unix time.
#[derive(Clone, Copy, Debug)]
pub struct Timestamp {
    /// The monotonic clock, for deadlines and durations.
    pub instant: Instant,
    /// Nanoseconds since the Unix epoch, for the journal.
    pub unix_ns: u64,
}

impl Timestamp {
    /// Converts the receive time that the journal stores with a frame.
    pub fn from_unix_ns(unix_ns: u64, now: Timestamp) -> Timestamp {
        let ago = Duration::from_nanos(now.unix_ns.saturating_sub(unix_ns));
        Timestamp { instant: now.instant.checked_sub(ago).unwrap_or(now.instant), unix_ns }
    }

    /// Milliseconds since the Unix epoch, for plugins.
    pub fn unix_ms(self) -> u64 {
        self.unix_ns / 1_000_000
    }

    /// The Unix time as the standard library's type.
    pub fn system_time(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(self.unix_ns)
    }
}

/// One ZeroMQ message as it was received. No journal has the frame yet.
#[derive(Clone)]
pub struct Received {
    /// The message.
    pub bytes: Bytes,
    /// The time at which Afterbay received the message.
    pub at: Timestamp,
}
