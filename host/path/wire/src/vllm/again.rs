//! `POST /v1/completions`, by which vLLM goes on with a request.

use serde_json::Value;

use crate::again::Again;

/// The path and the body.
pub(crate) fn again(again: &Again<'_>) -> (&'static str, Value) {
    let record = again.record;
    let mut body = again.sampling();
    body["prompt"] = again.ids.as_slice().into();
    body["stream"] = true.into();
    body["max_tokens"] = again.max_tokens.into();
    body["min_tokens"] = again.min_tokens.into();
    if let Some(seed) = again.sampling.seed {
        body["seed"] = seed.into();
    }
    if let Some(logprobs) = &record.logprobs {
        // Those of the prompt are refused in an answer that streams.
        body["logprobs"] = logprobs.top.into();
    }
    // Without a name, it is the base model.
    if let Some(lora) = &record.lora {
        body["model"] = lora.as_str().into();
    }
    if let Some(priority) = record.priority {
        body["priority"] = priority.into();
    }
    ("/v1/completions", body)
}
