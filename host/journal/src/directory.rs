//! The locked root of a journal: one sub-directory per stream.

use std::path::Path;
use std::time::Duration;

use crate::error::OpenError;
use crate::recovery::Recovered;
use crate::writer::Writer;

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
    /// The size of the whole directory past which the oldest segments are removed.
    pub retain_bytes: Option<u64>,
    /// The age (of a segment's last record) past which it is removed.
    pub retain_age: Option<Duration>,
    /// A request without a row for this long counts as abandoned: it no longer keeps segments from being removed.
    pub abandon_after: Duration,
    /// The largest frame.
    pub max_frame_bytes: usize,
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

/// A journal directory, locked for this process for as long as it or a writer of it lives.
pub struct Directory {}

impl Directory {
    /// Makes it if need be and locks it.
    pub fn open(_dir: &Path, _options: Options) -> Result<Directory, OpenError> {
        todo!()
    }

    /// Opens a stream for writing: recovers what the last run left and begins after it.
    pub fn stream(&self, _name: &str) -> Result<(Writer, Recovered), OpenError> {
        todo!()
    }
}
