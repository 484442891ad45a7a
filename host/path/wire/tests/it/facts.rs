//! The facts of batches beside their tokens, against what the real engines decoded.

use afterbay_wire::synth::{SynthBatch, SynthRow, SynthWire};
use afterbay_wire::{
    Batch, BatchKind, DecodedFrame, Drafts, Layouts, RoutedExperts, SamplingMask, TopLogprobs, WeightSpan,
    decode,
};
use serde_json::{Value, json};

use crate::joins::one_row;
use crate::samples::{all, batch, plain, sample};
use crate::vllm::support;

fn floats(values: &Value) -> Option<Vec<f32>> {
    values.as_array()?.iter().map(|value| Some(value.as_f64()? as f32)).collect()
}

/// The candidates in the place of each new token. `None`: the row has none.
fn top_logprobs(batch: &Batch, row: u32) -> Option<Vec<Vec<(i64, f32)>>> {
    let mut top = TopLogprobs::default();
    let is_known = batch.top_logprobs(row, &mut top);
    let places = top.places().map(Iterator::collect).collect();
    assert!(is_known || top == TopLogprobs::default(), "{top:?}");
    is_known.then_some(places)
}

/// Lists of ids and logprobs as the candidates of places.
fn places(ids: &Value, logprobs: &Value) -> Vec<Vec<(i64, f32)>> {
    let (ids, logprobs) = (ids.as_array().unwrap().iter(), logprobs.as_array().unwrap().iter());
    let place = |(ids, logprobs): (&Value, &Value)| {
        let ids = ids.as_array().into_iter().flatten().map(|id| id.as_i64().unwrap());
        ids.zip(floats(logprobs).unwrap_or_default()).collect()
    };
    ids.zip(logprobs).map(place).collect()
}

#[test]
fn the_most_probable_tokens_of_sglang_are_those_that_sglang_decoded() {
    let mut seen = 0;
    for sample in all() {
        let (Some(batch), Some(json)) = (batch(&sample), &sample.json) else { continue };
        let json = plain(json);
        for row in 0..batch.rows() {
            let at = row as usize;
            let [ids, logprobs] =
                ["output_top_logprobs_idx", "output_top_logprobs_val"].map(|name| &json[name][at]);
            let known = ids.is_array().then(|| places(ids, logprobs));
            let known = known.filter(|known| known.len() == batch.tokens(row) as usize);
            assert_eq!(top_logprobs(&batch, row), known, "{} {row}", sample.name);
            seen += usize::from(known.is_some_and(|known| known.iter().any(|place| !place.is_empty())));
        }
    }
    assert!(seen > 2, "{seen}");
    for name in ["frames/tokid_logprobs.msgpack", "frames/tokid_logprobs.pickle"] {
        let known = vec![vec![(11, -0.25), (12, -2.0), (13, -3.5)]];
        assert_eq!(top_logprobs(&batch(&sample(name)).unwrap(), 0), Some(known), "{name}");
    }
}

#[test]
fn the_most_probable_tokens_of_vllm_are_those_that_vllm_decoded_but_for_the_tokens_own() {
    let mut seen = 0;
    for sample in support::all() {
        let DecodedFrame::Batch(batch) = support::read(&sample.bytes) else { continue };
        for row in 0..batch.rows() {
            let lists = &sample.json["decoded"]["outputs"][row as usize]["new_logprobs"];
            let known = lists.is_object().then(|| {
                let known = places(&lists["logprob_token_ids"]["data"], &lists["logprobs"]["data"]);
                known.into_iter().map(|place| place[1..].to_vec()).collect::<Vec<_>>()
            });
            assert_eq!(top_logprobs(&batch, row), known, "{} {row}", sample.name);
            seen += usize::from(known.is_some());
        }
    }
    assert!(seen > 5, "{seen}");
}

