//! Requests as the journal numbers and counts them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::position::{FrameNo, RequestNo};

/// Handle of a request that is open in a [`JournalWriter`](crate::JournalWriter): its number, and its slot. Tables of live
/// requests have one entry per slot. A later request may have the slot of a request that has ended, but never its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JournalRequest {
    pub(crate) number: RequestNo,
    pub(crate) slot: u32,
}

impl JournalRequest {
    /// The handle of the request with this number in this slot.
    pub fn new(number: RequestNo, slot: u32) -> JournalRequest {
        JournalRequest { number, slot }
    }

    /// Number of the request. Plugins and events use this number.
    #[inline]
    pub fn number(self) -> RequestNo {
        self.number
    }

    /// Index of the request in tables of live requests.
    #[inline]
    pub fn slot(self) -> usize {
        self.slot as usize
    }
}

/// State of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum RequestState {
    /// Rows may follow.
    #[default]
    Live,
    /// A row with a finish reason was received, or the sender ended the request without a row.
    Finished,
    /// The request was closed without a finish reason, or no row was received for `abandon_after`.
    Abandoned,
}

/// Progress of an operator's abort of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OperatorAbort {
    /// No abort is under way.
    #[default]
    No,
    /// The scheduler was asked to abort. Its own row for the abort is to be the last row.
    Expected,
    /// The scheduler was asked to abort. The next row of the request is to be its last row.
    Due,
}

/// Erasure of a request: its tokens and texts were overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Erasure {
    /// Time of the erasure, unix nanoseconds.
    pub unix_ns: u64,
    /// The one who erased the request.
    pub by: ErasedBy,
}

/// The one who erased a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ErasedBy {
    /// A user of this host, by number.
    User(u32),
    /// A host that called the admin address over TCP: the user is not known.
    Remote,
    /// A rule of the configuration.
    Rule,
}

impl ErasedBy {
    /// The user of this process.
    #[must_use]
    pub fn this_user() -> ErasedBy {
        ErasedBy::User(rustix::process::getuid().as_raw())
    }
}

impl fmt::Display for ErasedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ErasedBy::User(uid) => write!(f, "user {uid}"),
            ErasedBy::Remote => f.write_str("a caller over TCP"),
            ErasedBy::Rule => f.write_str("journal.erase"),
        }
    }
}

/// Totals of a request. Times are unix nanoseconds, 0 before the first row.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RequestInfo {
    /// Number of the request.
    pub number: RequestNo,
    /// Rid as [`stored_rid`](crate::stored_rid) gives it.
    pub rid: String,
    /// State of the request.
    pub state: RequestState,
    /// Rows received.
    pub rows: u64,
    /// Tokens received.
    pub received: u64,
    /// Tokens forwarded.
    pub forwarded: u64,
    /// Tokens received in rows that were dropped.
    pub dropped: u64,
    /// Tokens received in rows whose ids were replaced.
    pub replaced: u64,
    /// Gaps in the token count.
    pub gaps: u32,
    /// Whether a plugin finished or aborted the request: its reader got the last row, and further rows are
    /// dropped.
    pub ended_early: bool,
    /// Progress of an operator's abort that has not reached the reader.
    pub ending: OperatorAbort,
    /// Frame of the request's first record, which the connector sent before the first row; 0 without a record.
    pub record_frame: FrameNo,
    /// Time of the record; 0 without one.
    pub record_unix_ns: u64,
    /// Frame of the first row; of the record while there is no row.
    pub first_frame: FrameNo,
    /// Frame of the last row; of the record while there is no row.
    pub last_frame: FrameNo,
    /// Time of the first row; of the record while there is no row.
    pub first_unix_ns: u64,
    /// Time of the last row; of the record while there is no row.
    pub last_unix_ns: u64,
    /// Finish reason; empty without one.
    pub finish: String,
    /// The scheduler's token count in the last row.
    pub completion_tokens: Option<u64>,
    /// Names and values of the request's attributes, sorted by name: at most
    /// [`ATTRIBUTES_BYTES_MAX`](crate::bounds::ATTRIBUTES_BYTES_MAX) bytes.
    pub attributes: Vec<(String, String)>,
    /// Set once the request's tokens and texts were overwritten in every segment.
    pub erased: Option<Erasure>,
}

impl RequestInfo {
    pub(crate) fn new(number: RequestNo, rid: String) -> RequestInfo {
        RequestInfo { number, rid, ..RequestInfo::default() }
    }

    /// The value of an attribute.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The first frame that has anything of the request.
    pub fn begins(&self) -> FrameNo {
        if self.record_frame.0 == 0 { self.first_frame } else { self.record_frame.min(self.first_frame) }
    }

    /// The time of that frame, unix nanoseconds. It is the same for as long as the request is known.
    pub fn begins_unix_ns(&self) -> u64 {
        if self.record_unix_ns == 0 { self.first_unix_ns } else { self.record_unix_ns }
    }

    /// Whether the journal has a row of the request, or its record.
    pub fn is_seen(&self) -> bool {
        self.rows > 0 || self.record_frame.0 > 0
    }

    /// Notes the frame of the request's record. The records of a resumable request's later turns follow the first.
    pub(crate) fn note_record(&mut self, frame: FrameNo, received_unix_ns: u64) {
        if self.record_frame.0 > 0 {
            return;
        }
        (self.record_frame, self.record_unix_ns) = (frame, received_unix_ns);
        if self.rows == 0 {
            (self.first_frame, self.first_unix_ns) = (frame, received_unix_ns);
        }
    }
}
