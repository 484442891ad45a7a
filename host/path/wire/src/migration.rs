//! The HTTP request by which an engine goes on with a request of an engine that died: its prompt is the prompt and the tokens so far.

use afterbay_types::Engine;
use serde_json::{Value, json};
use thiserror::Error;

use crate::request::{RequestRecord, Sampling};
use crate::{sglang, vllm};

/// A call of an engine's HTTP server.
#[derive(Clone, Debug, PartialEq)]
pub struct MigrationCall {
    /// The path.
    pub path: &'static str,
    /// The body.
    pub body: Value,
    /// The trace of the request as headers: names and values.
    pub headers: Vec<(&'static str, String)>,
}

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

/// What the engine is asked for.
pub(crate) struct Again<'r> {
    pub(crate) record: &'r RequestRecord,
    pub(crate) sampling: &'r Sampling,
    /// Ids of the prompt and of the tokens so far.
    pub(crate) ids: Vec<i64>,
    /// `None`: as many as the engine allows.
    pub(crate) max_tokens: Option<u64>,
    pub(crate) min_tokens: u64,
}

impl MigrationCall {
    /// The call for a request with this record and these tokens so far. `resample`: the tokens may be others than without the death.
    ///
    /// # Errors
    /// No engine can go on with it.
    pub fn new(
        engine: Engine,
        record: &RequestRecord,
        so_far: &[i64],
        resample: bool,
    ) -> Result<MigrationCall, NotMigrated> {
        let form = match engine {
            Engine::Sglang => sglang::again,
            Engine::Vllm => vllm::again,
            Engine::Smg => return Err(NotMigrated::Engine(engine.name())),
        };
        let again = Again::new(record, so_far)?;
        if !resample {
            again.check_exact()?;
        }
        let trace = record
            .trace
            .iter()
            .flat_map(|trace| [("traceparent", &trace.traceparent), ("tracestate", &trace.tracestate)]);
        let headers = trace.filter_map(|(name, value)| Some((name, value.clone()?))).collect();
        let (path, body) = form(&again);
        Ok(MigrationCall { path, body, headers })
    }
}

impl<'r> Again<'r> {
    fn new(record: &'r RequestRecord, so_far: &[i64]) -> Result<Again<'r>, NotMigrated> {
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
    fn check_exact(&self) -> Result<(), NotMigrated> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Grammar, Logprobs, Trace};

    fn record() -> RequestRecord {
        let sampling = Sampling {
            temperature: Some(0.0),
            max_tokens: Some(10),
            min_tokens: Some(4),
            stop: vec!["END".to_owned()],
            ..Sampling::default()
        };
        RequestRecord { rid: "r".to_owned(), sampling: Some(sampling), ..RequestRecord::default() }
            .with_prompt(&[1, 2])
    }

    fn refused(engine: Engine, record: &RequestRecord) -> String {
        MigrationCall::new(engine, record, &[3], false).unwrap_err().to_string()
    }

    #[test]
    fn an_engine_is_asked_for_the_rest_with_every_parameter_named() {
        let trace = Some(Trace { traceparent: Some("00-a".to_owned()), tracestate: None });
        let record = RequestRecord {
            lora: Some("sql".to_owned()),
            logprobs: Some(Logprobs { top: 2, prompt: true }),
            trace,
            ..record()
        };
        let call = MigrationCall::new(Engine::Sglang, &record, &[3, 4, 5], false).unwrap();
        let headers = vec![("traceparent", "00-a".to_owned())];
        assert_eq!((call.path, &call.headers), ("/generate", &headers));
        let expected = json!({
            "input_ids": [1, 2, 3, 4, 5], "stream": true, "lora_path": "sql",
            "return_logprob": true, "top_logprobs_num": 2, "logprob_start_len": -1,
            "sampling_params": {
                "temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "max_new_tokens": 7,
                "min_new_tokens": 1, "stop": ["END"], "stop_token_ids": [], "frequency_penalty": 0.0,
                "presence_penalty": 0.0, "repetition_penalty": 1.0, "ignore_eos": false,
            },
        });
        assert_eq!(call.body, expected);
        let call = MigrationCall::new(Engine::Vllm, &record, &[3, 4, 5, 6, 7], false).unwrap();
        assert_eq!(call.path, "/v1/completions");
        let expected = json!({
            "prompt": [1, 2, 3, 4, 5, 6, 7], "stream": true, "model": "sql", "logprobs": 2,
            "temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "max_tokens": 5,
            "min_tokens": 0, "stop": ["END"], "stop_token_ids": [], "frequency_penalty": 0.0,
            "presence_penalty": 0.0, "repetition_penalty": 1.0, "ignore_eos": false,
        });
        assert_eq!(call.body, expected);
    }

    #[test]
    fn a_request_without_a_limit_or_without_a_token_goes_on_as_it_was() {
        let sampling = Sampling { seed: Some(7), ..Sampling::default() };
        let record = RequestRecord { sampling: Some(sampling), ..record() };
        let call = MigrationCall::new(Engine::Sglang, &record, &[], false).unwrap();
        let params = &call.body["sampling_params"];
        assert_eq!((&params["max_new_tokens"], &params["sampling_seed"]), (&Value::Null, &json!(7)));
        assert_eq!(call.body["input_ids"], json!([1, 2]));
    }

    #[test]
    fn a_request_whose_state_was_in_the_engine_is_refused_with_the_reason() {
        let of = |change: &dyn Fn(&mut RequestRecord)| {
            let mut record = record();
            change(&mut record);
            refused(Engine::Vllm, &record)
        };
        let grammar = Grammar { kind: "regex".to_owned(), value: "a".to_owned(), enforced: true };
        assert_eq!(of(&|it| it.grammar = Some(grammar.clone())), "it has a grammar");
        assert_eq!(of(&|it| it.resumable = true), "it has a session in the engine");
        assert_eq!(
            of(&|it| it.unrecorded = vec!["logit_bias".into()]),
            "the journal does not have its logit_bias"
        );
        assert_eq!(of(&|it| it.sampling = None), "the journal does not have its sampling parameters");
        assert_eq!(
            of(&|it| it.prompt_ids = bytes::Bytes::new()),
            "the journal does not have the ids of its prompt"
        );
        let sampled = |change: &dyn Fn(&mut Sampling)| of(&|it| it.sampling.iter_mut().for_each(change));
        assert_eq!(sampled(&|it| it.n = Some(2)), "it has 2 samples");
        assert_eq!(sampled(&|it| it.max_tokens = Some(1)), "it had all 1 tokens that it may have");
        let without = "and stream.migration.resample is false";
        let why = format!("it is sampled without a seed, {without}");
        assert_eq!(sampled(&|it| it.temperature = Some(0.5)), why);
        let why = format!("its penalties count tokens of the answer, {without}");
        assert_eq!(sampled(&|it| it.presence_penalty = Some(0.5)), why);
        assert_eq!(refused(Engine::Smg, &record()), "SMG takes no such request");
        let mut sampled = record();
        sampled.sampling.as_mut().unwrap().temperature = None;
        assert!(MigrationCall::new(Engine::Vllm, &sampled, &[3], true).is_ok());
    }
}
