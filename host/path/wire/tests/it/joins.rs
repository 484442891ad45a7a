//! Joining rows, column by column.

use afterbay_wire::synth::{SynthBatch, SynthFinish, SynthRow, SynthWire};
use afterbay_wire::{Batch, BatchKind, BatchPart, Edit, Finish, RowsError, TokenEdit};
use serde_json::{Value, json};

use crate::samples::{join, open, read_batch, sample};

fn row(rid: &str, ids: &[i64], completion_tokens: u64) -> SynthRow {
    let text = ids.iter().map(|id| format!(" {id}")).collect();
    SynthRow {
        rid: rid.into(),
        ids: ids.into(),
        text,
        completion_tokens,
        prompt_tokens: 9,
        ..SynthRow::default()
    }
}

fn batch(kind: BatchKind, wire: SynthWire, rows: &[SynthRow]) -> Batch {
    read_batch(&SynthBatch { rows: rows.to_vec() }.encode(kind, wire).unwrap())
}

const WIRES: [SynthWire; 2] = [SynthWire::Msgpack, SynthWire::Pickle];

/// The same frame of 0.5.23 with some columns replaced, encoded by this test.
fn with(columns: &[(&str, Value)], json: &Value) -> Batch {
    fn value(out: &mut Vec<u8>, json: &Value) {
        match json {
            Value::Null => out.push(0xc0),
            Value::Bool(bool) => out.push(0xc2 + u8::from(*bool)),
            Value::Number(number) => match number.as_i64() {
                Some(int) => {
                    out.push(0xd3);
                    out.extend(int.to_be_bytes());
                }
                None => {
                    out.push(0xcb);
                    out.extend(number.as_f64().unwrap().to_be_bytes());
                }
            },
            Value::String(text) => {
                out.push(0xdb);
                out.extend((text.len() as u32).to_be_bytes());
                out.extend(text.as_bytes());
            }
            Value::Array(items) => {
                out.push(0xdd);
                out.extend((items.len() as u32).to_be_bytes());
                items.iter().for_each(|item| value(out, item));
            }
            Value::Object(map) if map.contains_key("__array__") => {
                let ids = map["v"].as_array().unwrap();
                out.push(0xc9);
                out.extend((6 + 8 * ids.len() as u32).to_be_bytes());
                out.extend([1, 0, 0, 0, 2, 0xa1, b'q']);
                ids.iter().for_each(|id| out.extend(id.as_i64().unwrap().to_le_bytes()));
            }
            Value::Object(map) => {
                out.push(0xdf);
                out.extend((map.len() as u32).to_be_bytes());
                for (key, item) in map {
                    value(out, &json!(key));
                    value(out, item);
                }
            }
        }
    }
    let layout: Value = serde_json::from_str(include_str!("../../layouts/0.5.23.json")).unwrap();
    let class = json["__struct__"].as_str().unwrap();
    let fields = layout[class].as_array().unwrap();
    let mut out = vec![0xdc];
    out.extend((fields.len() as u16 + 1).to_be_bytes());
    value(&mut out, &json!(class));
    for field in fields {
        let field = field.as_str().unwrap();
        let replaced = columns.iter().find(|(name, _)| *name == field).map(|(_, value)| value);
        let kept = if field == "time_stats" { &Value::Null } else { &json[field] };
        value(&mut out, replaced.unwrap_or(kept));
    }
    read_batch(&out.into())
}

/// A batch of one row with these columns.
pub fn one_row(rid: &str, completion: u64, columns: &[(&str, Value)]) -> Batch {
    let plain = batch(BatchKind::TokenId, SynthWire::Msgpack, &[row(rid, &[1], completion)]);
    with(columns, &open(&plain))
}

#[test]
fn rows_of_a_request_become_one_and_others_stand_side_by_side() {
    for wire in WIRES {
        for kind in [BatchKind::TokenId, BatchKind::Str] {
            let first = SynthRow { prompt_tail: vec![70, 71], ..row("a", &[1], 1) };
            let last = SynthRow { finish: Some(SynthFinish::Length(4)), ..row("a", &[3, 4], 4) };
            let parts = [
                batch(kind, wire, &[first, row("b", &[11], 5)]),
                batch(kind, wire, &[row("c", &[21], 7), row("a", &[2], 2)]),
                batch(kind, wire, &[last, row("b", &[12], 6)]),
            ];
            let all = join(&parts.iter().collect::<Vec<_>>());
            let rids: Vec<_> = (0..all.rows()).map(|row| all.rid(row)).collect();
            assert_eq!(rids, ["a", "b", "c"]);
            let ids = |row| {
                let mut ids = Vec::new();
                all.row_ids(row, &mut ids);
                ids
            };
            assert_eq!((ids(0), ids(1), ids(2)), (vec![1, 2, 3, 4], vec![11, 12], vec![21]));
            assert_eq!(all.finish(0), Finish::Length);
            assert_eq!(all.completion_tokens(0), Some(4));
            let json = open(&all);
            if kind == BatchKind::Str {
                assert_eq!(all.text(0), Some(" 1 2 3 4"));
            } else {
                assert_eq!(json["decode_ids"][0]["v"], json!([70, 71, 1, 2, 3, 4]));
                assert_eq!(json["read_offsets"][0], 2);
            }
            assert_eq!(json["time_stats"].as_array().unwrap().len(), 3);
        }
    }
}

