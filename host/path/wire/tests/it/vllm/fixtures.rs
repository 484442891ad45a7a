//! Every fixture: decoded, passed, split, joined again.

use afterbay_wire::{BarrierKind, BatchKind, DecodedFrame, Finish, Ids, Matched, Wire, Wrapped};
use serde_json::Value;

use super::support::{all, as_vllm, barrier, batch, ids, json, read, sample, split_and_join};

/// The fields that a sample's frame decodes to, in the fixtures' notation.
fn fields(bytes: &bytes::Bytes) -> Option<Value> {
    let json = match read(bytes) {
        DecodedFrame::Batch(batch) => Some(batch.to_json(Wrapped::Keep)),
        DecodedFrame::Barrier(barrier) => barrier.to_json(Wrapped::Keep),
    };
    json.as_ref().map(as_vllm)
}

/// Values whose floats are rounded: serde_json does not read every digit.
fn rounded(json: &Value) -> Value {
    match json {
        Value::Number(number) if number.is_f64() => format!("{:.12e}", number.as_f64().unwrap()).into(),
        Value::Array(items) => items.iter().map(rounded).collect(),
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), rounded(value))).collect(),
        other => other.clone(),
    }
}

#[test]
fn every_fixture_decodes_to_its_json_and_keeps_its_bytes() {
    let (mut batches, mut idle, mut control) = (0, 0, 0);
    for sample in all() {
        let name = &sample.name;
        match read(&sample.bytes) {
            DecodedFrame::Batch(batch) => {
                batches += 1;
                assert_eq!(batch.bytes(), &sample.bytes, "{name}");
                assert_eq!(batch.kind(), BatchKind::Outputs);
                assert_eq!(
                    batch.wire(),
                    Wire::Msgpack { engine: afterbay_wire::Engine::Vllm, versions: "0.32.0".to_owned() },
                    "{name}"
                );
                assert_eq!(batch.unread(), [], "{name}");
            }
            DecodedFrame::Barrier(barrier) => {
                assert_eq!(barrier.bytes(), &sample.bytes, "{name}");
                match &barrier.kind {
                    BarrierKind::Idle { .. } => idle += 1,
                    BarrierKind::Control { tag } if tag == "ENGINE_CORE_DEAD" => {
                        assert!(!barrier.counted());
                        continue;
                    }
                    BarrierKind::Control { .. } => control += 1,
                    kind => panic!("{name}: {kind}"),
                }
                assert!(barrier.counted(), "{name}");
            }
        }
        assert_eq!(rounded(&fields(&sample.bytes).unwrap()), rounded(&sample.json["decoded"]), "{name}");
    }
    assert!(batches > 40 && idle > 5 && control > 5, "{batches} batches, {idle} idle, {control} control");
}

#[test]
fn every_fixture_taken_apart_and_joined_has_the_same_fields() {
    let mut joined = 0;
    for sample in all() {
        let DecodedFrame::Batch(batch) = read(&sample.bytes) else { continue };
        let again = split_and_join(&batch);
        // A request with two rows of one frame, which the engine does not send, has one then.
        if again.rows() < batch.rows() {
            assert_eq!((sample.name.as_str(), again.rows()), ("syn_nans_mm_miss", 1));
            continue;
        }
        assert_eq!(as_vllm(&json(&again)), as_vllm(&json(&batch)), "{}", sample.name);
        // A message of one part is the same bytes.
        if sample.bytes[0] != 0xc1 {
            assert_eq!(again.bytes(), &sample.bytes, "{}", sample.name);
        }
        joined += 1;
    }
    assert!(joined > 40, "{joined}");
}

