//! What a reader gives.

use crate::outcome::{Credit, Gap};
use crate::position::{FrameNo, Position, RequestNo, SegmentId};
use crate::request::{RequestInfo, State};
use crate::stored::{Action, Finish, Outcome, Passage};

/// Where to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// The oldest frame that is kept.
    Start,
    /// This frame, or the first after it.
    Frame(FrameNo),
    /// The first frame received at or after this time, unix nanoseconds.
    Time(u64),
    /// After the last one there is now.
    End,
}

/// Which requests.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Whose rid begins so.
    pub rid_prefix: Option<String>,
    /// In this state.
    pub state: Option<State>,
    /// With a last row at or after this, unix nanoseconds.
    pub since_unix_ns: Option<u64>,
    /// With a first row before this, unix nanoseconds.
    pub until_unix_ns: Option<u64>,
}

/// A request and each of its rows.
#[derive(Clone, Debug)]
pub struct Life {
    /// Its totals.
    pub request: RequestInfo,
    /// Its rows, in order of frames. Those of segments that were removed are not there.
    pub rows: Vec<Row>,
}

/// A row of a request's life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The frame.
    pub frame: FrameNo,
    /// Where it stands; `None` where its segment was removed or it was never kept.
    pub position: Option<Position>,
    /// When it came, unix nanoseconds.
    pub received_unix_ns: u64,
    /// Which row of the frame.
    pub row: u32,
    /// Tokens received in it.
    pub tokens: u32,
    /// Tokens that went on.
    pub forwarded: u32,
    /// How the frame went on.
    pub passage: Passage,
    /// The finish reason, if it ended the request.
    pub finish: Option<Finish>,
    /// The gap, if it did not continue where the request stood.
    pub gap: Option<Gap>,
    /// What plugins did to it.
    pub actions: Vec<Action>,
    /// The sinks that were sent it and have taken it, also those that are no more; of a stream with several mostly one.
    pub taken_by: Vec<String>,
}

/// A frame, as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its number and where it stands.
    pub position: Position,
    /// When it came, unix nanoseconds.
    pub received_unix_ns: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl Frame {
    /// Whether it is Afterbay's own: no rows came in it, and it leaves for no reader.
    #[must_use]
    pub fn is_mark(&self) -> bool {
        crate::release_marker::is_mark(&self.bytes)
    }
}

/// A record, as `tail` gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A frame came.
    Frame(Frame),
    /// What was done with one.
    Outcome(Outcome),
    /// A request began. (Requests carried into a new segment are not told again.)
    Opened(RequestNo, String),
    /// A request was closed.
    Closed(RequestNo, State),
    /// A sink took everything up to a frame.
    Taken(String, FrameNo, Option<Credit>),
    /// So many frames from this one on went on without being kept.
    Skipped(FrameNo, u64),
    /// So many outcomes and openings found no room while the disk refused writes.
    Lost(u64),
    /// Bytes that are no record were passed over: in this segment, from this byte, so many.
    Corrupt(SegmentId, u64, u64),
}