#[test]
fn some_rows_of_each_part_can_be_joined() {
    let one = batch(
        BatchKind::TokenId,
        SynthWire::Pickle,
        &[row("a", &[1], 1), row("b", &[2], 1), row("c", &[3], 1)],
    );
    let two = batch(
        BatchKind::TokenId,
        SynthWire::Pickle,
        &[row("a", &[4], 2), row("b", &[5], 2), row("c", &[6], 2)],
    );
    let parts =
        [BatchPart { batch: &one, rows: Some(&[1, 2]) }, BatchPart { batch: &two, rows: Some(&[0, 2]) }];
    let all = Batch::join(&parts).unwrap();
    let rows: Vec<_> = (0..all.rows()).map(|row| (all.rid(row), all.tokens(row))).collect();
    assert_eq!(rows, [("b", 1), ("c", 2), ("a", 1)]);
}

#[test]
fn rows_must_be_ascending_without_repetition_and_at_least_one() {
    let batch = read_batch(&sample("frames/tokid_n3.msgpack").bytes);
    for (rows, row) in [(&[1, 1][..], 1), (&[2, 0], 0), (&[0, 3], 3)] {
        assert_eq!(batch.take(rows).unwrap_err(), RowsError::Row { row, rows: 3 });
    }
    assert_eq!(batch.take(&[]).unwrap_err(), RowsError::NoRows);
    assert_eq!(Batch::join(&[]).unwrap_err(), RowsError::NoRows);
}

#[test]
fn batches_of_other_kinds_wires_and_layouts_are_not_joined() {
    let first = read_batch(&sample("versions/0.5.23/tokid_n1.msgpack").bytes);
    for other in ["0.5.23/str_n3.msgpack", "0.5.23/tokid_n1.pickle", "0.5.20/tokid_n1.msgpack"] {
        let other = read_batch(&sample(&format!("versions/{other}")).bytes);
        let error = Batch::join(&[BatchPart::from(&first), BatchPart::from(&other)]).unwrap_err();
        assert!(matches!(error, RowsError::Mixed { part: 1, .. }), "{error}");
    }
}

#[test]
fn a_row_after_its_requests_last_is_not_joined() {
    let last = SynthRow { finish: Some(SynthFinish::Abort("gone".into())), ..row("a", &[], 1) };
    let one = batch(BatchKind::Str, SynthWire::Msgpack, &[last]);
    let again = batch(BatchKind::Str, SynthWire::Msgpack, &[row("a", &[1], 1)]);
    let error = Batch::join(&[BatchPart::from(&one), BatchPart::from(&again)]).unwrap_err();
    assert_eq!(error, RowsError::AfterFinish { rid: "a".into() });
}

#[test]
fn a_row_without_logprobs_beside_one_with_gets_what_the_scheduler_writes() {
    let logprobs = |lists: &[(&str, Value)]| one_row("a", 1, lists);
    let with = logprobs(&[
        ("output_token_logprobs_val", json!([[-0.5]])),
        ("output_token_logprobs_idx", json!([[1]])),
        ("input_top_logprobs_val_flat", json!([7])),
        ("weight_versions", json!([[["v", 0, 1]]])),
    ]);
    let without = batch(BatchKind::TokenId, SynthWire::Msgpack, &[row("b", &[2], 3)]);
    // Times are nil in one part and present in the other, which no scheduler writes.
    let error = Batch::join(&[BatchPart::from(&with), BatchPart::from(&without)]).unwrap_err();
    assert_eq!(error, RowsError::Shape { name: "time_stats".into() });

    let without = one_row("b", 3, &[]);
    for parts in [[&with, &without], [&without, &with]] {
        let json = open(&join(&parts));
        let at = usize::from(json["rids"][1] == "a");
        assert_eq!(json["output_token_logprobs_val"][at], json!([-0.5]));
        assert_eq!(json["output_token_logprobs_val"][1 - at], json!([]));
        assert_eq!(json["output_token_logprobs_idx"][1 - at], json!([]));
        assert_eq!(json["input_top_logprobs_val_flat"][at], 7);
        assert_eq!(json["input_top_logprobs_val_flat"][1 - at], Value::Null);
        assert_eq!(json["weight_versions"][1 - at], Value::Null);
        assert_eq!(json["output_top_logprobs_val"], Value::Null);
    }
}

