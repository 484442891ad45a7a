//! SGLang's file: its path, and the payload of a slot, a `LoadSnapshot` as a msgpack map (sglang 0.5.23,
//! `srt/managers/load_snapshot.py`).

use std::path::{Path, PathBuf};

use blake2::digest::consts::U4;
use blake2::{Blake2s, Digest};
use serde::Deserialize;

use crate::signals::hub::ReadFailure;
use crate::signals::values::{LoadValues, count, ratio};

/// A number of any type, because Python's writers mix types (-1 for a float). `None` for nil.
type Number = Option<f64>;

/// The path of the LoadSnapshot file of an SGLang server, as its `shm_path_for` makes it (sglang 0.5.23,
/// `srt/managers/load_snapshot.py`): `/dev/shm/sglang_loads_<name>_<blake2s of the id, 4 bytes, in hex>.shm`.
/// The name is the last path component of the id; characters other than letters, digits, `.`, `_` and `-`
/// become `_`.
pub fn instance_path(instance_id: &str) -> PathBuf {
    let name = instance_id.trim_end_matches('/').rsplit('/').next().filter(|name| !name.is_empty());
    let name: String = name
        .unwrap_or("default")
        .chars()
        .map(|c| if c.is_alphanumeric() || "._-".contains(c) { c } else { '_' })
        .collect();
    let digest: String =
        Blake2s::<U4>::digest(instance_id.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    Path::new("/dev/shm").join(format!("sglang_loads_{name}_{digest}.shm"))
}

/// The map. Unknown keys are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SlotPayload {
    timestamp: f64,
    dp_rank: u32,
    num_running_reqs: Number,
    num_waiting_reqs: Number,
    token_usage: Number,
}

/// The content of a slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Measured {
    pub values: LoadValues,
    /// The time of measurement on the scheduler's clock.
    pub unix_ns: u64,
}

/// Decodes a payload. A missing key is 0, because SGLang leaves out default values.
pub(crate) fn decode(payload: &[u8], dp_rank: u32) -> Result<Measured, ReadFailure> {
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
    let values = LoadValues {
        running: or_zero(payload.num_running_reqs),
        waiting: or_zero(payload.num_waiting_reqs),
        kv_cache_usage: payload.token_usage.map_or(Some(0.0), ratio),
    };
    // As one float it would be 256 ns off.
    let (seconds, rest) = (payload.timestamp.trunc(), payload.timestamp.fract());
    let unix_ns = seconds as u64 * 1_000_000_000 + (rest * 1e9) as u64;
    Ok(Measured { values, unix_ns })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn packed(value: &Value) -> Vec<u8> {
        rmp_serde::to_vec(value).unwrap()
    }

    #[test]
    fn a_missing_field_is_0() {
        let bytes = packed(&json!({"timestamp": 1.5, "num_running_reqs": 3}));
        let measured = decode(&bytes, 0).unwrap();
        assert_eq!(measured.unix_ns, 1_500_000_000);
        let LoadValues { running, waiting, kv_cache_usage } = measured.values;
        assert_eq!((running, waiting, kv_cache_usage), (Some(3), Some(0), Some(0.0)));
    }

    #[test]
    fn the_path_of_an_instance_is_that_of_its_server() {
        // The path that `shm_path_for` of sglang 0.5.23 makes.
        let path = "/dev/shm/sglang_loads_0123456789ab_042e6e5d.shm";
        assert_eq!(instance_path("0123456789ab"), Path::new(path));
    }

    #[test]
    fn unknown_keys_and_other_types_of_numbers_are_accepted() {
        let bytes = packed(&json!({
            "timestamp": 2, "num_running_reqs": 3.0, "token_usage": -1, "num_waiting_reqs": -5,
            "tomorrow": {"a": [1, null, {"b": "c"}]}, "memory": null,
        }));
        let LoadValues { running, waiting, kv_cache_usage } = decode(&bytes, 0).unwrap().values;
        assert_eq!((running, waiting, kv_cache_usage), (Some(3), None, None));
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
            let Err(ReadFailure::Invalid(why)) = decode(&bytes, 0) else { panic!("{expected}") };
            assert!(why.contains(expected), "{why:?}, expected {expected:?}");
        }
        let wrong = packed(&json!({"timestamp": 1.0, "num_running_reqs": "many"}));
        let Err(ReadFailure::Invalid(why)) = decode(&wrong, 0) else { panic!("taken") };
        assert!(why.starts_with("the payload is not a LoadSnapshot: "), "{why}");
        let cut = packed(&json!({"timestamp": 1.0, "num_running_reqs": 300}));
        assert!(matches!(decode(&cut[..cut.len() - 1], 0), Err(ReadFailure::Invalid(_))));
        let fresh = packed(&json!({"dp_rank": 0}));
        assert!(matches!(decode(&fresh, 0), Err(ReadFailure::Unavailable(_))));
    }
}
