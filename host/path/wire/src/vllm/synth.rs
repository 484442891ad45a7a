//! Synthetic frames of vLLM for the simulator, the tests and the benches: every field as vLLM 0.32 writes it. A test
//! shows that the real vLLM reads them.

use bytes::Bytes;

use super::fields::{
    ENGINE_INDEX, EVENTS, FINISH_REASON, FINISHED_REQUESTS, FRAME, NEW_LOGPROBS, NEW_TOKEN_IDS, OUTPUTS,
    PREFILL_STATS, QUEUED, REQUEST_ID, ROW, SCHEDULER_STATS, STATS, STOP_REASON, TIMESTAMP,
};
use crate::pack;

/// The number of fields of a row of 0.32. `error` is of 0.33.
const ROW_FIELDS: usize = 18;

/// The weights that vLLM starts with.
const WEIGHT_VERSION: &str = "default";

/// A synthetic row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SynthOutput {
    /// The request's name.
    pub request_id: String,
    /// The new ids.
    pub new_token_ids: Vec<i64>,
    /// For each id, the logprobs of this number of other ids beside its own. `None`: the request asks for none.
    pub logprobs: Option<u32>,
    /// The value of `finish_reason`, if the row is its request's last: 0 stop, 1 length, 2 abort, 3 error, 4
    /// repetition.
    pub finish_reason: Option<u8>,
    /// The stop token that ended the request.
    pub stop_token: Option<i64>,
    /// The text of `stop_reason`, if no stop token ended the request.
    pub stop_text: Option<String>,
    /// The length of the prompt in tokens, in a request's first row.
    pub prompt_tokens: Option<u64>,
    /// Time from the queue to this frame, in nanoseconds, in a request's first row.
    pub first_token_ns: Option<u64>,
}

/// A synthetic frame.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SynthOutputs {
    /// The engine's number.
    pub engine_index: u32,
    /// The rows. An empty list makes a frame of statistics.
    pub rows: Vec<SynthOutput>,
    /// The time of the engine's monotonic clock, in seconds.
    pub timestamp: f64,
    /// The requests that run, the requests that wait, and the used share of the KV cache, from 0 to 1. `None`: no
    /// statistics, as with `--disable-log-stats`.
    pub stats: Option<(u32, u32, f64)>,
    /// The requests that ended. Empty: the engine names none.
    pub finished_requests: Vec<String>,
    /// The call whose answer the frame has: nothing, as of a method that returns `None`.
    pub answers: Option<u64>,
}

impl SynthOutputs {
    /// Writes the frame.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(640 + 96 * self.rows.len());
        pack::write::array(&mut out, FRAME.len());
        for (at, field) in FRAME.iter().enumerate() {
            match at {
                ENGINE_INDEX => pack::write::int(&mut out, self.engine_index.into()),
                OUTPUTS => {
                    pack::write::array(&mut out, self.rows.len());
                    self.rows.iter().for_each(|row| row.write(&mut out, self.timestamp));
                }
                SCHEDULER_STATS => self.write_stats(&mut out),
                TIMESTAMP => pack::write::float(&mut out, self.timestamp),
                FINISHED_REQUESTS if !self.finished_requests.is_empty() => {
                    pack::write::array(&mut out, self.finished_requests.len());
                    self.finished_requests.iter().for_each(|rid| pack::write::str(&mut out, rid));
                }
                _ => match (field.name, self.answers) {
                    ("utility_output", Some(call)) => {
                        pack::write::array(&mut out, 3);
                        out.push(0xcf);
                        out.extend_from_slice(&call.to_be_bytes());
                        out.extend_from_slice(&[0xc0, 0x92, 0xc0, 0xc0]);
                    }
                    ("weight_version", None) => pack::write::str(&mut out, WEIGHT_VERSION),
                    _ => pack::write::nil(&mut out),
                },
            }
        }
        out.into()
    }

    fn write_stats(&self, out: &mut Vec<u8>) {
        let Some((running, waiting, usage)) = self.stats else { return pack::write::nil(out) };
        pack::write::map(out, STATS.len());
        for stat in STATS {
            pack::write::str(out, stat.name);
            match stat.name {
                "num_running_reqs" => pack::write::int(out, running.into()),
                "num_waiting_reqs" => pack::write::int(out, waiting.into()),
                "kv_cache_usage" => pack::write::float(out, usage),
                "num_skipped_waiting_reqs" | "step_counter" | "current_wave" => pack::write::int(out, 0),
                "num_kv_fetch_reqs_by_stage" => {
                    counts(out, &["waiting_to_start", "in_progress", "completed_waiting"], 0);
                }
                "prefix_cache_stats" => self.write_prefix_cache(out),
                "kv_cache_eviction_events" => pack::write::array(out, 0),
                "waiting_lora_adapters" | "running_lora_adapters" => pack::write::map(out, 0),
                _ => pack::write::nil(out),
            }
        }
    }

    /// The prompts of the frame's first rows, of which nothing was cached.
    fn write_prefix_cache(&self, out: &mut Vec<u8>) {
        let prompts = || self.rows.iter().filter_map(|row| row.prompt_tokens);
        pack::write::map(out, 8);
        pack::write::str(out, "reset");
        out.push(0xc2);
        for (name, count) in
            [("requests", prompts().count() as i64), ("queries", prompts().sum::<u64>() as i64)]
        {
            pack::write::str(out, name);
            pack::write::int(out, count);
        }
        for name in ["hits", "preempted_requests", "preempted_queries", "preempted_hits"] {
            pack::write::str(out, name);
            pack::write::int(out, 0);
        }
        pack::write::str(out, "hits_by_source");
        pack::write::map(out, 0);
    }
}

