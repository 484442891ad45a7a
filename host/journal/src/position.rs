//! Numbers of frames and requests, and where a record stands.

use std::fmt;

/// A frame's number in its stream: 1 for the first, one more for each, never used twice. 0 stands for "none yet".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameNo(pub u64);

/// A request's number in its stream: never used twice, also across restarts (a rid may be). Only after a power cut may
/// one that the disk never saw come again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestNo(pub u64);

/// A segment's name: the number of its first frame, and how many segments of the stream came before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId {
    /// The first frame it may hold.
    pub first: FrameNo,
    /// Its place among the segments of the stream. Two segments may begin at the same frame (after a failed sync).
    pub sequence: u32,
}

/// Where a frame stands. Good for as long as retention keeps the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The frame's number.
    pub frame: FrameNo,
    /// The segment it is in.
    pub segment: SegmentId,
    /// The byte its record begins at.
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
    /// Reads a file name; `None` for a file that is not a segment.
    pub fn parse(name: &str) -> Option<SegmentId> {
        let (first, sequence) = name.strip_suffix(".seg")?.split_once('-')?;
        if first.len() != 20 || sequence.len() != 10 {
            return None;
        }
        Some(SegmentId { first: FrameNo(first.parse().ok()?), sequence: sequence.parse().ok()? })
    }
}
