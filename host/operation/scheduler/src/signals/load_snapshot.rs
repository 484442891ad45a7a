//! Decodes the payload of a slot: SGLang's `LoadSnapshot`, a msgpack map (sglang 0.5.23,
//! `srt/managers/load_snapshot.py`).

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::signals::hub::ReadFailure;
use crate::signals::values::{LoadValues, count, ratio};

/// A number of any type, because Python's writers mix types (-1 for a float). `None` for nil.
type Number = Option<f64>;

/// `QueueMetrics`: an array of waiting, grammar, paused, retracted, and what later versions append.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum QueueMetrics {
    Array(Vec<Number>),
    /// Another version may write something else. The rest of the load is still valid.
    Other(IgnoredAny),
}

/// The map. Unknown keys are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SlotPayload {
    timestamp: f64,
    dp_rank: u32,
    num_running_reqs: Number,
    num_waiting_reqs: Number,
    num_waiting_uncached_tokens: Number,
    num_used_tokens: Number,
    num_total_tokens: Number,
    num_active_tokens: Number,
    max_total_num_tokens: Number,
    max_running_requests: Number,
    token_usage: Number,
    gen_throughput: Number,
    cache_hit_rate: Number,
    utilization: Number,
    queues: Option<QueueMetrics>,
}

/// The content of a slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Measured {
    pub values: LoadValues,
    /// The time of measurement on the scheduler's clock.
    pub unix_ns: u64,
    /// Whether a field is present that SGLang fills only with `--enable-metrics`.
    pub has_metrics: bool,
}

