//! Numbers of frames and requests, and positions of records.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Number of a frame in its stream, from 1. Consecutive and never reused. 0 stands for "none yet".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FrameNo(pub u64);

/// Number of a request in its stream. Never reused, not even across restarts, although a rid may be. After a
/// power cut, a number may repeat whose record never reached the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestNo(pub u64);

/// Name of a segment: its first frame number, and its sequence in the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SegmentId {
    /// First frame that the segment may hold.
    pub first: FrameNo,
    /// Number of segments of the stream before this one. After a failed sync, two segments may begin at the
    /// same frame.
    pub sequence: u32,
}

/// Position of a frame's record. Valid until retention removes the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Number of the frame.
    pub frame: FrameNo,
    /// Segment that holds the frame.
    pub segment: SegmentId,
    /// Offset of the record in the segment, in bytes.
    pub offset: u32,
}

impl fmt::Display for FrameNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for RequestNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:020}-{:010}.seg", self.first, self.sequence)
    }
}

impl SegmentId {
    /// Parses a file name. Returns `None` for a file that is not a segment.
    pub fn parse(name: &str) -> Option<SegmentId> {
        let (first, sequence) = name.strip_suffix(".seg")?.split_once('-')?;
        if first.len() != 20 || sequence.len() != 10 {
            return None;
        }
        Some(SegmentId { first: FrameNo(first.parse().ok()?), sequence: sequence.parse().ok()? })
    }
}