/// Writes a map in which each name has the same count.
fn counts(out: &mut Vec<u8>, names: &[&str], count: i64) {
    pack::write::map(out, names.len());
    for name in names {
        pack::write::str(out, name);
        pack::write::int(out, count);
    }
}

impl SynthOutput {
    /// `timestamp`: the frame's.
    fn write(&self, out: &mut Vec<u8>, timestamp: f64) {
        pack::write::array(out, ROW_FIELDS);
        for (at, field) in ROW.iter().take(ROW_FIELDS).enumerate() {
            match at {
                REQUEST_ID => pack::write::str(out, &self.request_id),
                NEW_TOKEN_IDS => {
                    pack::write::array(out, self.new_token_ids.len());
                    self.new_token_ids.iter().for_each(|id| pack::write::int(out, *id));
                }
                NEW_LOGPROBS => self.write_logprobs(out),
                EVENTS if let Some(first_token_ns) = self.first_token_ns => {
                    pack::write::array(out, 1);
                    pack::write::map(out, 2);
                    pack::write::str(out, "type");
                    pack::write::int(out, QUEUED);
                    pack::write::str(out, "timestamp");
                    pack::write::float(out, timestamp - first_token_ns as f64 / 1e9);
                }
                FINISH_REASON if let Some(reason) = self.finish_reason => {
                    pack::write::int(out, reason.into())
                }
                STOP_REASON => match (self.stop_token, &self.stop_text) {
                    (Some(token), _) => pack::write::int(out, token),
                    (None, Some(text)) => pack::write::str(out, text),
                    (None, None) => pack::write::nil(out),
                },
                _ => match self.prompt_tokens.filter(|_| at == PREFILL_STATS) {
                    Some(tokens) => self.write_prefill(out, tokens),
                    None => out.push(field.absent.byte()),
                },
            }
        }
    }

    fn write_prefill(&self, out: &mut Vec<u8>, tokens: u64) {
        pack::write::map(out, 6);
        for name in ["num_prompt_tokens", "num_computed_tokens"] {
            pack::write::str(out, name);
            pack::write::int(out, tokens as i64);
        }
        let cached = [
            "num_cached_tokens",
            "num_local_cached_tokens",
            "num_external_cached_tokens",
            "num_cache_creation_tokens",
        ];
        for name in cached {
            pack::write::str(out, name);
            pack::write::int(out, 0);
        }
    }

    fn write_logprobs(&self, out: &mut Vec<u8>) {
        let Some(others) = self.logprobs.filter(|_| !self.new_token_ids.is_empty()) else {
            return pack::write::nil(out);
        };
        let (tokens, columns) = (self.new_token_ids.len(), 1 + others as usize);
        let ids = self.new_token_ids.iter();
        let all_ids = ids.clone().flat_map(|id| std::iter::once(*id).chain(0..i64::from(others)));
        pack::write::array(out, 4);
        array(out, "<i4", &[tokens, columns], all_ids.flat_map(|id| (id as i32).to_le_bytes()).collect());
        let logprobs =
            ids.clone().flat_map(|id| (0..columns).map(move |at| -0.5 - at as f32 - (id % 7) as f32));
        array(out, "<f4", &[tokens, columns], logprobs.flat_map(f32::to_le_bytes).collect());
        array(out, "<i8", &[tokens], ids.flat_map(|id| (1 + id % 5).to_le_bytes()).collect());
        pack::write::nil(out);
    }
}

fn array(out: &mut Vec<u8>, dtype: &str, shape: &[usize], data: Vec<u8>) {
    pack::write::array(out, 3);
    pack::write::str(out, dtype);
    pack::write::array(out, shape.len());
    shape.iter().for_each(|size| pack::write::int(out, *size as i64));
    pack::write::ext(out, 3, data.len());
    out.extend_from_slice(&data);
}
