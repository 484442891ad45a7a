//! Types that journal readers return.

use std::collections::HashSet;
use std::sync::Arc;

use crate::outcome::{Outcome, Passage, PluginAction, RowFinish, TokenGap, Verdict};
use crate::plugin_component::PluginComponent;
use crate::position::{FrameNo, Position, SegmentId};
use crate::request::{RequestInfo, RequestState};

/// Start of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFrom {
    /// At the oldest stored frame.
    Start,
    /// At this frame, or the first after it.
    Frame(FrameNo),
    /// At the first frame received at or after this time, unix nanoseconds.
    Time(u64),
}

/// Selects requests. All conditions must hold.
#[derive(Clone, Debug, Default)]
pub struct RequestFilter {
    /// The rid begins with this text.
    pub rid_prefix: Option<String>,
    /// The request is in this state.
    pub state: Option<RequestState>,
    /// The sender gave this finish reason.
    pub finish: Option<String>,
    /// The last row was received at or after this time, unix nanoseconds.
    pub since_unix_ns: Option<u64>,
    /// The first row was received before this time, unix nanoseconds.
    pub until_unix_ns: Option<u64>,
    /// The rid is one of these.
    pub rids: Option<HashSet<String>>,
    /// The request has these attributes, each a name and a value.
    pub attributes: Vec<(String, String)>,
    /// The request is open, or its end is in a segment with a row at or after this time, unix nanoseconds. Earlier segments are
    /// not read.
    pub ended_since_unix_ns: Option<u64>,
    /// The request has ended in a segment before this one. Later segments are not read.
    pub ended_before: Option<SegmentId>,
}

/// A request and its rows.
#[derive(Clone, Debug)]
pub struct RequestHistory {
    /// Totals of the request.
    pub request: RequestInfo,
    /// The frame of the request's record, if the journal has it.
    pub record: Option<Position>,
    /// Rows in order of frames, without those of removed segments.
    pub rows: Vec<JournalRow>,
}

impl RequestHistory {
    /// The components of all plugins that acted on the request, each once, in the order of their first actions.
    #[must_use]
    pub fn plugins(&self) -> Vec<&PluginComponent> {
        let mut plugins: Vec<&PluginComponent> = Vec::new();
        for component in self.rows.iter().flat_map(|row| &row.plugins) {
            if !plugins.contains(&&**component) {
                plugins.push(component);
            }
        }
        plugins
    }
}

impl JournalRow {
    /// The component whose action this is. `None` for an operator's.
    #[must_use]
    pub fn component(&self, action: &PluginAction<'_>) -> Option<&PluginComponent> {
        self.plugins.iter().map(|component| &**component).find(|component| component.plugin == action.plugin)
    }

    /// Sinks that have taken the row, including removed sinks.
    #[must_use]
    pub fn taken_by(&self) -> Vec<&str> {
        // A held row is sent with a later row.
        if self.actions.last().is_some_and(|last| last.verdict == Verdict::Hold) {
            return Vec::new();
        }
        self.deliveries.iter().filter(|delivery| delivery.taken).map(|delivery| &*delivery.sink).collect()
    }
}

/// A row of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalRow {
    /// Frame of the row.
    pub frame: FrameNo,
    /// Position of the frame; `None` if its segment was removed or the frame was not stored.
    pub position: Option<Position>,
    /// Position of the bytes that were sent in place of the frame; `None` if none were. See [`StreamReader::changed`](super::StreamReader::changed).
    pub changed: Option<Position>,
    /// Time of receipt, unix nanoseconds.
    pub received_unix_ns: u64,
    /// Index of the row in the frame.
    pub row: u32,
    /// Tokens received.
    pub tokens: u32,
    /// Tokens forwarded.
    pub forwarded: u32,
    /// How the frame was passed on.
    pub passage: Passage<'static>,
    /// The row's finish, if it ended the request.
    pub finish: Option<RowFinish<'static>>,
    /// Gap before the row, if any.
    pub gap: Option<TokenGap>,
    /// Actions of plugins on the row.
    pub actions: Vec<PluginAction<'static>>,
    /// Components of the plugins that acted, by the plugin's name.
    pub plugins: Vec<Arc<PluginComponent>>,
    /// Frames that carried the row to a sink. Empty if the journal does not record them.
    pub deliveries: Vec<RowDelivery>,
}

/// A frame that carried a row to a sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowDelivery {
    /// Name of the sink.
    pub sink: String,
    /// Sequence number of the frame at this sink. Rows of a request with the same number were joined.
    pub sequence: u64,
    /// Time when the frame was given to the sink's socket, unix nanoseconds. 0: unknown.
    pub sent_unix_ns: u64,
    /// Whether the sink has taken the frame.
    pub taken: bool,
    /// Time when the frame was found to be taken, unix nanoseconds. 0: not taken, or unknown.
    pub taken_unix_ns: u64,
}

/// A frame as received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredFrame {
    /// Number and position of the frame.
    pub position: Position,
    /// Time of receipt, unix nanoseconds.
    pub received_unix_ns: u64,
    /// Bytes of the frame.
    pub bytes: Vec<u8>,
}

impl StoredFrame {
    /// Whether this is a release marker, which is sent to no reader.
    #[must_use]
    pub fn is_release_marker(&self) -> bool {
        crate::release_marker::is_release_marker(&self.bytes)
    }
}

/// A record as [`Tail`](super::Tail) returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalRecord {
    /// A frame was received.
    Frame(StoredFrame),
    /// Outcome of a frame.
    Outcome(Outcome<'static>),
    /// A range of frames was forwarded without being stored: first frame, and number of frames.
    Skipped(FrameNo, u64),
    /// Number of records that were dropped while the disk refused writes.
    Lost(u64),
    /// Corrupt bytes were skipped: segment, offset, and number of bytes.
    Corrupt(SegmentId, u64, u64),
}
