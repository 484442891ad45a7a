//! Rows past the detokenizer, in every version.

use afterbay_wire::{Batch, BatchKind, DecodedFrame, Ids, Layouts, RowsError, decode};
use bytes::Bytes;
use serde_json::{Value, json};

use crate::samples::{all, batch, introduction, open, plain, read_batch, sample};

fn all_rows(batch: &Batch) -> Vec<u32> {
    (0..batch.rows()).collect()
}

fn textless(batch: &Batch) -> Batch {
    batch.without_detokenizing(&all_rows(batch)).unwrap()
}

/// The fixtures have the real detokenizer's BatchStrOutput of the same rows for each version.
#[test]
fn in_every_version_it_is_what_the_detokenizer_makes_but_for_the_text() {
    let mut compared = 0;
    for tokens in all().iter().filter(|sample| sample.name.contains("/tokid_n3.")) {
        let detokenized = sample(&tokens.name.replace("/tokid_n3.", "/str_n3."));
        let (batch, detokenized) = (batch(tokens).unwrap(), read_batch(&detokenized.bytes));
        let ours = textless(&batch);
        assert_eq!((ours.kind(), ours.wire()), (BatchKind::Str, detokenized.wire()), "{}", tokens.name);
        if tokens.name.starts_with("frames") {
            continue; // These two were not made from each other.
        }
        let (ours, mut theirs) = (plain(&open(&ours)), plain(&open(&detokenized)));
        theirs["output_strs"] = json!(["", "", ""]);
        for (name, column) in theirs.as_object().unwrap() {
            assert_eq!(&ours[name], column, "{name} of {}", tokens.name);
        }
        assert_eq!(ours.as_object().unwrap().len(), theirs.as_object().unwrap().len(), "{}", tokens.name);
        compared += 1;
    }
    // The pickles of 12 versions, and msgpack of the versions that have it.
    assert!(compared >= 19, "{compared}");
}

#[test]
fn every_frame_of_the_scheduler_passes_with_its_ids_counts_and_reasons() {
    let (mut ids, mut its_ids, mut passed) = (Ids::default(), Ids::default(), 0);
    for sample in all() {
        let Some(batch) = batch(&sample).filter(|batch| batch.kind() == BatchKind::TokenId) else { continue };
        let ours = textless(&batch);
        ours.output_ids(&mut ids);
        batch.output_ids(&mut its_ids);
        assert_eq!(ids, its_ids, "{}", sample.name);
        for row in 0..batch.rows() {
            assert_eq!(ours.text(row), Some(""), "{}", sample.name);
            assert_eq!(ours.rid(row), batch.rid(row));
            assert_eq!(ours.front_end(row), batch.front_end(row));
            assert_eq!(ours.finish(row), batch.finish(row), "{}", sample.name);
            assert_eq!(ours.completion_tokens(row), batch.completion_tokens(row));
            // A row alone equals the row among the others.
            let alone = batch.without_detokenizing(&[row]).unwrap();
            assert_eq!(open(&alone), open(&ours.take(&[row]).unwrap()), "row {row} of {}", sample.name);
        }
        passed += 1;
    }
    assert!(passed > 150, "{passed}");
}

#[test]
fn tensors_are_the_base64_that_the_detokenizer_makes() {
    for wire in ["msgpack", "pickle"] {
        let batch = read_batch(&sample(&format!("frames/tokid_routed_experts.{wire}")).bytes);
        let (before, after) = (open(&batch), open(&textless(&batch)));
        let tensors = before["routed_experts"].as_array().unwrap();
        let expected: Vec<_> = tensors.iter().map(|it| it.get("b64").cloned().unwrap_or_default()).collect();
        assert!(expected.iter().any(Value::is_string), "{before}");
        assert_eq!(after["routed_experts"], json!(expected));
    }
}

#[test]
fn ids_meant_for_the_detokenizer_reach_the_client_without_the_prompt() {
    for wire in ["msgpack", "pickle"] {
        let batch = read_batch(&sample(&format!("frames/tokid_output_ids_none.{wire}")).bytes);
        assert!(open(&batch)["output_ids"].is_null());
        let ours = textless(&batch);
        let (mut ids, mut expected) = (Ids::default(), Ids::default());
        ours.output_ids(&mut ids);
        batch.output_ids(&mut expected);
        assert_eq!(ids, expected);
        assert!(!ids.values.is_empty());
    }
}

