//! What a reader gives.

use bytes::Bytes;

use crate::outcome::{Credit, Gap, Verdict};
use crate::position::{FrameNo, Position, RequestNo, SegmentId};

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

/// How a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Rows may still come.
    Live,
    /// Its finish reason came.
    Finished,
    /// It was closed without one, or no row came for `abandon_after`.
    Abandoned,
}

/// How far the operator's end of a request has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// None was asked for, or it came to nothing.
    #[default]
    No,
    /// The scheduler is told: its own row for that is to be the last.
    Expected,
    /// It was told: the next row is to be the last.
    Due,
}

impl Ending {
    const ALL: [Ending; 3] = [Ending::No, Ending::Expected, Ending::Due];

    pub(crate) fn code(self) -> u8 {
        Ending::ALL.iter().position(|&each| each == self).unwrap_or_default() as u8
    }

    pub(crate) fn of_code(code: u8) -> Option<Ending> {
        Ending::ALL.get(usize::from(code)).copied()
    }
}

/// A request as `ls` shows it. Times are unix nanoseconds, 0 where no row has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    /// Its number.
    pub number: RequestNo,
    /// Its rid.
    pub rid: String,
    /// How it stands.
    pub state: State,
    /// Rows received.
    pub rows: u64,
    /// Tokens received.
    pub received: u64,
    /// Tokens that went on.
    pub forwarded: u64,
    /// Tokens received in rows that were dropped.
    pub dropped: u64,
    /// Tokens received in rows whose ids were replaced.
    pub replaced: u64,
    /// Gaps told.
    pub gaps: u32,
    /// A plugin has finished it (`Verdict::Finish`): its reader had its last row, whatever still comes.
    pub ended_early: bool,
    /// Whether the operator has asked for its end, and its reader has yet to have that.
    pub ending: Ending,
    /// The frame of its first row.
    pub first_frame: FrameNo,
    /// The frame of its last row.
    pub last_frame: FrameNo,
    /// When the first came.
    pub first_unix_ns: u64,
    /// When the last came.
    pub last_unix_ns: u64,
    /// The finish reason; empty where none came.
    pub finish: String,
    /// The scheduler's own count at the finish.
    pub completion_tokens: Option<u64>,
}

impl RequestInfo {
    pub(crate) fn new(number: RequestNo, rid: String) -> RequestInfo {
        RequestInfo {
            number,
            rid,
            state: State::Live,
            rows: 0,
            received: 0,
            forwarded: 0,
            dropped: 0,
            replaced: 0,
            gaps: 0,
            ended_early: false,
            ending: Ending::No,
            first_frame: FrameNo(0),
            last_frame: FrameNo(0),
            first_unix_ns: 0,
            last_unix_ns: 0,
            finish: String::new(),
            completion_tokens: None,
        }
    }
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

/// How a frame went on, as read ([`crate::Passage`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passage {
    /// Its very bytes.
    AsItCame,
    /// With rows changed.
    Changed,
    /// Not at all: none of its rows was left.
    Dropped,
    /// No rows; which kind.
    Barrier(String),
    /// Not decoded; why.
    NotUnderstood(String),
}

/// A finish, as read ([`crate::Finished`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish {
    /// The row in the frame.
    pub row: u32,
    /// The reason.
    pub reason: String,
    /// The scheduler's own count.
    pub completion_tokens: Option<u64>,
}

/// An action, as read ([`crate::Action`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// The row in the frame.
    pub row: u32,
    /// The plugin.
    pub plugin: String,
    /// What it said.
    pub verdict: Verdict,
    /// The reason or note.
    pub text: String,
    /// The ids written.
    pub ids: Vec<i64>,
    /// Tokens that went on.
    pub forwarded: u32,
}

/// An outcome, as read ([`crate::Outcome`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The frame.
    pub frame: FrameNo,
    /// How it went on.
    pub passage: Passage,
    /// The bytes that went on in its place, for `Passage::Changed`; `None` where they were not kept (version 1), or are
    /// damaged.
    pub changed: Option<Bytes>,
    /// The request of each row.
    pub requests: Vec<RequestNo>,
    /// The tokens of each row.
    pub tokens: Vec<u32>,
    /// Rows that ended a request.
    pub finished: Vec<Finish>,
    /// Rows with a gap.
    pub gaps: Vec<Gap>,
    /// Verdicts.
    pub actions: Vec<Action>,
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
        crate::is_mark(&self.bytes)
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
