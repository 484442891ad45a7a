//! `POST /generate`, by which SGLang goes on with a request.

use serde_json::{Value, json};

use crate::again::Again;

/// The path and the body.
pub(crate) fn again(again: &Again<'_>) -> (&'static str, Value) {
    let record = again.record;
    let mut params = again.sampling();
    params["max_new_tokens"] = again.max_tokens.into();
    params["min_new_tokens"] = again.min_tokens.into();
    if let Some(seed) = again.sampling.seed {
        params["sampling_seed"] = seed.into();
    }
    let mut body = json!({"input_ids": again.ids, "stream": true, "sampling_params": params});
    if let Some(logprobs) = &record.logprobs {
        // Those of the prompt came with the first row.
        body["return_logprob"] = true.into();
        body["top_logprobs_num"] = logprobs.top.into();
        body["logprob_start_len"] = (-1).into();
    }
    let named = [("lora_path", record.lora.as_deref()), ("routing_key", record.routing_key.as_deref())];
    for (name, value) in named {
        value.into_iter().for_each(|value| body[name] = value.into());
    }
    if let Some(priority) = record.priority {
        body["priority"] = priority.into();
    }
    ("/generate", body)
}
