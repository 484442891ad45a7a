//! What a stream finds when it starts: the last run's tail is cut, and what was under way is told.

use crate::outcome::Credit;
use crate::position::{FrameNo, Position, Request, SegmentId};

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// Segments in the directory.
    pub segments: usize,
    /// Their bytes.
    pub bytes: u64,
    /// The last frame that is kept or was given up; 0 in a new journal.
    pub last_frame: FrameNo,
    /// Torn ends that were cut (one for each segment that was being written when a process died).
    pub cut: Vec<Cut>,
    /// Damage in the middle of a segment: left in place, skipped by readers.
    pub corrupt: Vec<Corruption>,
    /// Requests that were open, in order of number. Open in the writer: `close` them when they end.
    pub live: Vec<LiveRequest>,
    /// Frames without an outcome, in order: they were kept, and what became of them is not known.
    pub unfinished: Vec<Position>,
    /// How far each sink had taken the stream.
    pub taken: Vec<(String, FrameNo, Option<Credit>)>,
}

/// A torn end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The segment.
    pub segment: SegmentId,
    /// Where it was cut.
    pub offset: u64,
    /// How much.
    pub bytes: u64,
    /// The frame that was being written, where so much can be read.
    pub frame: Option<FrameNo>,
}

/// Bytes in the middle of a segment that are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corruption {
    /// The segment.
    pub segment: SegmentId,
    /// Where it begins.
    pub offset: u64,
    /// Bytes up to the next whole record.
    pub bytes: u64,
}

/// A request that was open when the last run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveRequest {
    /// Its handle in this writer.
    pub request: Request,
    /// Its rid.
    pub rid: String,
    /// Rows received.
    pub rows: u64,
    /// Tokens received.
    pub received: u64,
    /// Tokens that went on.
    pub forwarded: u64,
    /// Tokens received in rows that were dropped.
    pub dropped: u64,
    /// The frame of its first row.
    pub first_frame: FrameNo,
    /// When its last row came, unix nanoseconds.
    pub last_unix_ns: u64,
}
