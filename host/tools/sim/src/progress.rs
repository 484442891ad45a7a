//! The progress of a simulated scheduler or reader.

use std::time::{Duration, Instant};

use serde::{Serialize, Serializer};

use crate::bounds::PROGRESS_EVERY;
use crate::record::Record;

/// The progress of one end. It is reported on the thread of that end, at most once in
/// [`PROGRESS_EVERY`](crate::bounds::PROGRESS_EVERY), and at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// The time since the start: when the scheduler connected, or when the reader received its first frame.
    #[serde(rename = "elapsed_ns", serialize_with = "nanoseconds")]
    pub elapsed: Duration,
    /// The number of frames sent or received.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The number of their rows.
    pub rows: u64,
    /// The number of their new tokens.
    pub tokens: u64,
    /// The number of requests that have begun and not ended.
    pub open: u64,
    /// The number of requests that have ended.
    pub ended: u64,
}

/// Reports progress at most once in [`PROGRESS_EVERY`].
pub(crate) struct ProgressReporter<'a> {
    report: &'a mut dyn FnMut(&Progress),
    last: Option<Instant>,
}

impl<'a> ProgressReporter<'a> {
    pub(crate) fn new(report: &'a mut dyn FnMut(&Progress)) -> ProgressReporter<'a> {
        ProgressReporter { report, last: None }
    }

    pub(crate) fn report(&mut self, now: Instant, progress: impl FnOnce() -> Progress) {
        if self.last.is_none_or(|last| now.saturating_duration_since(last) >= PROGRESS_EVERY) {
            self.last = Some(now);
            (self.report)(&progress());
        }
    }

    /// Reports the end, independent of the time of the last report.
    pub(crate) fn end(&mut self, progress: Progress) {
        (self.report)(&progress);
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

/// Writes a duration in nanoseconds.
pub(crate) fn nanoseconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}
