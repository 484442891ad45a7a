//! An outcome as it was read.

use bytes::Bytes;

use crate::outcome::{Gap, Verdict};
use crate::position::{FrameNo, RequestNo};

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
