//! The rules of fields are complete.

use std::collections::BTreeSet;

use afterbay_wire::vllm::fields::{FRAME, ROW, STATS, STATS_INSIDE};
use afterbay_wire::{BatchKind, Wire};
use serde_json::Value;

use super::support::{all, batch, frame, row};

/// The fields of EngineCoreOutput that each version added, from vLLM's sources.
const ADDED: &[(&str, &[&str])] = &[
    ("0.28.0", &["mm_cache_miss_hashes", "new_sampling_mask"]),
    ("0.29.0", &["spec_decode_metrics"]),
    ("0.31.0", &["prompt_token_id_logprobs"]),
    ("0.33.0", &["error"]),
];

fn keys(json: &Value) -> impl Iterator<Item = &str> {
    json.as_object().into_iter().flatten().map(|(key, _)| key.as_str())
}

#[test]
fn every_field_of_every_known_version_has_a_rule() {
    let rules: Vec<&str> = ROW.iter().map(|field| field.name).collect();
    let added: Vec<&str> = ADDED.iter().flat_map(|(_, fields)| fields.iter().copied()).collect();
    assert_eq!(rules[14..], added);
    // 0.26 put a field into the middle.
    let before: Vec<&str> =
        rules[..14].iter().copied().filter(|name| *name != "ec_transfer_params").collect();
    let first = batch(&of_lengths(8, 13)).to_json(afterbay_wire::Wrapped::Keep);
    assert_eq!(keys(&first["outputs"][0]).collect::<BTreeSet<_>>(), before.into_iter().collect());
    let [mut rows, mut frames, mut stats] = [(); 3].map(|()| BTreeSet::new());
    let samples = all();
    for sample in &samples {
        let decoded = &sample.json["decoded"];
        frames.extend(keys(decoded));
        stats.extend(keys(&decoded["scheduler_stats"]));
        decoded["outputs"].as_array().into_iter().flatten().for_each(|row| rows.extend(keys(row)));
    }
    assert_eq!(rows, rules.into_iter().filter(|name| *name != "error").collect());
    assert_eq!(frames, FRAME.iter().map(|field| field.name).collect());
    assert_eq!(stats, STATS.iter().map(|stat| stat.name).collect());
    let spec = samples.iter().map(|sample| &sample.json["decoded"]["scheduler_stats"]["spec_decoding_stats"]);
    let spec: BTreeSet<&str> = spec.flat_map(keys).collect();
    assert!(STATS_INSIDE.iter().all(|stat| spec.contains(stat.name)), "{spec:?}");
}

/// A frame with a row of so many fields, of which the further ones are nil.
fn of_lengths(outer: usize, fields: usize) -> bytes::Bytes {
    let whole = frame(1, vec![row("r", &[7])]).encode();
    let json = batch(&whole).to_json(afterbay_wire::Wrapped::Keep);
    assert_eq!(json["outputs"][0]["request_id"], "r");
    let array = |len: usize| if len < 16 { vec![0x90 | len as u8] } else { vec![0xdc, 0, len as u8] };
    let nans = if fields == 13 { 12 } else { 13 };
    let row = (0..fields).flat_map(|at| match at {
        0 => b"\xa1r".to_vec(),
        1 => vec![0x91, 7],
        at if at == nans => vec![0],
        _ => vec![0xc0],
    });
    let rest = (2..outer).map(|_| 0xc0);
    array(outer)
        .into_iter()
        .chain([0, 0x91])
        .chain(array(fields))
        .chain(row)
        .chain(rest)
        .collect::<Vec<_>>()
        .into()
}

#[test]
fn the_lengths_of_the_arrays_tell_the_version() {
    for (outer, fields, versions) in [
        (8, 13, "0.25.0..0.25.1"),
        (8, 14, "0.26.0..0.27.1"),
        (8, 16, "0.28.0"),
        (8, 17, "0.29.0..0.30.0"),
        (8, 18, "0.31.0"),
        (9, 18, "0.32.0"),
        (9, 19, "0.33.0"),
        (9, 25, "unknown"),
        (12, 70, "unknown"),
    ] {
        let batch = batch(&of_lengths(outer, fields));
        assert_eq!(
            (batch.kind(), batch.wire()),
            (
                BatchKind::Outputs,
                Wire::Msgpack { engine: afterbay_wire::Engine::Vllm, versions: versions.to_owned() }
            )
        );
        assert_eq!((batch.rid(0), batch.tokens(0), batch.unread()), ("r", 1, &[][..]));
        assert_eq!(batch.take(&[0]).unwrap().bytes(), batch.bytes());
    }
}
