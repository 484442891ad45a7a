//! Erasing rows: the frame keeps its length, the erased row has no content, and the other rows are as before.

use std::collections::BTreeSet;

use afterbay_wire::{Batch, DecodedFrame, Decoder, EraseError, Layouts, Wrapped, decode};
use bytes::Bytes;
use serde_json::Value;

use crate::samples::{self, Sample};

fn batch(bytes: &Bytes) -> Option<Batch> {
    match decode(bytes.clone(), &Layouts::builtin()) {
        DecodedFrame::Batch(batch) => Some(batch),
        DecodedFrame::Barrier(_) => None,
    }
}

fn erase(bytes: &Bytes, rid: &[u8]) -> Result<(Bytes, u32, Vec<String>), EraseError> {
    let erased = Decoder::new(Layouts::builtin()).erase(bytes, |of| of == rid)?;
    Ok((erased.bytes, erased.rows, erased.left))
}

/// A column's entries by row; `None` if it has none per row.
fn cells(column: &Value, rows: u32) -> Option<&Vec<Value>> {
    column.as_array().filter(|cells| cells.len() == rows as usize)
}

/// Whether nothing is left of a value but its structure.
pub fn is_blank(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.bytes().all(|byte| byte == b'x'),
        Value::Array(items) => items.iter().all(is_blank),
        // The type of an array or a tensor is no content.
        Value::Object(map) if map.keys().any(|key| key.starts_with("__")) => {
            map.get("v").is_none_or(is_blank)
        }
        Value::Object(map) => map.values().all(is_blank),
    }
}

const CONTENT: [&str; 9] = [
    "output_ids",
    "decode_ids",
    "decoded_texts",
    "output_strs",
    "output_token_logprobs_val",
    "output_token_logprobs_idx",
    "input_token_logprobs_idx",
    "output_top_logprobs_idx",
    "embeddings",
];

/// Frames of all fixtures with rows.
fn batches() -> impl Iterator<Item = (Sample, Batch)> {
    samples::all().into_iter().filter_map(|sample| {
        let batch = batch(&sample.bytes)?;
        Some((sample, batch))
    })
}

#[test]
fn an_erased_row_of_every_fixture_has_no_content_and_the_other_rows_keep_theirs() {
    let mut seen = 0;
    for (sample, before) in batches() {
        let Some(rid) = before.rid_of(0).map(<[u8]>::to_vec) else { continue };
        let (bytes, rows, left) =
            erase(&sample.bytes, &rid).unwrap_or_else(|error| panic!("{}: {error}", sample.name));
        assert_eq!(bytes.len(), sample.bytes.len(), "{}", sample.name);
        assert!(left.is_empty(), "{}: {left:?}", sample.name);
        assert!(rows >= 1, "{}", sample.name);
        let after = batch(&bytes).unwrap_or_else(|| panic!("{}: not decoded", sample.name));
        let is_erased = |row: usize| before.rid_of(row as u32) == Some(&rid[..]);
        let (one, other) = (before.to_json(Wrapped::Open), after.to_json(Wrapped::Open));
        for (name, column) in one.as_object().unwrap() {
            let Some(cells_before) = cells(column, before.rows()) else {
                // A column without rows: one of the whole frame, or one that is gone with its only row.
                continue;
            };
            let cells_after = cells(&other[name], before.rows());
            let cells_after = cells_after.unwrap_or_else(|| panic!("{}: {name}", sample.name));
            for (row, (before, after)) in cells_before.iter().zip(cells_after).enumerate() {
                if !is_erased(row) || name == "rids" || name.ends_with("_tokens") {
                    assert_eq!(before, after, "{}: {name} of row {row}", sample.name);
                } else if CONTENT.contains(&&**name) {
                    assert!(is_blank(after), "{}: {name} of row {row}: {after}", sample.name);
                }
            }
        }
        assert_eq!(after.completion_tokens(0), before.completion_tokens(0), "{}", sample.name);
        assert_eq!(after.tokens(0), before.tokens(0), "{}", sample.name);
        assert_eq!(
            after.finish(0) == afterbay_wire::Finish::Running,
            before.finish(0) == afterbay_wire::Finish::Running
        );
        seen += 1;
    }
    assert!(seen > 150, "{seen} frames");
}

