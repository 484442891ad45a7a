//! A request that has ended, as one value.

use std::sync::Arc;

use afterbay_journal::reader::{RequestInfo, RequestState};
use afterbay_journal::{FrameNo, RequestNo, SWALLOWED, SegmentId, TokenGap, Verdict};
use afterbay_types::EndCause;
use afterbay_wire::{Drafts, RequestRecord, RoutedExperts, SamplingMask, WeightSpan};
use serde::{Deserialize, Serialize};

use crate::ending::EndedBy;

/// The frames that an [`EndedReader`](super::EndedReader) decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameUse {
    /// None: requests have no [`EngineFacts`] and no [`Contents`].
    None,
    /// Frames with the first or the last row of a request: requests have [`EngineFacts`].
    Facts,
    /// Every frame: requests have [`EngineFacts`] and [`Contents`].
    Contents,
}

/// The place in a stream's journal where a request ended. Places are ordered as the requests ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndPosition {
    /// The segment in which the request ended.
    pub segment: SegmentId,
    /// Offset of the record that closed the request, in bytes. `u32::MAX` if no record did: the segment was the last that
    /// listed the request, or the first that no longer did.
    pub offset: u32,
    /// Number of the request. Several requests without a record end at the same offset.
    pub number: RequestNo,
}

/// A request of one stream that has ended: it was closed as finished or abandoned, or is listed no longer.
#[derive(Clone, Debug, PartialEq)]
pub struct EndedRequest {
    /// Name of the stream.
    pub stream: Arc<str>,
    /// Whether the stream is after another one, which has the cause of an end by the engine.
    pub is_second_leg: bool,
    /// The journal's totals of the request: number, rid, state, tokens, times, finish reason, completion tokens. They count all
    /// rows, also those of removed segments. The state is `Abandoned` if no record says how the request ended.
    pub info: RequestInfo,
    /// The place of the end.
    pub end: EndPosition,
    /// The sink to which the last row was routed. `None` if no record names a sink.
    pub sink: Option<Arc<str>>,
    /// The rows, in the order of receipt.
    pub rows: RowColumns,
    /// Rows in `info.rows` that are not in `rows`: their segments were removed, or a bound on memory left them out.
    pub rows_missing: u64,
    /// The actions of plugins and operators, in order. Those of missing rows are not there.
    pub verdicts: Vec<RowVerdict>,
    /// The gaps in the token count, each with the index of its row among the rows that were read, in order, at most [`GAPS_MAX`](super::GAPS_MAX). `info.gaps` counts all.
    pub gaps: Vec<TokenGap>,
    /// The tokens of the rows that were read, split by what happened to them.
    pub ledger: TokenLedger,
    /// The request's part of the time for which the engine worked, in nanoseconds: of the steps that were read. 0 with
    /// [`FrameUse::None`], and of a stream after another one.
    pub gpu_ns: u64,
    /// The engine's facts about the request. `None` with [`FrameUse::None`], or if no frame of the request can be read.
    pub facts: Option<EngineFacts>,
    /// The record of the request. `None` with [`FrameUse::None`], or if the journal does not have it. The
    /// ids of the prompt are only there with [`FrameUse::Contents`], and not of an erased request.
    pub record: Option<Box<RequestRecord>>,
    /// The token ids. `None` without [`FrameUse::Contents`], and for an erased request.
    pub contents: Option<Contents>,
}

impl EndedRequest {
    /// Whether the request was closed by a row with a finish reason.
    pub fn is_finished(&self) -> bool {
        self.info.state == RequestState::Finished
    }

    /// The party that ended the request. A request that is no longer in the journal's next segment was given up.
    pub fn ended_by(&self) -> EndedBy {
        let first = |is_it: fn(&&RowVerdict) -> bool| self.verdicts.iter().find(is_it);
        let early = first(|verdict| verdict.verdict.finish_reason().is_some());
        let swallowed = || first(|verdict| &*verdict.reason == SWALLOWED);
        let early = early.or_else(|| swallowed().filter(|_| self.info.ended_early));
        let early = early.map(|verdict| (verdict.verdict, &*verdict.plugin, &*verdict.reason));
        let by = EndedBy::of(early, &self.info, self.is_second_leg);
        by.unwrap_or(EndedBy { cause: EndCause::Lost, plugin: None })
    }
}

/// A value for each row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowColumns {
    /// Time of receipt, unix nanoseconds.
    pub received_unix_ns: Vec<u64>,
    /// Tokens received.
    pub tokens: Vec<u32>,
}

/// The action of a plugin or an operator on a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowVerdict {
    /// Index of the row among the rows that were read.
    pub row: u32,
    /// Name of the plugin; [`OPERATOR`](afterbay_journal::OPERATOR) for an operator.
    pub plugin: Arc<str>,
    /// Version that the plugin's component gives itself. `None` for an operator.
    pub version: Option<Arc<str>>,
    /// SHA-256 of the plugin's component, in hexadecimal. `None` as the version.
    pub digest: Option<Arc<str>>,
    /// The verdict.
    pub verdict: Verdict,
    /// Reason, finish reason, sink or note; empty if the verdict has none.
    pub reason: Box<str>,
    /// Tokens of the row that are forwarded after this action.
    pub forwarded: u32,
}