#[test]
fn counts_of_reasoning_and_drafts_are_read_where_an_engine_keeps_them() {
    for name in ["frames/tokid_spec.msgpack", "frames/tokid_spec.pickle"] {
        let batch = batch(&sample(name)).unwrap();
        let accepted: Vec<_> = (0..3).map(|row| batch.drafts(row).accepted).collect();
        assert_eq!(accepted, [Some(8), Some(7), Some(9)], "{name}");
    }
    let batch = one_row("a", 1, &[("reasoning_tokens", json!([5]))]);
    assert_eq!((batch.reasoning_tokens(0), batch.reasoning_tokens(1)), (Some(5), None));
    assert_eq!(batch.drafts(0), Drafts::default());
    // One step accepted no draft token, two steps accepted one, and three accepted four.
    let batch = support::batch(&support::sample("syn_spec_counts").bytes);
    assert_eq!(batch.drafts(0), Drafts { drafted: Some(24), accepted: Some(14) });
    assert_eq!(batch.reasoning_tokens(0), None);
}

#[test]
fn facts_of_sglang_are_those_that_sglang_decoded() {
    let (mut cached, mut logprobs, mut versions) = (0, 0, 0);
    for sample in all() {
        let (Some(batch), Some(json)) = (batch(&sample), &sample.json) else { continue };
        let json = plain(json);
        for row in 0..batch.rows() {
            let at = row as usize;
            let known = json["cached_tokens"].get(at).and_then(Value::as_u64);
            assert_eq!(batch.cached_tokens(row), known, "{}", sample.name);
            cached += usize::from(known.is_some_and(|known| known > 0));
            let spans = json.get("weight_versions").and_then(|all| all.get(at)?.as_array()?.last());
            let version = spans.and_then(|span| span[0].as_str());
            assert_eq!(batch.weight_version(row), version, "{}", sample.name);
            versions += usize::from(version.is_some());
            let mut read = Vec::new();
            let known = json.get("output_token_logprobs_val").and_then(|all| floats(all.get(at)?));
            let known = known.filter(|known| known.len() == batch.tokens(row) as usize);
            let is_known = batch.logprobs(row, &mut read);
            match known.filter(|known| !known.is_empty()) {
                Some(known) => {
                    assert_eq!((is_known, &read), (true, &known), "{}", sample.name);
                    logprobs += 1;
                }
                None => assert!(read.is_empty(), "{}", sample.name),
            }
        }
    }
    assert!(cached > 5 && logprobs > 5 && versions > 5, "{cached} {logprobs} {versions}");
}

#[test]
fn the_first_tokens_time_is_read_from_the_metrics_of_sglang_in_both_encodings() {
    for name in ["frames/tokid_n3_time_stats_metrics.pickle", "frames/tokid_n3_time_stats_metrics.msgpack"] {
        let batch = batch(&sample(name)).unwrap();
        let times: Vec<Option<u64>> = (0..batch.rows()).map(|row| batch.first_token_ns(row)).collect();
        // The fixture's rows were queued at 1000, 1001 and 1002 s, each with its first token a second after its prefill began.
        assert_eq!(times, [Some(1_000_000_000); 3], "{name}");
    }
}

#[test]
fn synthetic_rows_have_the_first_tokens_time_that_they_were_given() {
    for wire in [SynthWire::Msgpack, SynthWire::Pickle, SynthWire::EngineCore] {
        let row = |first_token_ns| SynthRow {
            rid: "r".to_owned(),
            ids: vec![1],
            completion_tokens: 1,
            first_token_ns,
            ..SynthRow::default()
        };
        let rows = vec![row(Some(250_000_000)), row(None)];
        let frame = SynthBatch { rows }.encode(BatchKind::TokenId, wire).unwrap();
        let DecodedFrame::Batch(batch) = decode(frame, &Layouts::builtin()) else { panic!("no batch") };
        let times = [batch.first_token_ns(0), batch.first_token_ns(1)];
        assert_eq!(times, [Some(250_000_000), None], "{wire:?}");
    }
}

