//! Releases that nobody has seen: layouts with columns added, removed, moved and renamed, as their connectors introduce them.

use afterbay_wire::synth::{SynthBatch, SynthRow, SynthWire};
use afterbay_wire::vllm::{SynthOutput, SynthOutputs};
use afterbay_wire::{
    BarrierKind, Batch, BatchKind, BatchPart, DecodedFrame, Decoder, Edit, Finish, FinishReason,
    Introduction, IntroductionError, Layouts, RowsError, TokenEdit, WireError, decode,
};
use bytes::Bytes;
use serde_json::{Value, json};

use crate::samples::{introduced, introduction, read_batch};

/// A change of a list of fields, and of the values that stand for them.
type Change = fn(&mut Vec<(String, Value)>);

const CHANGES: [(&str, Change); 5] = [
    ("added at the end", |fields| fields.push(("brand_new".into(), Value::Null))),
    ("added in the middle", |fields| fields.insert(3, ("brand_new".into(), Value::Null))),
    ("removed", |fields| fields.retain(|(name, _)| name != "cached_tokens" && name != "routed_experts")),
    ("reordered", |fields| fields[2..].reverse()),
    ("renamed", |fields| {
        let named = |name: &str| name == "retraction_counts" || name == "trace_headers";
        let found = fields.iter_mut().find(|(name, _)| named(name)).unwrap();
        found.0 = "another_name".into();
    }),
];

fn pack(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.push(0xc0),
        Value::Bool(flag) => out.push(0xc2 + u8::from(*flag)),
        Value::Number(number) if number.is_f64() => {
            out.push(0xcb);
            out.extend(number.as_f64().unwrap().to_be_bytes());
        }
        Value::Number(number) => {
            out.push(0xd3);
            out.extend(number.as_i64().unwrap().to_be_bytes());
        }
        Value::String(text) => {
            out.extend([0xd9, text.len() as u8]);
            out.extend(text.as_bytes());
        }
        Value::Array(items) => {
            out.extend([0xdc, (items.len() >> 8) as u8, items.len() as u8]);
            items.iter().for_each(|item| pack(out, item));
        }
        Value::Object(map) => {
            out.extend([0xde, 0, map.len() as u8]);
            for (key, value) in map {
                pack(out, &key.as_str().into());
                pack(out, value);
            }
        }
    }
}

fn rows() -> Vec<SynthRow> {
    let row = |rid: &str, ids: &[i64]| SynthRow {
        rid: rid.to_owned(),
        ids: ids.to_vec(),
        completion_tokens: 5,
        prompt_tokens: 7,
        ..SynthRow::default()
    };
    vec![row("a", &[1, 2]), row("b", &[3])]
}

/// The columns of today's frame of SGLang, by name and in order, as msgpack.
fn columns() -> Vec<(String, Vec<u8>)> {
    let frame = SynthBatch { rows: rows() }.encode(BatchKind::TokenId, SynthWire::Msgpack).unwrap();
    let layout: Value = serde_json::from_str(include_str!("../../layouts/0.5.23.json")).unwrap();
    let names =
        layout["BatchTokenIDOutput"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned());
    // The head: an array of up to 65,535 elements, and a short name.
    let mut at = 3 + 1 + BatchKind::TokenId.class().len();
    let columns = names.map(|name| {
        let end = at + crate::value_len::value_len(&frame[at..]);
        let column = frame[at..end].to_vec();
        at = end;
        (name, column)
    });
    columns.collect()
}

