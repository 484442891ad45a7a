//! Requests and totals, as a segment begins with them (CARRY) and ends with them (SUMMARY).

use serde::{Deserialize, Serialize};

use crate::format::{RecordKind, put};
use crate::frame_set::FrameSet;
use crate::request::RequestInfo;
use crate::sink_progress::SinkProgress;

/// State of a request when a segment begins (CARRY) or ends (SUMMARY).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RequestEntry {
    pub info: RequestInfo,
    /// No rows follow. The next segment does not carry the request.
    pub closed: bool,
    /// Whether rows of the request may be in this segment.
    pub here: bool,
}

/// Totals of a segment that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SegmentTotals {
    /// Frames in the segment, and their bytes.
    pub frames: u64,
    pub frame_bytes: u64,
    /// Times of the first and last frame.
    pub first_unix_ns: u64,
    pub last_unix_ns: u64,
    /// Next numbers to be given.
    pub next_frame: u64,
    pub next_request: u64,
    /// Whether the writer ended cleanly: every number it gave is recorded.
    pub clean: bool,
    /// Frames of this and earlier segments without an outcome.
    pub unfinished: FrameSet,
    /// Frames that were forwarded without being stored, as the segment records them.
    pub not_stored: FrameSet,
    /// Frames that an excerpt left out.
    pub left_out: FrameSet,
    pub sinks: Vec<SinkProgress>,
}

impl SegmentTotals {
    /// Continues with the next segment.
    pub fn begin_segment(&mut self) {
        (self.frames, self.frame_bytes, self.first_unix_ns, self.clean) = (0, 0, 0, false);
        (self.not_stored, self.left_out) = (FrameSet::default(), FrameSet::default());
    }

    /// Records that frames are not in the segment.
    pub fn skip(&mut self, first: u64, count: u64, left_out: bool) {
        let frames = if left_out { &mut self.left_out } else { &mut self.not_stored };
        frames.insert_run(first, count);
    }

    /// Counts a frame of this size.
    pub fn count_frame(&mut self, received_unix_ns: u64, bytes: u64) {
        if self.frames == 0 {
            self.first_unix_ns = received_unix_ns;
        }
        self.frames += 1;
        self.frame_bytes += bytes;
    }
}

/// Entries per record, which keeps a record below a megabyte.
const ENTRIES_PER_RECORD: usize = 1024;

/// Adds the entries in as many records of this kind (CARRY or SUMMARY) as needed.
pub(crate) fn put_entries<'a>(
    out: &mut Vec<u8>,
    kind: RecordKind,
    entries: impl Iterator<Item = &'a RequestEntry>,
) {
    let mut entries = entries.peekable();
    while entries.peek().is_some() {
        let part: Vec<&RequestEntry> = entries.by_ref().take(ENTRIES_PER_RECORD).collect();
        put(out, kind, 0, 0, &part);
    }
}