#[test]
fn facts_of_vllm_are_those_that_vllm_decoded() {
    let (mut cached, mut logprobs, mut times) = (0, 0, 0);
    for sample in support::all() {
        let DecodedFrame::Batch(batch) = support::read(&sample.bytes) else { continue };
        let decoded = &sample.json["decoded"];
        let outputs = &decoded["outputs"];
        let version = decoded["weight_version"].as_str();
        for row in 0..batch.rows() {
            let json = &outputs[row as usize];
            let stats = &json["prefill_stats"];
            assert_eq!(batch.cached_tokens(row), stats["num_cached_tokens"].as_u64(), "{}", sample.name);
            cached += usize::from(stats["num_cached_tokens"].as_u64() > Some(0));
            assert_eq!(batch.weight_version(row), version, "{}", sample.name);
            let mut read = Vec::new();
            let known = json["new_logprobs"]["logprobs"]["data"].as_array();
            let known: Option<Vec<f32>> =
                known.map(|rows| rows.iter().map(|row| row[0].as_f64().unwrap() as f32).collect());
            assert_eq!(batch.logprobs(row, &mut read), known.is_some(), "{}", sample.name);
            assert_eq!(read, known.unwrap_or_default(), "{}", sample.name);
            logprobs += read.len();
            let queued = json["events"].as_array().and_then(|all| {
                let queued = all.iter().find(|event| event["type"] == "QUEUED")?;
                queued["timestamp"].as_f64()
            });
            let known = queued.filter(|_| stats.is_object());
            let known = known.map(|queued| decoded["timestamp"].as_f64().unwrap() - queued);
            let read = batch.first_token_ns(row);
            assert_eq!(read.is_some(), known.is_some(), "{}", sample.name);
            if let (Some(read), Some(known)) = (read, known) {
                assert!((read as f64 / 1e9 - known).abs() < 1e-6, "{}: {read} is not {known} s", sample.name);
                times += 1;
            }
        }
    }
    assert!(cached > 0 && logprobs > 5 && times > 2, "{cached} {logprobs} {times}");
}

#[test]
fn the_experts_of_a_request_are_read_from_each_engine_and_encoding() {
    for name in ["frames/tokid_routed_experts.msgpack", "frames/tokid_routed_experts.pickle"] {
        let batch = batch(&sample(name)).unwrap();
        let experts = RoutedExperts { shape: vec![2, 3, 2], experts: (0..12).collect() };
        assert_eq!((batch.routed_experts(0), batch.routed_experts(1)), (Some(experts), None), "{name}");
    }
    let batch = support::batch(&support::sample("syn_routed_experts").bytes);
    let experts = RoutedExperts { shape: vec![1, 4, 8], experts: vec![1; 32] };
    assert_eq!(batch.routed_experts(0), Some(experts));
}

#[test]
fn the_candidates_of_each_token_are_read_in_each_form_and_a_row_without_has_none() {
    let of_vllm = support::batch(&support::sample("syn_sampling_mask").bytes);
    let expected = |logprobs| SamplingMask { lengths: vec![3], token_ids: vec![1, 2, 3], logprobs };
    assert_eq!(of_vllm.sampling_mask(0), Some(expected(Vec::new())));
    // Up to SGLang 0.5.20.
    let with = |mask| one_row("a", 1, &[("output_token_sampling_mask", mask)]);
    let of_lists = with(json!([[[1, 2, 3]]]));
    assert_eq!(of_lists.sampling_mask(0), Some(expected(Vec::new())));
    assert_eq!(with(json!([null])).sampling_mask(0), None);
}

#[test]
fn the_versions_of_the_weights_are_spans_of_a_requests_tokens() {
    let batch = one_row("a", 5, &[("weight_versions", json!([[["v1", 0, 2], ["v2", 2, 5]]]))]);
    let span = |version: &str, start, end| WeightSpan { version: version.into(), start, end };
    assert_eq!(batch.weight_spans(0), Some(vec![span("v1", 0, 2), span("v2", 2, 5)]));
    assert_eq!(batch.weight_version(0), Some("v2"));
    for wire in ["msgpack", "pickle"] {
        let of_wire = all().into_iter().filter(|sample| sample.name.starts_with(&format!("real/{wire}")));
        let batches = of_wire.filter_map(|sample| self::batch(&sample));
        let spans = batches.flat_map(|batch| batch.weight_spans(0)).flatten();
        let versions: Vec<_> = spans.map(|span| (span.version, span.start)).collect();
        assert!(versions.contains(&("default".into(), 0)), "{wire} {versions:?}");
    }
}
