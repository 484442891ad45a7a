//! Options of a journal and their bounds.

use std::time::Duration;

use crate::bounds::{FRAME_BYTES_MAX, SEGMENT_BYTES_MAX};
use crate::error::OpenError;

/// What survives a power cut. Whatever is chosen, what was appended survives the death of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncPolicy {
    /// What the kernel happened to write; nothing is promised.
    None,
    /// All but about the last interval.
    Interval(Duration),
    /// Every frame numbered up to `Writer::durable`: the stream holds a frame until then.
    Always,
}

/// How a journal is kept.
#[derive(Clone, Debug)]
pub struct Options {
    /// What survives a power cut.
    pub sync: SyncPolicy,
    /// A segment that would grow past this is ended before the next frame.
    pub segment_bytes: u64,
    /// The size of the whole directory past which the oldest segments are removed. Looked at once a second.
    pub retain_bytes: Option<u64>,
    /// The age (of a segment's last write) past which it is removed. A segment also ends when an eighth of it old.
    pub retain_age: Option<Duration>,
    /// A request without a row for this long counts as abandoned: it no longer keeps segments from being removed.
    pub abandon_after: Duration,
    /// The largest frame.
    pub max_frame_bytes: usize,
}

impl Options {
    pub(crate) fn abandon_after_ns(&self) -> u64 {
        u64::try_from(self.abandon_after.as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            sync: SyncPolicy::Interval(Duration::from_millis(50)),
            segment_bytes: 256 << 20,
            retain_bytes: None,
            retain_age: None,
            abandon_after: Duration::from_secs(3600),
            max_frame_bytes: 256 << 20,
        }
    }
}

/// Who does what is done off the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// Threads of the journal: one for retention, one per stream.
    Threads,
    /// The caller, with `Directory::tend` and `Writer::tend`: for tests that own time and disk.
    Caller,
}

pub(crate) fn check(options: &Options) -> Result<(), OpenError> {
    let within = |option, value: u64, least: u64, most: u64| match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(OpenError::Option { option, value, allowed: format!("{least} to {most}") }),
    };
    within("segment_bytes", options.segment_bytes, 4096, SEGMENT_BYTES_MAX)?;
    within("max_frame_bytes", options.max_frame_bytes as u64, 1, FRAME_BYTES_MAX as u64)
}