#[test]
fn in_msgpack_only_bytes_of_the_erased_row_change() {
    for name in ["frames/tokid_n64.msgpack", "frames/tokid_logprobs.msgpack", "frames/str_n64.msgpack"] {
        let bytes = samples::sample(name).bytes;
        let before = batch(&bytes).unwrap();
        let changed = |row: u32| -> BTreeSet<usize> {
            let (erased, ..) = erase(&bytes, before.rid_of(row).unwrap()).unwrap();
            (0..bytes.len()).filter(|at| erased[*at] != bytes[*at]).collect()
        };
        let each: Vec<BTreeSet<usize>> = (0..before.rows()).map(changed).collect();
        let together: usize = each.iter().map(BTreeSet::len).sum();
        let all: BTreeSet<usize> = each.iter().flatten().copied().collect();
        assert!(each.iter().all(|of_row| !of_row.is_empty()), "{name}");
        assert_eq!(all.len(), together, "{name}: a byte changed with two rows");
    }
}

#[test]
fn a_stop_text_is_erased_and_the_kind_of_the_end_stays() {
    for name in ["tokid_finished_stop_str", "tokid_finished_stop_token", "tokid_finished_abort"] {
        for wire in ["msgpack", "pickle"] {
            let bytes = samples::sample(&format!("frames/{name}.{wire}")).bytes;
            let before = batch(&bytes).unwrap();
            let row =
                (0..before.rows()).find(|row| before.finish(*row) != afterbay_wire::Finish::Running).unwrap();
            let (erased, ..) = erase(&bytes, before.rid_of(row).unwrap()).unwrap();
            let reasons =
                |batch: &Batch| batch.to_json(Wrapped::Keep)["finished_reasons"][row as usize].clone();
            let (before, after) = (reasons(&before), reasons(&batch(&erased).unwrap()));
            assert_eq!(before["type"], after["type"], "{name}.{wire}");
            assert_eq!(before["status_code"], after["status_code"], "{name}.{wire}");
            assert!(is_blank(&after["matched"]) && is_blank(&after["message"]), "{name}.{wire}: {after}");
        }
    }
}

#[test]
fn a_text_that_two_rows_of_a_pickle_share_stays_for_the_other_row() {
    // Python writes one object once: here the texts and the reasons of both rows are the same objects.
    let fields = "BatchStrOutput";
    let mut pickle = b"\x80\x04csglang.srt.managers.io_struct\n".to_vec();
    pickle.extend_from_slice(fields.as_bytes());
    pickle.extend_from_slice(b"\n)\x81}(");
    let text = |pickle: &mut Vec<u8>, text: &str| {
        pickle.extend_from_slice(&[0x8c, text.len() as u8]);
        pickle.extend_from_slice(text.as_bytes());
        pickle.push(0x94);
    };
    text(&mut pickle, "rids");
    pickle.extend_from_slice(b"](");
    text(&mut pickle, "a");
    text(&mut pickle, "b");
    pickle.push(b'e');
    text(&mut pickle, "finished_reasons");
    pickle.extend_from_slice(b"](NNe");
    text(&mut pickle, "output_strs");
    pickle.extend_from_slice(b"](");
    text(&mut pickle, "s");
    // The sixth entry of the memo, "s", again.
    pickle.extend_from_slice(b"h\x05e");
    text(&mut pickle, "output_ids");
    pickle.extend_from_slice(b"](](K\x07e](K\x07eeub.");
    let bytes = Bytes::from(pickle);
    assert_eq!(batch(&bytes).unwrap().text(1), Some("s"));
    let (erased, rows, _) = erase(&bytes, b"a").unwrap();
    let after = batch(&erased).unwrap();
    assert_eq!((rows, after.text(0), after.text(1)), (1, Some(""), Some("s")));
    let ids = |row: u32| {
        let mut ids = Vec::new();
        after.row_ids(row, &mut ids);
        ids
    };
    assert_eq!((ids(0), ids(1)), (vec![0], vec![7]));
}

#[test]
fn a_frame_that_cannot_be_decoded_is_refused_and_one_without_rows_stays() {
    let cut = samples::sample("frames/tokid_n3.msgpack").bytes;
    let cut = cut.slice(..cut.len() - 1);
    assert!(matches!(erase(&cut, b"r"), Err(EraseError::NotDecoded(_))));
    for name in ["frames/ctl_abort.msgpack", "frames/tokid_idle.msgpack", "frames/tokid_idle.pickle"] {
        let bytes = samples::sample(name).bytes;
        assert_eq!(erase(&bytes, b"r").unwrap(), (bytes, 0, Vec::new()), "{name}");
    }
    let bytes = samples::sample("frames/tokid_n3.msgpack").bytes;
    assert_eq!(erase(&bytes, b"of no row").unwrap(), (bytes, 0, Vec::new()));
}
