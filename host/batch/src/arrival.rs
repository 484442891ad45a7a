//! A frame that was received, and when.

use bytes::Bytes;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// When a frame came.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub instant: Instant,
    pub unix_ns: u64,
}

impl Arrival {
    pub fn now() -> Arrival {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Arrival { instant: Instant::now(), unix_ns: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX) }
    }

    /// Of a frame that was read back.
    pub fn at(unix_ns: u64) -> Arrival {
        let now = Arrival::now();
        let ago = Duration::from_nanos(now.unix_ns.saturating_sub(unix_ns));
        Arrival { instant: now.instant.checked_sub(ago).unwrap_or(now.instant), unix_ns }
    }
}

/// A frame that was read whole, and is nowhere yet but in memory.
#[derive(Clone)]
pub struct Received {
    pub bytes: Bytes,
    pub at: Arrival,
}
