//! What the stream tells of a frame after it was handled: columns, and sparse parts sorted by row.

use crate::position::FrameNo;
use crate::request::{JournalRequest, RequestInfo};

/// What was done with a frame and each of its rows. Told once per frame, in any order of frames.
#[derive(Clone, Copy, Debug)]
pub struct Outcome<'a> {
    /// The frame, as `append` numbered it.
    pub frame: FrameNo,
    /// When it came, unix nanoseconds, as `append` was told.
    pub received_unix_ns: u64,
    /// How the frame went on.
    pub passage: Passage<'a>,
    /// The bytes that went on in its place, for `Passage::Changed`: kept, so that after a restart the very same can be
    /// sent. At most `FRAME_BYTES_MAX`, else the outcome counts as lost.
    pub changed: Option<&'a [u8]>,
    /// The request of each row. Empty for a barrier and for what was not understood.
    pub requests: &'a [JournalRequest],
    /// The tokens that came in each row; as many as `requests`.
    pub tokens: &'a [u32],
    /// Rows that carried a finish reason, sorted by row.
    pub finished: &'a [Finished<'a>],
    /// Rows whose count did not continue where the request stood, sorted by row.
    pub gaps: &'a [Gap],
    /// Verdicts of plugins, sorted by row; of several for one row the last says what went on.
    pub actions: &'a [Action<'a>],
}

/// How a frame went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage<'a> {
    /// Its very bytes.
    AsItCame,
    /// With rows changed, dropped, joined or routed apart.
    Changed,
    /// Not at all: none of its rows was left.
    Dropped,
    /// As it came, in its place, because it holds no rows: a control message, an idle batch; the text says which.
    Barrier(&'a str),
    /// As it came, in its place, because it could not be decoded; the text says why.
    NotUnderstood(&'a str),
}

/// A row that ended its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished<'a> {
    /// The row in the frame.
    pub row: u32,
    /// The scheduler's finish reason (`stop`, `length`, `abort`, …).
    pub reason: &'a str,
    /// The scheduler's own count of the request's tokens, where the row has one.
    pub completion_tokens: Option<u64>,
}

/// A row whose count of tokens so far was not what had been received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The row in the frame.
    pub row: u32,
    /// Tokens received for the request, this row's included.
    pub expected: u64,
    /// Tokens the scheduler says it has sent.
    pub got: u64,
}

/// What a plugin did to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action<'a> {
    /// The row in the frame.
    pub row: u32,
    /// The plugin's name.
    pub plugin: &'a str,
    /// What it said.
    pub verdict: Verdict,
    /// The reason, the finish reason, the sink or the note; empty where the verdict has none.
    pub text: &'a str,
    /// The ids written in place of the row's, for `Replace`. For `Release`, one number: how many of the rows that waited
    /// with the plugin go on.
    pub ids: &'a [i64],
    /// Tokens of the row that went on after this.
    pub forwarded: u32,
}

/// The kind of a plugin's verdict. Its number is what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The row's ids are others.
    Replace,
    /// The row did not go on.
    Drop,
    /// The request ends with this row.
    Finish,
    /// The row, as the verdicts before have it, waits with the plugin.
    Hold,
    /// What waited with the plugin goes on in the row, before its own tokens.
    Release,
    /// The row goes to another sink.
    Route,
    /// The row goes past the detokenizer.
    SkipDetokenizing,
    /// The request is aborted at the scheduler.
    Abort,
    /// A note is kept with the row.
    Annotate,
    /// The plugin failed at this row.
    Fault,
    /// One this version has no name for.
    Other(u8),
}

/// Where a sink's reader stood in its own count (the credit page) when a frame was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// The reader's generation.
    pub generation: u64,
    /// How many counted frames had been sent to it, the one told as taken included.
    pub sent: u64,
}

/// What the actions on one row come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowEffect {
    pub row: u32,
    pub forwarded: u32,
    /// How many tokens were released with it, its own among them.
    pub released: Option<u32>,
    /// Its tokens count as dropped, or else as replaced, or neither.
    pub dropped: bool,
    pub replaced: bool,
    /// The request ended with it, by a plugin's word.
    pub finished: bool,
}

impl RowEffect {
    /// The tokens of the request that went on, of which the row's were counted as such.
    pub(crate) fn forwarded(&self, so_far: u64, tokens: u64) -> u64 {
        (so_far + u64::from(self.forwarded)).saturating_sub(tokens)
    }

    /// Books the row's tokens that did not go on as they came.
    pub(crate) fn book(&self, tokens: u64, info: &mut RequestInfo) {
        let all = self.released.map_or(tokens, u64::from);
        info.dropped += if self.dropped { all } else { 0 };
        info.replaced += if self.replaced { all } else { 0 };
        info.ended_early |= self.finished;
    }
}

/// Sums up actions, sorted by row, given as (row, verdict, tokens forwarded after it).
pub(crate) fn row_effects(
    actions: impl Iterator<Item = (u32, Verdict, u32)>,
) -> impl Iterator<Item = RowEffect> {
    let mut actions = actions.peekable();
    std::iter::from_fn(move || {
        let (row, mut verdict, mut forwarded) = actions.next()?;
        let (mut dropped, mut replaced, mut finished) = (false, false, false);
        let mut released = None;
        loop {
            if verdict == Verdict::Release {
                released = Some(forwarded);
            }
            dropped |= verdict == Verdict::Drop;
            replaced |= verdict == Verdict::Replace;
            finished |= matches!(verdict, Verdict::Finish | Verdict::Abort);
            let Some(next) = actions.next_if(|next| next.0 == row) else { break };
            (_, verdict, forwarded) = next;
        }
        Some(RowEffect { row, forwarded, released, dropped, replaced: replaced && !dropped, finished })
    })
}