/// Decodes a payload. A missing key is 0, because SGLang leaves out default values. Throughput, hit rate,
/// utilization and retractions are also 0 on a server without `--enable-metrics`. They count only if
/// `has_metrics`, which any payload of the same file may show.
pub(crate) fn decode(payload: &[u8], dp_rank: u32, has_metrics: bool) -> Result<Measured, ReadFailure> {
    let is_map = matches!(payload.first(), Some(0x80..=0x8f | 0xde | 0xdf));
    if !is_map {
        let found = payload.first().map_or("is empty".to_owned(), |byte| format!("begins with {byte:#04x}"));
        return Err(ReadFailure::Invalid(format!("the payload {found}, expected a msgpack map")));
    }
    let payload: SlotPayload = rmp_serde::from_slice(payload)
        .map_err(|error| ReadFailure::Invalid(format!("the payload is not a LoadSnapshot: {error}")))?;
    if payload.dp_rank != dp_rank {
        let found = payload.dp_rank;
        return Err(ReadFailure::Invalid(format!("the slot is of dp rank {found}, expected {dp_rank}")));
    }
    // The writer's constructor writes such a payload before any measurement.
    if payload.timestamp == 0.0 {
        return Err(ReadFailure::Unavailable("the scheduler has not measured yet".to_owned()));
    }
    // This limit, the year 2286, excludes an overflow below.
    if !(payload.timestamp > 0.0 && payload.timestamp < 1e10) {
        let found = payload.timestamp;
        return Err(ReadFailure::Invalid(format!("the timestamp is {found}, expected unix seconds")));
    }
    let or_zero = |number: Number| number.map_or(Some(0), count);
    let positive = |number: Number| number.and_then(count).filter(|value| *value > 0);
    let rates = [payload.gen_throughput, payload.cache_hit_rate, payload.utilization];
    let has_metrics = has_metrics || rates.iter().any(Option::is_some);
    let rate = |number: Number| number.map_or(has_metrics.then_some(0.0), ratio);
    let retracted = match &payload.queues {
        Some(QueueMetrics::Array(queues)) => queues.get(3).copied().flatten(),
        _ => None,
    };
    let values = LoadValues {
        num_running_reqs: or_zero(payload.num_running_reqs),
        num_waiting_reqs: or_zero(payload.num_waiting_reqs),
        num_waiting_uncached_tokens: or_zero(payload.num_waiting_uncached_tokens),
        num_used_tokens: or_zero(payload.num_used_tokens),
        num_total_tokens: or_zero(payload.num_total_tokens),
        num_active_tokens: or_zero(payload.num_active_tokens),
        max_total_num_tokens: positive(payload.max_total_num_tokens),
        max_running_requests: positive(payload.max_running_requests),
        token_usage: payload.token_usage.map_or(Some(0.0), ratio),
        gen_throughput: rate(payload.gen_throughput),
        cache_hit_rate: rate(payload.cache_hit_rate),
        utilization: rate(payload.utilization),
        num_retracted_reqs: retracted.and_then(count).filter(|_| has_metrics),
    };
    // As one float it would be 256 ns off.
    let (seconds, rest) = (payload.timestamp.trunc(), payload.timestamp.fract());
    let unix_ns = seconds as u64 * 1_000_000_000 + (rest * 1e9) as u64;
    Ok(Measured { values, unix_ns, has_metrics })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn packed(value: &Value) -> Vec<u8> {
        rmp_serde::to_vec(value).unwrap()
    }

    #[test]
    fn a_missing_field_is_0_unless_it_needs_enable_metrics() {
        let bytes = packed(&json!({"timestamp": 1.5, "num_running_reqs": 3, "queues": [1, 2, 3, 4]}));
        let measured = decode(&bytes, 0, false).unwrap();
        assert_eq!(measured.unix_ns, 1_500_000_000);
        let values = measured.values;
        assert_eq!((values.num_running_reqs, values.num_waiting_reqs), (Some(3), Some(0)));
        assert_eq!((values.token_usage, values.max_total_num_tokens), (Some(0.0), None));
        assert_eq!((values.gen_throughput, values.num_retracted_reqs), (None, None));
        let values = decode(&bytes, 0, true).unwrap().values;
        assert_eq!((values.gen_throughput, values.num_retracted_reqs), (Some(0.0), Some(4)));
    }

    #[test]
    fn unknown_keys_and_other_types_of_numbers_are_accepted() {
        let bytes = packed(&json!({
            "timestamp": 2, "num_running_reqs": 3.0, "gen_throughput": 7, "utilization": -1, "queues": [],
            "tomorrow": {"a": [1, null, {"b": "c"}]}, "memory": null, "num_used_tokens": -5,
        }));
        let measured = decode(&bytes, 0, false).unwrap();
        assert!(measured.has_metrics);
        let values = measured.values;
        assert_eq!((values.num_running_reqs, values.gen_throughput), (Some(3), Some(7.0)));
        assert_eq!((values.utilization, values.num_used_tokens), (None, None));
    }

    #[test]
    fn an_invalid_payload_is_refused_with_a_reason() {
        let cases: [(Vec<u8>, &str); 5] = [
            (vec![0x93, 1, 2, 3], "the payload begins with 0x93, expected a msgpack map"),
            (vec![], "the payload is empty, expected a msgpack map"),
            (packed(&json!({"timestamp": 1.0, "dp_rank": 1})), "the slot is of dp rank 1, expected 0"),
            (packed(&json!({"timestamp": -4.0})), "the timestamp is -4, expected unix seconds"),
            (packed(&json!({"timestamp": 1e300})), "expected unix seconds"),
        ];
        for (bytes, expected) in cases {
            let Err(ReadFailure::Invalid(why)) = decode(&bytes, 0, false) else { panic!("{expected}") };
            assert!(why.contains(expected), "{why:?}, expected {expected:?}");
        }
        let wrong = packed(&json!({"timestamp": 1.0, "num_running_reqs": "many"}));
        let Err(ReadFailure::Invalid(why)) = decode(&wrong, 0, false) else { panic!("taken") };
        assert!(why.starts_with("the payload is not a LoadSnapshot: "), "{why}");
        let cut = packed(&json!({"timestamp": 1.0, "num_running_reqs": 300}));
        assert!(matches!(decode(&cut[..cut.len() - 1], 0, false), Err(ReadFailure::Invalid(_))));
        let fresh = packed(&json!({"dp_rank": 0}));
        assert!(matches!(decode(&fresh, 0, false), Err(ReadFailure::Unavailable(_))));
    }
}