#[test]
fn each_column_is_joined_by_the_table() {
    let first = one_row(
        "a",
        1,
        &[
            ("input_token_logprobs_val", json!([[null, -1.5]])),
            ("input_token_logprobs_idx", json!([[5, 6]])),
            ("input_top_logprobs_flat_null_prefix", json!([2])),
            ("output_token_logprobs_val", json!([[-0.25]])),
            ("output_token_logprobs_idx", json!([[1]])),
            ("output_top_logprobs_val", json!([[[-0.25, -2.0]]])),
            ("cached_tokens", json!([16])),
            ("decoded_texts", json!(["begun"])),
            ("output_token_sampling_mask", json!([[[1, 2]]])),
        ],
    );
    let middle = one_row(
        "a",
        2,
        &[
            ("input_token_logprobs_val", json!([[]])),
            ("input_token_logprobs_idx", json!([[]])),
            ("output_token_logprobs_val", json!([[-0.5]])),
            ("output_token_logprobs_idx", json!([[1]])),
            ("output_top_logprobs_val", json!([[null]])),
            ("output_token_sampling_mask", json!([null])),
            ("decoded_texts", json!(["not read"])),
        ],
    );
    let last = one_row(
        "a",
        3,
        &[
            ("output_token_sampling_mask", json!([[[3]]])),
            ("weight_versions", json!([[["v", 0, 3]]])),
            ("finished_reasons", json!([{"type": "stop", "matched": null}])),
            ("retraction_counts", json!([1])),
        ],
    );
    let all = open(&join(&[&first, &middle, &last]));
    let expected = [
        ("input_token_logprobs_val", json!([[null, -1.5]])),
        ("input_token_logprobs_idx", json!([[5, 6]])),
        ("input_top_logprobs_flat_null_prefix", json!([2])),
        ("output_token_logprobs_val", json!([[-0.25, -0.5]])),
        ("output_token_logprobs_idx", json!([[1, 1]])),
        ("output_top_logprobs_val", json!([[[-0.25, -2.0], null]])),
        ("output_token_sampling_mask", json!([[[1, 2], [3]]])),
        ("cached_tokens", json!([0])),
        ("decoded_texts", json!(["begun"])),
        ("retraction_counts", json!([1])),
        ("completion_tokens", json!([3])),
        ("finished_reasons", json!([{"type": "stop", "matched": null}])),
    ];
    for (name, value) in expected {
        assert_eq!(all[name], value, "{name}");
    }
    assert_eq!(all["weight_versions"][0][0]["end"], 3);
}

#[test]
fn a_column_that_cannot_be_joined_is_named_and_stays_side_by_side() {
    for name in
        ["output_hidden_states", "routed_experts", "indexer_topk", "beam_search_output", "token_steps"]
    {
        let column = (name, json!([[1]]));
        let one = one_row("a", 1, std::slice::from_ref(&column));
        let two = one_row("a", 2, std::slice::from_ref(&column));
        let error = Batch::join(&[BatchPart::from(&one), BatchPart::from(&two)]).unwrap_err();
        assert_eq!(error, RowsError::Column { name: name.into(), rid: "a".into() });
        let other = one_row("b", 2, &[column]);
        assert_eq!(open(&join(&[&one, &other]))[name], json!([[1], [1]]));
        // A nil column loses nothing.
        join(&[&one_row("a", 1, &[(name, json!([null]))]), &one_row("a", 2, &[(name, json!([null]))])]);
    }
}