/// A frame of SGLang with changed columns, and the introduction of its engine. The new column has these bytes.
fn sglang(change: Change, new: &[u8]) -> (Bytes, Bytes) {
    let before = columns();
    let mut fields: Vec<(String, Value)> =
        before.iter().map(|(name, _)| (name.clone(), Value::Null)).collect();
    // Values follow their names; a column that is renamed keeps its place.
    change(&mut fields);
    let places: Vec<&Vec<u8>> = before.iter().map(|(_, column)| column).collect();
    let column = |(at, (name, _)): (usize, &(String, Value))| match before.iter().find(|(it, _)| it == name) {
        Some((_, column)) => column.clone(),
        None if name == "another_name" => places[at].clone(),
        None => new.to_vec(),
    };
    let columns: Vec<Vec<u8>> = fields.iter().enumerate().map(column).collect();
    let mut frame = vec![0xdc, 0, 1 + fields.len() as u8, 0xa0 + BatchKind::TokenId.class().len() as u8];
    frame.extend(BatchKind::TokenId.class().as_bytes());
    columns.iter().for_each(|column| frame.extend(column));
    let names: Vec<Value> = fields.into_iter().map(|(name, _)| name.into()).collect();
    let classes = json!({"BatchTokenIDOutput": names});
    (frame.into(), introduced("sglang", "0.9.0", &classes))
}

/// A frame of vLLM with changed fields of its rows, and the introduction of its engine.
fn vllm(change: Change, new: &Value) -> (Bytes, Bytes) {
    let output = |rid: &str, ids: &[i64]| SynthOutput {
        request_id: rid.to_owned(),
        new_token_ids: ids.to_vec(),
        ..SynthOutput::default()
    };
    let outputs =
        SynthOutputs { rows: vec![output("a", &[1, 2]), output("b", &[3])], ..SynthOutputs::default() };
    let DecodedFrame::Batch(today) = decode(outputs.encode(), &Layouts::builtin()) else {
        panic!("no batch")
    };
    let json = today.to_json(afterbay_wire::Wrapped::Keep);
    let names: Vec<&str> = afterbay_wire::vllm::fields::ROW[..18].iter().map(|field| field.name).collect();
    let row = |row: &Value| {
        let mut fields: Vec<_> = names.iter().map(|name| ((*name).to_owned(), row[*name].clone())).collect();
        change(&mut fields);
        let value =
            |(name, value): &(String, Value)| if name == "brand_new" { new.clone() } else { value.clone() };
        (fields.iter().map(|(name, _)| name.clone().into()).collect(), fields.iter().map(value).collect())
    };
    let made: Vec<(Vec<Value>, Vec<Value>)> = json["outputs"].as_array().unwrap().iter().map(row).collect();
    let of_frame: Vec<Value> =
        afterbay_wire::vllm::fields::FRAME.iter().map(|field| field.name.into()).collect();
    let values = of_frame.iter().map(|name| match name.as_str() {
        Some("outputs") => made.iter().map(|(_, values)| Value::from(values.clone())).collect(),
        name => json[name.unwrap()].clone(),
    });
    let mut frame = Vec::new();
    pack(&mut frame, &values.collect());
    let classes = json!({"EngineCoreOutputs": of_frame, "EngineCoreOutput": made[0].0});
    (frame.into(), introduced("vllm", "0.99.0", &classes))
}

/// Decodes the introduction and the frame, as a stream receives them.
fn receive((frame, introduction): &(Bytes, Bytes)) -> Batch {
    let mut decoder = Decoder::new(Layouts::builtin());
    match decoder.decode(introduction.clone()) {
        DecodedFrame::Barrier(barrier) => {
            assert!(
                matches!(barrier.kind, BarrierKind::Introduction { introduction: Ok(_) }),
                "{:?}",
                barrier.kind
            )
        }
        DecodedFrame::Batch(_) => panic!("an introduction has no rows"),
    }
    match decoder.decode(frame.clone()) {
        DecodedFrame::Batch(batch) => batch,
        DecodedFrame::Barrier(barrier) => panic!("{}", barrier.kind),
    }
}

fn ids(batch: &Batch, row: u32) -> Vec<i64> {
    let mut ids = Vec::new();
    batch.row_ids(row, &mut ids);
    ids
}

