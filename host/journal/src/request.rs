//! A request as the journal numbers and counts it.

use crate::position::{FrameNo, RequestNo};

/// A request that is open in a [`Writer`](crate::Writer): its number, and the slot that makes an outcome cheap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    pub(crate) number: RequestNo,
    pub(crate) slot: u32,
}

impl Request {
    /// Its number, which plugins and events use.
    pub fn number(self) -> RequestNo {
        self.number
    }
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
