//! How far a simulated scheduler or reader is.

use std::time::{Duration, Instant};

use serde::{Serialize, Serializer};

use crate::bounds::PROGRESS_EVERY;
use crate::record::Record;

/// How far one end is. Told from the thread that runs it, at most every
/// [`PROGRESS_EVERY`](crate::bounds::PROGRESS_EVERY), and once at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// Since it began: the scheduler when it was connected, the reader when its first frame came.
    #[serde(rename = "elapsed_ns", serialize_with = "nanoseconds")]
    pub elapsed: Duration,
    /// Frames sent or received.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Rows in them.
    pub rows: u64,
    /// New tokens in them.
    pub tokens: u64,
    /// Requests that have begun and not ended.
    pub open: u64,
    /// Requests that have ended.
    pub ended: u64,
}

/// Tells progress, not too often.
pub(crate) struct Teller<'a> {
    tell: &'a mut dyn FnMut(&Progress),
    last: Option<Instant>,
}

impl<'a> Teller<'a> {
    pub(crate) fn new(tell: &'a mut dyn FnMut(&Progress)) -> Teller<'a> {
        Teller { tell, last: None }
    }

    pub(crate) fn tell(&mut self, now: Instant, progress: impl FnOnce() -> Progress) {
        if self.last.is_none_or(|last| now.saturating_duration_since(last) >= PROGRESS_EVERY) {
            self.last = Some(now);
            (self.tell)(&progress());
        }
    }

    /// At the end, whenever the last time was.
    pub(crate) fn end(&mut self, progress: Progress) {
        (self.tell)(&progress);
    }
}

impl Progress {
    pub(crate) fn of(record: &Record, open: u64, elapsed: Duration) -> Progress {
        Progress {
            elapsed,
            frames: record.frames,
            bytes: record.bytes,
            rows: record.rows,
            tokens: record.tokens,
            open,
            ended: record.requests,
        }
    }
}

/// A duration as a script reads it.
pub(crate) fn nanoseconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}