#[test]
fn accessors_agree_with_the_json() {
    for sample in all() {
        let DecodedFrame::Batch(batch) = read(&sample.bytes) else { continue };
        let (name, rows) = (&sample.name, sample.json["decoded"]["outputs"].as_array().unwrap());
        assert_eq!(batch.rows() as usize, rows.len(), "{name}");
        assert!(batch.token_counts().eq((0..batch.rows()).map(|row| batch.tokens(row))), "{name}");
        assert!(batch.finishes().eq((0..batch.rows()).map(|row| batch.finish(row))), "{name}");
        let mut all = Ids::default();
        batch.output_ids(&mut all);
        let mut first_rows = 0;
        for (row, json) in (0..).zip(rows) {
            let expected: Vec<i64> =
                json["new_token_ids"].as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect();
            assert_eq!(batch.rid(row), json["request_id"], "{name}");
            assert_eq!((all.row(row), ids(&batch, row)), (&expected[..], expected.clone()), "{name}");
            assert_eq!(batch.tokens(row) as usize, expected.len(), "{name}");
            assert_eq!(
                batch.prompt_tokens(row),
                json["prefill_stats"]["num_prompt_tokens"].as_u64(),
                "{name}"
            );
            assert_eq!(batch.is_first(row), !json["prefill_stats"].is_null(), "{name}");
            first_rows += u32::from(batch.is_first(row));
            let stop = &json["stop_reason"];
            let matched = stop.as_i64().map(Matched::Token).or(stop.as_str().map(Matched::Text));
            let finish = match json["finish_reason"].as_str() {
                None => Finish::Running,
                Some("STOP") => Finish::Stop { matched: matched.unwrap_or(Matched::None) },
                Some("LENGTH") => Finish::Length,
                Some("ABORT") => Finish::Abort,
                Some("ERROR") => Finish::Error,
                Some(_) => Finish::Other,
            };
            assert_eq!(batch.finish(row), finish, "{name}");
            assert_eq!((batch.completion_tokens(row), batch.text(row)), (None, None), "{name}");
        }
        assert_eq!(batch.first_rows(), first_rows, "{name}");
        assert!(!batch.has_health_check(), "{name}");
    }
}

#[test]
fn frames_without_rows_say_what_they_are() {
    for (name, tag) in [
        ("engine_core_dead", "ENGINE_CORE_DEAD"),
        ("util_is_sleeping-000", "utility_output"),
        ("util_collective_rpc_fail-000", "utility_output"),
        ("syn_wave_complete", "wave_complete"),
        ("syn_start_wave", "start_wave"),
    ] {
        let barrier = barrier(&sample(name).bytes);
        assert_eq!(barrier.kind, BarrierKind::Control { tag: tag.to_owned() }, "{name}");
        assert!(!barrier.hides_rows(), "{name}");
    }
    let stats = barrier(&sample("plain_length-005").bytes);
    assert_eq!(stats.kind, BarrierKind::Idle { kind: BatchKind::Outputs });
    assert_eq!(stats.load().unwrap().running, 0);
}

#[test]
fn ended_requests_and_the_load_are_told_by_batches_and_barriers() {
    let finished = barrier(&sample("syn_finished_only").bytes);
    let mut names: Vec<&str> = finished.finished_requests().collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "b"]);
    let both = batch(&sample("syn_nans_mm_miss").bytes);
    assert_eq!(both.finished_requests().collect::<Vec<_>>(), ["cmpl-x-0-0a1b2c3d"]);
    let load = batch(&sample("plain_length-000").bytes).load().unwrap();
    assert_eq!((load.running, load.waiting), (1, 0));
    assert!(load.kv_cache_usage > 0.0001 && load.kv_cache_usage < 0.0002);
    assert_eq!(batch(&sample("syn_no_stats").bytes).load(), None);
}

#[test]
fn a_row_that_is_not_there_is_empty() {
    let batch = batch(&sample("plain_length-001").bytes);
    assert_eq!((batch.rid(1), batch.tokens(1), batch.prompt_tokens(1)), ("", 0, None));
    assert_eq!((batch.finish(1), batch.is_first(1)), (Finish::Running, false));
}