/// Whatever moved, the rows say the same, and can be taken, edited and ended.
fn check(name: &str, batch: &Batch) {
    assert_eq!(batch.rids().collect::<Vec<_>>(), ["a", "b"], "{name}");
    assert_eq!((ids(batch, 0), ids(batch, 1)), (vec![1, 2], vec![3]), "{name}");
    assert!(batch.finishes().all(|finish| finish == Finish::Running), "{name}");
    let taken = batch.take(&[1]).unwrap();
    assert_eq!((taken.rid(0), ids(&taken, 0)), ("b", vec![3]), "{name}");
    let finish = Some(FinishReason::Stop("loop".into()));
    let edit = Edit { tokens: TokenEdit::Delta(vec![9]), finish, ..Edit::new(0) };
    let edited = batch.edit(&[edit]).unwrap().unwrap();
    assert_eq!((ids(&edited, 0), ids(&edited, 1)), (vec![9], vec![3]), "{name}");
    assert!(matches!(edited.finish(0), Finish::Stop { .. }), "{name}");
    let ended = batch.ended(&[0, 1], &FinishReason::Abort("refused".into())).unwrap();
    assert!(ended.finishes().all(|finish| finish == Finish::Abort), "{name}");
}

#[test]
fn a_release_of_sglang_that_nobody_has_seen_is_read_by_its_introduction() {
    for (name, change) in CHANGES {
        check(name, &receive(&sglang(change, &[0xc0])));
    }
}

#[test]
fn a_release_of_vllm_that_nobody_has_seen_is_read_by_its_introduction() {
    for (name, change) in CHANGES {
        check(name, &receive(&vllm(change, &Value::Null)));
    }
    let first: Change = |fields| fields.reverse();
    check("all reversed", &receive(&vllm(first, &Value::Null)));
}

#[test]
fn rows_with_a_value_in_an_unknown_column_are_carried_and_not_joined() {
    let cannot = RowsError::Column { name: "brand_new".into(), rid: "a".into() };
    let join = |batch: &Batch| {
        let (one, other) = (batch.take(&[0]).unwrap(), batch.take(&[0]).unwrap());
        Batch::join(&[BatchPart::from(&one), BatchPart::from(&other)])
    };
    for (_, change) in &CHANGES[..2] {
        // A list with a value for each of two rows.
        let some = receive(&sglang(*change, &[0x92, 5, 6]));
        assert_eq!(join(&some).unwrap_err(), cannot);
        assert_eq!(some.take(&[1]).unwrap().to_json(afterbay_wire::Wrapped::Keep)["brand_new"], json!([6]));
        assert_eq!(join(&receive(&sglang(*change, &[0xc0]))).unwrap().rows(), 1);
        let some = receive(&vllm(*change, &json!("new")));
        assert_eq!(join(&some).unwrap_err(), cannot);
        let taken = some.take(&[1]).unwrap().to_json(afterbay_wire::Wrapped::Keep);
        assert_eq!(taken["outputs"][0]["brand_new"], "new");
        let joined = join(&receive(&vllm(*change, &Value::Null))).unwrap();
        assert_eq!(ids(&joined, 0), [1, 2, 1, 2]);
    }
}

#[test]
fn a_pickle_of_a_release_that_nobody_has_seen_needs_no_introduction() {
    let frame = SynthBatch { rows: rows() }.encode(BatchKind::TokenId, SynthWire::Pickle).unwrap();
    // A name of the same length: a column that is renamed.
    let (from, to) = (b"retraction_counts", b"another_name_here");
    let at = frame.windows(from.len()).position(|window| window == from).unwrap();
    let renamed = [&frame[..at], to, &frame[at + to.len()..]].concat();
    check("renamed", &read_batch(&renamed.into()));
    // A column at the end: before the dict's SETITEMS, TUPLE2, REDUCE and STOP.
    let end = frame.len() - 4;
    let added = [&frame[..end], b"\x8c\x09brand_newN", &frame[end..]].concat();
    check("added", &read_batch(&added.into()));
}