/// The tokens of the rows that were read. `received`, `forwarded`, `replaced` and `dropped` are those of `info` if no row is
/// missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenLedger {
    /// Tokens received.
    pub received: u64,
    /// Tokens forwarded.
    pub forwarded: u64,
    /// Tokens received in rows whose ids were replaced.
    pub replaced: u64,
    /// Tokens received in rows that were dropped, including the swallowed ones.
    pub dropped: u64,
    /// Tokens received after the request had ended for its reader.
    pub swallowed: u64,
    /// The dropped tokens by plugin and reason, without the swallowed ones. At most
    /// [`DROPS_MAX`](super::DROPS_MAX) entries; further tokens are added to the last one, whose reason is then empty.
    pub dropped_by: Vec<DroppedTokens>,
}

/// Tokens that a plugin dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedTokens {
    /// Name of the plugin.
    pub plugin: String,
    /// The reason that the plugin gave.
    pub reason: String,
    /// Number of tokens.
    pub tokens: u64,
}

/// The facts that the engine's frames have about a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineFacts {
    /// The engine, in lower case: `sglang` or `vllm`.
    pub engine: &'static str,
    /// The versions of the engine whose frames have this layout, as `0.5.21..0.5.23`. `None` if the frame does not tell.
    pub versions: Option<Arc<str>>,
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u64>,
    /// Tokens of the prompt that the engine took from its cache.
    pub cached_tokens: Option<u64>,
    /// Tokens of the answer that the engine counts as reasoning, in the last row of the request.
    pub reasoning_tokens: Option<u64>,
    /// Tokens that a draft model proposed, and those that the model accepted, in the last row of the request.
    pub drafts: Drafts,
    /// Time from the request's entry into the engine's queue to its first token, in nanoseconds, by the engine's clock. `None` if
    /// the engine does not say: SGLang without `--enable-metrics`, vLLM with `--disable-log-stats`.
    pub first_token_ns: Option<u64>,
    /// The version of the weights in the last row that has one.
    pub weight_version: Option<Arc<str>>,
}

/// The token ids of the rows that were read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contents {
    /// The received ids of all rows. The row `r` has the next `rows.tokens[r]` of them.
    pub received: Vec<i64>,
    /// The ids as they were sent on. `None` if they are the received ones.
    pub sent: Option<Vec<i64>>,
    /// The logarithm of the probability of each received id. `None` unless every row with ids has them.
    pub logprobs: Option<Vec<f32>>,
    /// The fields for training. `None` without [`EndedReader::with_training`](super::EndedReader::with_training).
    pub training: Option<Training>,
    /// Rows whose ids are not in `received`, although `rows` counts their tokens: the frame is not stored, cannot be read or
    /// cannot be decoded.
    pub rows_absent: u64,
}

/// The fields of a request that only training needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Training {
    /// The versions of the weights, in the order of the tokens. Empty if the engine says none.
    pub weight_versions: Vec<WeightSpan>,
    /// The candidates of each received id. `None` unless every row with ids has them.
    pub sampling_mask: Option<SamplingMask>,
    /// The experts as the engine sends them.
    pub routed_experts: Vec<RowExperts>,
}

/// The experts that one row says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowExperts {
    /// The index of the row's first id among the received ids.
    pub first_id: u64,
    /// The experts.
    #[serde(flatten)]
    pub experts: RoutedExperts,
}

/// A frame and what happened to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettledFrame {
    /// Number of the frame.
    pub frame: FrameNo,
    /// Time of receipt, unix nanoseconds.
    pub received_unix_ns: u64,
    /// Size of the frame in bytes. `None` if the frame was not stored.
    pub bytes: Option<u32>,
    /// Rows, which are as many requests.
    pub requests: u32,
    /// Tokens received.
    pub tokens: u64,
    /// The time of the engine's step, in nanoseconds. 0 for a frame that is no step.
    pub gpu_ns: u64,
}

/// A step of the engine: a frame with a token or an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineStep {
    /// Number of the frame.
    pub frame: FrameNo,
    /// Time of receipt, unix nanoseconds: the end of the step.
    pub received_unix_ns: u64,
    /// The time for which the engine worked since the step before, in nanoseconds. It is the sum over the rows.
    pub gpu_ns: u64,
    /// The rows.
    pub rows: Vec<StepRow>,
}

impl EngineStep {
    /// New tokens.
    pub fn tokens(&self) -> u64 {
        self.rows.iter().map(|row| u64::from(row.tokens)).sum()
    }

    /// Tokens of prompts that were computed.
    pub fn prompt_tokens(&self) -> u64 {
        self.rows.iter().map(|row| row.prompt_tokens).sum()
    }

    /// Requests whose prompt was computed.
    pub fn new_requests(&self) -> usize {
        self.rows.iter().filter(|row| row.prompt_tokens > 0).count()
    }
}

/// One request's part of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepRow {
    /// Number of the request.
    pub request: RequestNo,
    /// The request's rid.
    pub rid: Arc<str>,
    /// New tokens.
    pub tokens: u32,
    /// Tokens of the prompt that were computed, up to this step. 0 but for the first row of a request or of a turn.
    pub prompt_tokens: u64,
    /// The request's part of the step's time, in nanoseconds.
    pub gpu_ns: u64,
}
