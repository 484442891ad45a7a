//! Outcome of a frame: what happened to the frame and to each of its rows. Columns, and sparse parts sorted by row.
//!
//! The stream writes an outcome with borrowed parts, and journal readers return it with owned parts.

use std::borrow::Cow;

use afterbay_types::EndCause;
use bytes::Bytes;

use crate::position::{FrameNo, RequestNo};
use crate::request::RequestInfo;

/// Outcome of a frame. Recorded once per frame, in any order of frames.
///
/// `R` names the request of a row: a [`JournalRequest`](crate::JournalRequest) to write, its number when read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome<'a, R: Clone = RequestNo> {
    /// Number of the frame.
    pub frame: FrameNo,
    /// Time of receipt of the frame, unix nanoseconds.
    pub received_unix_ns: u64,
    /// How the frame was passed on.
    pub passage: Passage<'a>,
    /// Bytes sent in place of the frame, for `Passage::Changed`: a restart sends exactly these. At most
    /// `FRAME_BYTES_MAX` bytes, else the outcome is dropped. When read, `None` if the bytes are damaged.
    pub changed: Option<Bytes>,
    /// Request of each row. Empty for a frame that was not understood, and for a barrier but the record of a request.
    pub requests: Cow<'a, [R]>,
    /// Tokens received in each row.
    pub tokens: Cow<'a, [u32]>,
    /// Rows with a finish reason, sorted by row.
    pub finished: Cow<'a, [RowFinish<'a>]>,
    /// Rows with a gap in the token count, sorted by row.
    pub gaps: Cow<'a, [TokenGap]>,
    /// Actions of plugins, sorted by row. The last action on a row gives what was forwarded.
    pub actions: Cow<'a, [PluginAction<'a>]>,
}

impl<'a, R: Clone> Outcome<'a, R> {
    /// Outcome of a frame without rows.
    pub fn new(frame: FrameNo, received_unix_ns: u64, passage: Passage<'a>) -> Outcome<'a, R> {
        Outcome {
            frame,
            received_unix_ns,
            passage,
            changed: None,
            requests: Cow::Borrowed(&[]),
            tokens: Cow::Borrowed(&[]),
            finished: Cow::Borrowed(&[]),
            gaps: Cow::Borrowed(&[]),
            actions: Cow::Borrowed(&[]),
        }
    }

    /// Whether the frame is the record of the one request that is named, and no row of it.
    pub fn is_record(&self) -> bool {
        matches!(self.passage, Passage::Barrier(_)) && !self.requests.is_empty()
    }
}

/// How a frame was passed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passage<'a> {
    /// Its own bytes were forwarded.
    Unchanged,
    /// It was forwarded with rows changed, dropped, joined or routed apart.
    Changed,
    /// No row was left to forward.
    Dropped,
    /// It was forwarded unchanged and in order, because it holds no rows. The text names its kind.
    Barrier(Cow<'a, str>),
    /// It was forwarded unchanged and in order, because it could not be decoded. The text says why.
    NotUnderstood(Cow<'a, str>),
}

/// Finish of a request in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowFinish<'a> {
    /// Index of the row in the frame.
    pub row: u32,
    /// The scheduler's finish reason (`stop`, `length`, `abort`, …).
    pub reason: Cow<'a, str>,
    /// The scheduler's token count of the request, if the row has one.
    pub completion_tokens: Option<u64>,
}

/// Gap in the token count of a request: a row's count is not what was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenGap {
    /// Index of the row in the frame.
    pub row: u32,
    /// Tokens received for the request, including this row.
    pub expected: u64,
    /// Tokens that the scheduler has sent by its own count.
    pub got: u64,
}

/// Action of a plugin on a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginAction<'a> {
    /// Index of the row in the frame.
    pub row: u32,
    /// Name of the plugin.
    pub plugin: Cow<'a, str>,
    /// Verdict of the plugin.
    pub verdict: Verdict,
    /// Reason, finish reason, sink or note; empty if the verdict has none.
    pub text: Cow<'a, str>,
    /// Ids in place of the row's, for `Replace`. For `Release`, one number: how many held rows are released.
    pub ids: Cow<'a, [i64]>,
    /// Tokens of the row that are forwarded after this action.
    pub forwarded: u32,
}

/// Plugin name in the actions of an operator. No plugin can have this name.
pub const OPERATOR: &str = "(operator)";

/// Text of the drop of a row that was received after a plugin or an operator had ended its request.
pub const SWALLOWED: &str = "swallowed: the request had ended";

impl PluginAction<'_> {
    /// The action without the content of an erased row.
    pub(crate) fn without_content(self) -> Self {
        let stays = self.verdict.text_that_stays(&self.text);
        let ids = if self.verdict == Verdict::Release { self.ids } else { Cow::Owned(Vec::new()) };
        PluginAction { text: Cow::Owned(self.text[..stays].to_owned()), ids, ..self }
    }

    /// Whether the action makes its row the last row that the reader gets of the request.
    pub fn ends_request(&self) -> bool {
        self.verdict.finish_reason().is_some()
    }

    /// Whether the row was received after its request had ended for the reader.
    pub fn is_swallowed(&self) -> bool {
        self.verdict == Verdict::Drop && self.text == SWALLOWED
    }
}

