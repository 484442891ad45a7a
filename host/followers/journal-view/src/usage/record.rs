//! The record of one request.

use std::collections::BTreeMap;

use crate::ended::{DroppedTokens, EndedRequest};
use crate::json_time;
use serde::{Deserialize, Serialize};

/// The attribute with the name of the party that pays.
const TENANT: &str = "tenant";
/// The attribute with the name of the model.
const MODEL: &str = "model";

/// The record of a request that has ended: one line of a usage file. Times are RFC 3339 in nanoseconds, UTC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageRecord {
    /// `INSTANCE/STREAM/REQUEST`. No two records have the same key.
    pub key: String,
    /// The identity of the journal directory.
    pub instance: String,
    /// Name of the stream.
    pub stream: String,
    /// Number of the request in the stream.
    pub request: u64,
    /// Rid of the request. A rid may be used by several requests.
    pub rid: String,
    /// The attribute `tenant`.
    pub tenant: Option<String>,
    /// The attribute `model`; if nobody sets it, the engine's name of its model, if the connector names it.
    pub model: Option<String>,
    /// The other attributes that the journal keeps.
    pub attributes: BTreeMap<String, String>,
    /// The engine: `sglang` or `vllm`. `None` if no frame of the request can be read.
    pub engine: Option<String>,
    /// Tokens of the prompt, as the scheduler counted them. `None` if no frame says it.
    pub prompt_tokens: Option<u64>,
    /// Ids of the prompt in the request's record, if the prompt is text alone: the scheduler should count as many. `None` without a
    /// record.
    #[serde(default)]
    pub prompt_ids: Option<u64>,
    /// Tokens of the prompt that the scheduler took from its cache. `None` if no frame says it.
    pub cached_tokens: Option<u64>,
    /// Tokens of the answer that the scheduler counts as reasoning, in the last row. `None` as `completion_tokens`.
    #[serde(default)]
    pub reasoning_tokens: Option<u64>,
    /// Tokens that a draft model proposed, in the last row. `None` if the scheduler does not say.
    #[serde(default)]
    pub drafted_tokens: Option<u64>,
    /// Tokens of a draft model that the model accepted, in the last row. `None` if the scheduler does not say.
    #[serde(default)]
    pub accepted_tokens: Option<u64>,
    /// Nanoseconds from the scheduler's queue to the first token, by the scheduler's clock. `None` if the scheduler does not say.
    pub first_token_ns: Option<u64>,
    /// The request's part of the time for which the engine worked, in nanoseconds: the sum over all requests is that time.
    #[serde(default)]
    pub gpu_ns: u64,
    /// Tokens that the scheduler counted in the last row. `None` without a last row, and for engines that do not count.
    pub completion_tokens: Option<u64>,
    /// Tokens received from the scheduler.
    pub tokens_received: u64,
    /// Tokens forwarded to the reader.
    pub tokens_forwarded: u64,
    /// Tokens received in rows whose ids a plugin replaced.
    pub tokens_replaced: u64,
    /// Tokens received in rows that were dropped, including the swallowed ones.
    pub tokens_dropped: u64,
    /// Tokens received after the request had ended for its reader.
    pub tokens_swallowed: u64,
    /// The other dropped tokens, by plugin and reason.
    pub dropped: Vec<DroppedTokens>,
    /// Gaps in the scheduler's count of tokens.
    pub gaps: u32,
    /// Rows received.
    pub rows: u64,
    /// Rows whose records the journal had lost. `tokens_swallowed` and `dropped` lack their tokens; the other sums have them.
    pub rows_missing: u64,
    /// Time of the first row. `None` if no row was received.
    pub first_time: Option<String>,
    /// Time of the last row.
    pub last_time: Option<String>,
    /// The cause of the end, a word of [`EndCause`](afterbay_types::EndCause).
    pub ended_by: String,
    /// The plugin that ended the request.
    pub plugin: Option<String>,
    /// The finish reason that the scheduler gave; `abort` if the client left.
    pub finish_reason: Option<String>,
}

impl UsageRecord {
    /// The record of a request of the journal with this identity.
    #[must_use]
    pub fn new(instance: &str, ended: &EndedRequest) -> UsageRecord {
        let (info, ledger) = (&ended.info, &ended.ledger);
        let mut attributes: BTreeMap<String, String> = info.attributes.iter().cloned().collect();
        let (tenant, model) = (attributes.remove(TENANT), attributes.remove(MODEL));
        let (facts, record) = (ended.facts.as_ref(), ended.record.as_deref());
        let by = ended.ended_by();
        UsageRecord {
            key: format!("{instance}/{}/{}", ended.stream, info.number),
            instance: instance.to_owned(),
            stream: ended.stream.to_string(),
            request: info.number.0,
            rid: info.rid.clone(),
            tenant,
            model: model.or_else(|| record?.model.clone()),
            attributes,
            engine: facts.map(|facts| facts.engine.to_owned()),
            prompt_tokens: facts.and_then(|facts| facts.prompt_tokens),
            prompt_ids: record
                .and_then(|record| record.prompt_tokens.filter(|_| record.multimodal.is_empty())),
            cached_tokens: facts.and_then(|facts| facts.cached_tokens),
            reasoning_tokens: facts.and_then(|facts| facts.reasoning_tokens),
            drafted_tokens: facts.and_then(|facts| facts.drafts.drafted),
            accepted_tokens: facts.and_then(|facts| facts.drafts.accepted),
            first_token_ns: facts.and_then(|facts| facts.first_token_ns),
            gpu_ns: ended.gpu_ns,
            completion_tokens: info.completion_tokens,
            tokens_received: info.received,
            tokens_forwarded: info.forwarded,
            tokens_replaced: info.replaced,
            tokens_dropped: info.dropped,
            tokens_swallowed: ledger.swallowed,
            dropped: ledger.dropped_by.clone(),
            gaps: info.gaps,
            rows: info.rows,
            rows_missing: ended.rows_missing,
            first_time: json_time(info.first_unix_ns),
            last_time: json_time(info.last_unix_ns),
            ended_by: by.cause.word().to_owned(),
            plugin: by.plugin,
            finish_reason: (!info.finish.is_empty()).then(|| info.finish.clone()),
        }
    }

    /// The record as a line.
    #[must_use]
    pub fn line(&self) -> Vec<u8> {
        // Texts, numbers and maps with text keys always serialize.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}