#[test]
fn a_batch_that_is_not_on_the_way_to_a_detokenizer_is_refused() {
    for (name, kind) in [("str_n3", BatchKind::Str), ("emb_n2", BatchKind::Embedding)] {
        let batch = read_batch(&sample(&format!("frames/{name}.pickle")).bytes);
        assert_eq!(batch.without_detokenizing(&[0]).unwrap_err(), RowsError::NotTokenIds { kind });
    }
    let batch = read_batch(&sample("frames/tokid_n3.pickle").bytes);
    assert_eq!(batch.without_detokenizing(&[3]).unwrap_err(), RowsError::Row { row: 3, rows: 3 });
    assert_eq!(batch.without_detokenizing(&[1, 1]).unwrap_err(), RowsError::Row { row: 1, rows: 3 });
    assert_eq!(batch.without_detokenizing(&[]).unwrap_err(), RowsError::NoRows);
}

fn layout() -> Value {
    serde_json::from_str(include_str!("../../layouts/0.5.23.json")).unwrap()
}

fn read_by(bytes: &Bytes, layout: &Value) -> Batch {
    match decode(bytes.clone(), &Layouts::introduced(&introduction("sglang", "test", layout)).unwrap()) {
        DecodedFrame::Batch(batch) => batch,
        DecodedFrame::Barrier(barrier) => panic!("no batch but {:?}", barrier.kind),
    }
}

/// The bytes with one text replaced by another of the same length.
fn renamed(bytes: &Bytes, from: &str, to: &str) -> Bytes {
    let mut bytes = bytes.to_vec();
    let at = bytes.windows(from.len()).position(|it| it == from.as_bytes()).unwrap();
    bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    bytes.into()
}

#[test]
fn a_version_without_a_known_batch_str_output_is_refused() {
    let refused = |batch: &Batch, fields: usize| {
        assert_eq!(batch.without_detokenizing(&[0]).unwrap_err(), RowsError::NoTextLayout { fields });
    };
    let packed = sample("versions/0.5.23/tokid_n3.msgpack").bytes;
    let mut alone = layout();
    alone.as_object_mut().unwrap().remove("BatchStrOutput");
    refused(&read_by(&packed, &alone), 53);
    // The BatchStrOutput has an unknown field.
    let mut more = layout();
    more["BatchStrOutput"].as_array_mut().unwrap().push(json!("new"));
    refused(&read_by(&packed, &more), 53);
    // A struct's class takes no other fields than its own, so a pickle's fields must be those of a known version.
    let pickled = sample("versions/0.5.23/tokid_n3.pickle").bytes;
    refused(&read_batch(&renamed(&pickled, "dp_ranks", "dp_rankz")), 53);
    refused(&read_batch(&renamed(&pickled, "sglang.srt.managers", "sglang.srt.manager5")), 53);
    // A dataclass that lacks a field of all known versions.
    let old = sample("versions/0.5.6/tokid_n3.pickle").bytes;
    refused(&read_batch(&renamed(&old, "no_stop_trim", "no_stop_tram")), 37);
    // A layout that knows the field makes it possible.
    let mut known = layout().to_string();
    known = known.replace("\"dp_ranks\"", "\"dp_rankz\"");
    let known: Value = serde_json::from_str(&known).unwrap();
    let of_new = read_by(&renamed(&pickled, "dp_ranks", "dp_rankz"), &known);
    let json = open(&of_new);
    let rows = of_new.without_detokenizing(&[0]);
    match json["dp_rankz"].is_null() {
        true => drop(rows.unwrap()),
        false => assert_eq!(rows.unwrap_err(), RowsError::NotByDetokenizer { name: "dp_rankz".into() }),
    }
}

#[test]
fn a_column_that_the_detokenizer_treats_in_an_unknown_way_is_refused_unless_empty() {
    let known = layout().to_string().replace("\"cached_tokens\"", "\"new_tokens\"");
    let known: Value = serde_json::from_str(&known).unwrap();
    let batch = read_by(&sample("versions/0.5.23/tokid_n3.msgpack").bytes, &known);
    assert!(open(&batch)["new_tokens"].is_array());
    let error = batch.without_detokenizing(&[0]).unwrap_err();
    assert_eq!(error, RowsError::NotByDetokenizer { name: "new_tokens".into() });
    let known = layout().to_string().replace("\"token_steps\"", "\"new_steps\"");
    let known: Value = serde_json::from_str(&known).unwrap();
    let batch = read_by(&sample("versions/0.5.23/tokid_n3.msgpack").bytes, &known);
    assert!(batch.without_detokenizing(&[0]).is_ok());
}