/// The cause of a request's end, by the action of a plugin or an operator that ended it, or that dropped a row received after
/// the end.
pub fn end_cause(verdict: Verdict, plugin: &str, text: &str) -> EndCause {
    match plugin {
        _ if verdict == Verdict::Error && split_error(text).1.starts_with(FAULT) => EndCause::Fault,
        OPERATOR => EndCause::Operator,
        // Afterbay writes such a name for a plugin of an earlier run.
        plugin if plugin.starts_with('(') => EndCause::Unknown,
        plugin => EndCause::of_plugin(plugin),
    }
}

/// Start of the message of an error that Afterbay itself gives a request.
const FAULT: &str = "afterbay: plugin ";

/// Start of the text of a `replace` that replaces all ids so far.
pub(crate) const CUMULATIVE: &str = "cumulative";
/// Start of the text of a `replace` before the row's new text.
pub(crate) const NEW_TEXT: &str = "text: ";

/// The bytes of a replacement's text that say what kind it is.
fn replacement_head(text: &str) -> usize {
    match text.starts_with(CUMULATIVE) {
        true => text.len(),
        false if text.starts_with(NEW_TEXT) => NEW_TEXT.len(),
        false => 0,
    }
}

/// Kind of a plugin's verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Replaces the ids of the row.
    Replace,
    /// Drops the row.
    Drop,
    /// Ends the request with this row, with the finish reason `stop`.
    Finish,
    /// Ends the request with this row, with the finish reason `length`.
    Length,
    /// Holds the row, as earlier verdicts changed it.
    Hold,
    /// Releases held rows of the plugin with this row, before its own tokens.
    Release,
    /// Sends the row to another sink.
    Route,
    /// Sends the row past the detokenizer.
    SkipText,
    /// Ends the request with this row, with the finish reason `abort`.
    Abort,
    /// Ends the request with this row, with an error. The text is the HTTP status, a space and the message.
    Error,
    /// Stores a note with the row.
    Annotate,
    /// The plugin's call failed.
    Fault,
    /// A verdict that this version does not know.
    Other(u8),
}

impl Verdict {
    /// The finish reason that the reader gets, if the verdict ends the request.
    pub fn finish_reason(self) -> Option<&'static str> {
        match self {
            Verdict::Finish => Some("stop"),
            Verdict::Length => Some("length"),
            Verdict::Abort => Some("abort"),
            Verdict::Error => Some("error"),
            _ => None,
        }
    }

    /// The bytes at the start of an action's text that are no content of the row, so that an erasure lets them stay.
    pub(crate) fn text_that_stays(self, text: &str) -> usize {
        match self {
            Verdict::Route | Verdict::SkipText => text.len(),
            Verdict::Drop if text == SWALLOWED => text.len(),
            Verdict::Replace => replacement_head(text),
            Verdict::Error => split_error(text).0.len(),
            _ => 0,
        }
    }
}

/// Splits the text of a [`Verdict::Error`] into the HTTP status and the message.
pub fn split_error(text: &str) -> (&str, &str) {
    text.split_once(' ').unwrap_or(("", text))
}

/// Combined effect of the actions on one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowEffect {
    /// Index of the row in the frame.
    pub row: u32,
    /// Tokens that are forwarded with the row.
    pub forwarded: u32,
    /// Tokens released with the row, including its own.
    released: Option<u32>,
    /// Whether the tokens count as dropped, else as replaced.
    dropped: bool,
    replaced: bool,
    /// Whether a plugin ended the request with this row.
    finished: bool,
}

impl RowEffect {
    /// Tokens of the request forwarded so far, given a sum that counts all `tokens` of the row as forwarded.
    pub(crate) fn forwarded(&self, so_far: u64, tokens: u64) -> u64 {
        (so_far + u64::from(self.forwarded)).saturating_sub(tokens)
    }

    /// Tokens that were dropped, and tokens that were replaced, if `tokens` were received with the row.
    pub fn dropped_and_replaced(&self, tokens: u64) -> (u64, u64) {
        let all = self.released.map_or(tokens, u64::from);
        (if self.dropped { all } else { 0 }, if self.replaced { all } else { 0 })
    }

    /// Adds the row's dropped and replaced tokens to the totals of its request.
    pub(crate) fn count(&self, tokens: u64, info: &mut RequestInfo) {
        let (dropped, replaced) = self.dropped_and_replaced(tokens);
        info.dropped += dropped;
        info.replaced += replaced;
        info.ended_early |= self.finished;
    }
}

/// Combines actions, sorted by row, into one effect per row.
pub fn row_effects(actions: &[PluginAction<'_>]) -> impl Iterator<Item = RowEffect> {
    actions.chunk_by(|one, next| one.row == next.row).filter_map(|of_row| {
        let last = of_row.last()?;
        let has = |verdict| of_row.iter().any(|action| action.verdict == verdict);
        let released = of_row.iter().rfind(|action| action.verdict == Verdict::Release);
        let dropped = has(Verdict::Drop);
        Some(RowEffect {
            row: last.row,
            forwarded: last.forwarded,
            released: released.map(|action| action.forwarded),
            dropped,
            replaced: has(Verdict::Replace) && !dropped,
            finished: of_row.iter().any(PluginAction::ends_request),
        })
    })
}
