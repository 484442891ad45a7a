//! The HTTP request by which an engine goes on with a request of an engine that died: its prompt is the prompt and the tokens so far.

use afterbay_types::Engine;
use serde_json::Value;

use crate::again::{Again, NotMigrated};
use crate::request::RequestRecord;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Grammar, Logprobs, Sampling, Trace};
    use serde_json::json;

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
