//! A request with which an engine goes on: what its record asked for, less what it has.

use serde_json::{Value, json};
use thiserror::Error;

use crate::request::{RequestRecord, Sampling};

/// The reason why no engine can go on with a request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotMigrated {
    /// The record does not have this.
    #[error("the journal does not have {0}")]
    Lacks(String),
    /// The engine's state for this is gone.
    #[error("it has {0}")]
    Has(String),
    /// The tokens would be others.
    #[error("{0}, and stream.migration.resample is false")]
    Resampled(&'static str),
    /// It had all its tokens.
    #[error("it had all {0} tokens that it may have")]
    Whole(u64),
    /// Afterbay does not know how to ask the engine.
    #[error("{0} takes no such request")]
    Engine(&'static str),
}

/// A request for the engine that goes on with it.
pub(crate) struct Again<'r> {
    pub(crate) record: &'r RequestRecord,
    pub(crate) sampling: &'r Sampling,
    /// Ids of the prompt and of the tokens so far.
    pub(crate) ids: Vec<i64>,
    /// `None`: as many as the engine allows.
    pub(crate) max_tokens: Option<u64>,
    pub(crate) min_tokens: u64,
}

impl<'r> Again<'r> {
    pub(crate) fn new(record: &'r RequestRecord, so_far: &[i64]) -> Result<Again<'r>, NotMigrated> {
        let lacks = |what: &str| NotMigrated::Lacks(what.to_owned());
        let has = |what: &str| Err(NotMigrated::Has(what.to_owned()));
        if let Some(field) = record.left_out.first().or(record.unrecorded.first()) {
            return Err(NotMigrated::Lacks(format!("its {field}")));
        }
        match record {
            RequestRecord { grammar: Some(_), .. } => return has("a grammar"),
            RequestRecord { bootstrap: Some(_), .. } => return has("its prefill in another engine"),
            RequestRecord { multimodal, .. } if !multimodal.is_empty() => {
                return has("inputs that are no text");
            }
            RequestRecord { session, resumable, .. } if session.is_some() || *resumable => {
                return has("a session in the engine");
            }
            _ => {}
        }
        let sampling = record.sampling.as_ref().ok_or_else(|| lacks("its sampling parameters"))?;
        if let Some(n) = sampling.n.filter(|n| *n > 1) {
            return Err(NotMigrated::Has(format!("{n} samples")));
        }
        let prompt = record.prompt_ids().ok_or_else(|| lacks("the ids of its prompt"))?;
        let ids = prompt.map(i64::from).chain(so_far.iter().copied()).collect();
        let count = so_far.len() as u64;
        if let Some(max) = sampling.max_tokens.filter(|max| *max <= count) {
            return Err(NotMigrated::Whole(max));
        }
        let max_tokens = sampling.max_tokens.map(|max| max - count);
        let min_tokens = sampling.min_tokens.unwrap_or(0).saturating_sub(count);
        Ok(Again { record, sampling, ids, max_tokens, min_tokens })
    }

    /// The parameters that all engines name alike. Each is said: for what is absent, a server takes a value of the model's.
    pub(crate) fn sampling(&self) -> Value {
        let sampling = self.sampling;
        json!({
            "temperature": sampling.temperature.unwrap_or(1.0),
            "top_p": sampling.top_p.unwrap_or(1.0),
            "top_k": sampling.top_k.unwrap_or(-1),
            "min_p": sampling.min_p.unwrap_or(0.0),
            "stop": sampling.stop,
            "stop_token_ids": sampling.stop_token_ids,
            "frequency_penalty": sampling.frequency_penalty.unwrap_or(0.0),
            "presence_penalty": sampling.presence_penalty.unwrap_or(0.0),
            "repetition_penalty": sampling.repetition_penalty.unwrap_or(1.0),
            "ignore_eos": sampling.ignore_eos,
        })
    }

    /// Whether the same tokens follow, up to what the engine's own arithmetic differs by.
    pub(crate) fn check_exact(&self) -> Result<(), NotMigrated> {
        let Sampling {
            temperature,
            top_k,
            seed,
            frequency_penalty,
            presence_penalty,
            repetition_penalty,
            ..
        } = *self.sampling;
        let is_greedy = temperature == Some(0.0) || top_k == Some(1);
        if !is_greedy && seed.is_none() {
            return Err(NotMigrated::Resampled("it is sampled without a seed"));
        }
        let is_set = |penalty: Option<f64>, without: f64| penalty.is_some_and(|penalty| penalty != without);
        if is_set(frequency_penalty, 0.0) || is_set(presence_penalty, 0.0) || is_set(repetition_penalty, 1.0)
        {
            return Err(NotMigrated::Resampled("its penalties count tokens of the answer"));
        }
        Ok(())
    }
}