#[test]
fn an_unknown_column_is_taken_but_not_joined() {
    use afterbay_wire::{DecodedFrame, Layouts, decode};
    let json = include_str!("../../layouts/0.5.23.json").replace("\"cached_tokens\"", "\"brand_new\"");
    let json = serde_json::from_str(&json).unwrap();
    let layouts = Layouts::introduced(&crate::samples::introduction("sglang", "new", &json)).unwrap();
    let of = |rows: &Batch, new: Value| {
        let bytes = with(&[("cached_tokens", new)], &open(rows)).bytes().clone();
        match decode(bytes, &layouts) {
            DecodedFrame::Batch(batch) => batch,
            DecodedFrame::Barrier(barrier) => panic!("{:?}", barrier.kind),
        }
    };
    let read = |rid: &str, new: Value| of(&one_row(rid, 1, &[]), new);
    let (one, two, other) = (read("a", json!([1])), read("a", json!([2])), read("b", json!([3])));
    let error = Batch::join(&[BatchPart::from(&one), BatchPart::from(&two)]).unwrap_err();
    assert_eq!(error, RowsError::Column { name: "brand_new".into(), rid: "a".into() });
    let both = join(&[&one, &other]);
    assert_eq!(open(&both)["brand_new"], json!([1, 3]));
    assert_eq!(open(&both.take(&[1]).unwrap())["brand_new"], json!([3]));
    let both = join(&[&one_row("a", 1, &[]), &one_row("b", 1, &[])]);
    let whole = of(&both, json!("of the whole frame"));
    assert_eq!(whole.take(&[0]).unwrap_err(), RowsError::Split { name: "brand_new".into() });
}

#[test]
fn customized_info_is_joined_name_by_name() {
    let batch = read_batch(&sample("frames/tokid_customized_info.msgpack").bytes);
    let names = &open(&batch)["customized_info"];
    let (one, two) = (batch.take(&[0]).unwrap(), batch.take(&[0]).unwrap());
    let joined = open(&join(&[&one, &two]));
    for (name, rows) in names.as_object().unwrap() {
        let once = rows[0].as_array().unwrap().clone();
        assert_eq!(joined["customized_info"][name][0], json!([once.clone(), once].concat()), "{name}");
    }
}

#[test]
fn customized_info_of_some_requests_only_does_not_stand_beside_others() {
    let with = read_batch(&sample("frames/tokid_customized_info.msgpack").bytes).take(&[0]).unwrap();
    let without = read_batch(&sample("frames/tokid_n3.msgpack").bytes);
    let error =
        Batch::join(&[BatchPart::from(&with), BatchPart { batch: &without, rows: Some(&[1]) }]).unwrap_err();
    assert_eq!(error, RowsError::Shape { name: "customized_info".into() });
    // Rows of the same request keep what they had.
    let same = BatchPart { batch: &without, rows: Some(&[0]) };
    let joined = open(&Batch::join(&[BatchPart::from(&with), same]).unwrap());
    assert_eq!(joined["customized_info"], open(&with)["customized_info"]);
}

#[test]
fn the_load_of_old_versions_is_that_of_the_last_part() {
    let old = read_batch(&sample("versions/0.5.12/tokid_n3.pickle").bytes);
    let load = open(&old)["load"].clone();
    assert!(load.is_object());
    let one = old.take(&[2]).unwrap();
    assert_eq!(open(&one)["load"], load);
    assert_eq!(open(&join(&[&one, &old.take(&[0]).unwrap()]))["load"], load);
}

#[test]
fn the_last_row_with_all_ids_so_far_replaces_those_before_and_new_ids_follow() {
    for wire in WIRES {
        let edited = |ids: &[i64], all: &[i64]| {
            let edit = Edit { tokens: TokenEdit::Cumulative(all.to_vec()), ..Edit::new(0) };
            batch(BatchKind::Str, wire, &[row("a", ids, all.len() as u64)]).edit(&[edit]).unwrap().unwrap()
        };
        let first = batch(BatchKind::Str, wire, &[row("a", &[1], 1)]);
        let (second, third) = (edited(&[2], &[1, 2]), edited(&[3, 4], &[1, 2, 3, 4]));
        let joined = |parts: &[&Batch]| {
            let parts: Vec<BatchPart<'_>> = parts.iter().copied().map(BatchPart::from).collect();
            Batch::join(&parts).unwrap()
        };
        let ids = |batch: &Batch| {
            let mut ids = Vec::new();
            batch.row_ids(0, &mut ids);
            ids
        };
        let all = joined(&[&first, &second, &third]);
        assert_eq!(ids(&all), [1, 2, 3, 4], "{wire:?}");
        assert_eq!(all.text(0), Some(" 1 2 3 4"), "{wire:?}: the text is new in each row");
        assert_eq!((all.completion_tokens(0), all.is_cumulative(0)), (Some(4), true));
        assert_eq!(
            ids(&joined(&[&all, &batch(BatchKind::Str, wire, &[row("a", &[5], 5)])])),
            [1, 2, 3, 4, 5]
        );
        assert!(third.take(&[0]).unwrap().is_cumulative(0));
        assert!(!first.is_cumulative(0) && !first.take(&[0]).unwrap().is_cumulative(0));
    }
}