#[test]
fn without_an_introduction_a_new_column_is_a_doubt_and_not_a_guess() {
    for (name, change) in &CHANGES[..4] {
        let (frame, _) = sglang(*change, &[0x92, 5, 6]);
        match decode(frame, &Layouts::builtin()) {
            DecodedFrame::Barrier(barrier) => assert!(
                matches!(
                    barrier.kind,
                    BarrierKind::NotUnderstood {
                        error: WireError::Layout { .. } | WireError::UnknownLayout { .. }
                    }
                ),
                "{name}: {}",
                barrier.kind
            ),
            DecodedFrame::Batch(batch) => panic!("{name} is read as {}", batch.wire()),
        }
    }
}

#[test]
fn an_introduction_without_a_needed_field_names_it() {
    let needs = |engine: &str, classes: Value| {
        Layouts::introduced(&introduction(engine, "9", &classes)).unwrap_err().to_string()
    };
    let rids =
        needs("sglang", json!({"BatchTokenIDOutput": ["request_ids", "finished_reasons", "output_ids"]}));
    assert_eq!(rids, "introduction's class \"BatchTokenIDOutput\" has no field \"rids\"");
    let classes =
        json!({"EngineCoreOutputs": ["engine_index", "outputs"], "EngineCoreOutput": ["request_id"]});
    let ids = needs("vllm", classes);
    assert_eq!(ids, "introduction's class \"EngineCoreOutput\" has no field \"new_token_ids\"");
}

#[test]
fn a_message_that_cannot_be_an_introduction_changes_nothing() {
    let read = |text: &str| Introduction::read(text.as_bytes());
    let of = |rest: &str| format!("{{\"afterbay\":\"introduction\",{rest}}}");
    let json = |text: &str| matches!(read(text), Err(IntroductionError::Json(_)));
    assert!(json(&of("\"format\":1")) && json("{\"afterbay\":\"introduction\""));
    let other = of("\"format\":2,\"engine\":\"vllm\",\"classes\":{}");
    assert_eq!(read(&other), Err(IntroductionError::Format(2)));
    let other = of("\"format\":1,\"engine\":\"tgi\",\"classes\":{}");
    assert_eq!(read(&other), Err(IntroductionError::Engine("tgi".into())));
    for fields in ["[[\"a\"],[\"a\"]]", "[[1]]", "[[]]"] {
        let twice = of(&format!("\"format\":1,\"engine\":\"vllm\",\"classes\":{{\"A\":{fields}}}"));
        assert_eq!(read(&twice), Err(IntroductionError::Fields("A".into())), "{fields}");
    }
    let mut decoder = Decoder::new(Layouts::builtin());
    assert!(matches!(decoder.decode(other.into()), DecodedFrame::Barrier(barrier) if !barrier.counted()));
    let frame = SynthBatch { rows: rows() }.encode(BatchKind::TokenId, SynthWire::Msgpack).unwrap();
    assert!(matches!(decoder.decode(frame), DecodedFrame::Batch(_)));
}

#[test]
fn a_journals_text_has_each_introduction_once_and_the_newest_last() {
    let engine = afterbay_wire::Engine::Vllm;
    let line = |version: &str| {
        let classes = json!({"EngineCoreOutputs": ["engine_index", "outputs"],
            "EngineCoreOutput": ["request_id", "new_token_ids", "finish_reason"]});
        String::from_utf8(introduced("vllm", version, &classes).to_vec()).unwrap()
    };
    let first = Layouts::text(engine, "", Some(&line("1")));
    let both = Layouts::text(engine, &first, Some(&line("2")));
    let again = Layouts::text(engine, &both, Some(&line("1")));
    assert_eq!(again, format!("vllm\n{}\n{}\n", line("2"), line("1")));
    let many =
        (0..40).fold(String::new(), |text, at| Layouts::text(engine, &text, Some(&line(&at.to_string()))));
    assert_eq!(many.lines().count(), 17);
    // A frame of three fields a row, which no version that comes with Afterbay has.
    let frame: &[u8] = b"\x92\x00\x91\x93\xa1r\x91\x07\xc0";
    let read = |text: &str| decode(Bytes::from_static(frame), &Layouts::of_text(text));
    assert!(matches!(read(&again), DecodedFrame::Batch(_)));
    assert!(matches!(read("vllm\n"), DecodedFrame::Barrier(_)));
}
