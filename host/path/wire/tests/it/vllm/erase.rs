//! Erasing rows of vLLM: the row has no content, and the other rows are as before.

use afterbay_types::Engine;
use std::collections::BTreeSet;

use afterbay_wire::{DecodedFrame, Decoder, EraseError, Layouts};
use bytes::Bytes;
use serde_json::Value;

use super::support::{all, batch, json, read};
use crate::erase::is_blank;

fn erase(bytes: &Bytes, rid: &[u8]) -> (Bytes, u32, Vec<String>) {
    let erased = Decoder::new(Layouts::of(Engine::Vllm)).erase(bytes, |of| of == rid).unwrap();
    (erased.bytes, erased.rows, erased.left)
}

#[test]
fn an_erased_row_of_every_fixture_has_no_content_and_the_other_rows_keep_theirs() {
    let mut seen = 0;
    for sample in all() {
        let DecodedFrame::Batch(before) = read(&sample.bytes) else { continue };
        let rids: BTreeSet<Vec<u8>> =
            (0..before.rows()).filter_map(|row| Some(before.rid_of(row)?.to_vec())).collect();
        let mut changed_by_others = BTreeSet::new();
        for rid in &rids {
            let name = &sample.name;
            let (bytes, rows, left) = erase(&sample.bytes, rid);
            assert_eq!((bytes.len(), left.len()), (sample.bytes.len(), 0), "{name}: {left:?}");
            assert!(rows >= 1, "{name}");
            let changed: BTreeSet<usize> =
                (0..bytes.len()).filter(|at| bytes[*at] != sample.bytes[*at]).collect();
            assert!(changed.is_disjoint(&changed_by_others), "{name}: a byte changed with two rows");
            changed_by_others.extend(changed);
            let after = batch(&bytes);
            let (one, other) = (json(&before), json(&after));
            let rows = one["outputs"].as_array().unwrap().iter().zip(other["outputs"].as_array().unwrap());
            for (before, after) in rows {
                if before["request_id"].as_str().map(str::as_bytes) != Some(&rid[..]) {
                    assert_eq!(before, after, "{name}");
                    continue;
                }
                assert_eq!(before["finish_reason"], after["finish_reason"], "{name}");
                for field in ["new_token_ids", "stop_reason"] {
                    assert!(is_blank(&after[field]), "{name}: {field}: {}", after[field]);
                }
                for field in
                    ["new_logprobs", "new_prompt_logprobs_tensors", "routed_experts", "pooling_output"]
                {
                    assert!(before[field].is_null() || before[field] != after[field], "{name}: {field}");
                }
                let count = |row: &Value| row["new_token_ids"].as_array().map(Vec::len);
                assert_eq!(count(before), count(after), "{name}");
            }
            seen += 1;
        }
    }
    assert!(seen > 50, "{seen} rows");
}

#[test]
fn a_frame_of_vllm_that_cannot_be_decoded_is_refused() {
    let mut decoder = Decoder::new(Layouts::of(Engine::Vllm));
    let cut = Bytes::from_static(b"\x98\x00\x91");
    assert!(matches!(decoder.erase(&cut, |_| true), Err(EraseError::NotDecoded(_))));
}
