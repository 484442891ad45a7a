//! The effect of an edit on each column of its row.

use afterbay_wire::synth::{SynthBatch, SynthFinish, SynthRow, SynthWire};
use afterbay_wire::{Batch, BatchKind, Edit, Finish, FinishReason, Matched, RowsError, TokenEdit};
use serde_json::{Value, json};

use crate::samples::{open, read_batch, sample};

fn edited(batch: &Batch, edits: &[Edit]) -> Batch {
    batch.edit(edits).unwrap().unwrap()
}

fn tokens(row: u32, tokens: TokenEdit) -> Edit {
    Edit { tokens, ..Edit::new(row) }
}

/// The columns in which two batches differ.
fn differing(one: &Batch, other: &Batch) -> Vec<String> {
    let (one, other) = (open(one), open(other));
    let columns = one.as_object().unwrap().iter();
    columns.filter(|(name, value)| other[name.as_str()] != **value).map(|(name, _)| name.clone()).collect()
}

fn ids(batch: &Batch, column: &str, row: usize) -> Vec<i64> {
    let json = open(batch);
    let cell = json[column][row].get("v").unwrap_or(&json[column][row]).as_array().unwrap().clone();
    cell.iter().map(|id| id.as_i64().unwrap()).collect()
}

/// The same rows in every encoding: 0.5.6 (lists), 0.5.14, 0.5.15 (msgpack pairs), 0.5.23 (extensions), both pickles.
fn firsts() -> impl Iterator<Item = (String, Batch)> {
    [
        "0.5.6/tokid_n3_first.pickle",
        "0.5.14/tokid_n3_first.pickle",
        "0.5.15/tokid_n3_first.msgpack",
        "0.5.23/tokid_n3_first.msgpack",
        "0.5.23/tokid_n3_first.pickle",
    ]
    .into_iter()
    .map(|name| (name.to_owned(), read_batch(&sample(&format!("versions/{name}")).bytes)))
}

#[test]
fn an_empty_edit_changes_nothing() {
    for (name, batch) in firsts() {
        let same = edited(&batch, &[Edit::new(1)]);
        assert_eq!(open(&same), open(&batch), "{name}");
    }
}

#[test]
fn new_ids_stand_in_all_columns_of_ids_and_the_prompts_tail_stays() {
    for (name, batch) in firsts() {
        let new = edited(&batch, &[tokens(1, TokenEdit::Delta(vec![7, -8, 9]))]);
        assert_eq!(ids(&new, "output_ids", 1), [7, -8, 9], "{name}");
        let tail = ids(&batch, "decode_ids", 1).len() - ids(&batch, "output_ids", 1).len();
        assert!(tail > 0, "{name}: no first row");
        let expected = [&ids(&batch, "decode_ids", 1)[..tail], &[7, -8, 9]].concat();
        assert_eq!(ids(&new, "decode_ids", 1), expected, "{name}");
        assert_eq!(differing(&batch, &new), ["decode_ids", "output_ids"], "{name}");
        assert_eq!(new.tokens(1), 3);
        assert_eq!(ids(&new, "output_ids", 0), ids(&batch, "output_ids", 0));
    }
}

#[test]
fn cumulative_ids_stand_in_output_ids_only() {
    for (name, batch) in firsts() {
        let new = edited(&batch, &[tokens(0, TokenEdit::Cumulative(vec![1, 2, 3]))]);
        assert_eq!(ids(&new, "output_ids", 0), [1, 2, 3], "{name}");
        assert_eq!(differing(&batch, &new), ["output_ids"], "{name}");
    }
    let without = read_batch(&sample("frames/tokid_output_ids_none.msgpack").bytes);
    let error = without.edit(&[tokens(0, TokenEdit::Cumulative(vec![1]))]).unwrap_err();
    assert_eq!(error, RowsError::NoColumn { name: "output_ids" });
}

#[test]
fn an_emptied_first_row_keeps_the_prompts_tail() {
    for (name, batch) in firsts() {
        let new = edited(&batch, &[tokens(1, TokenEdit::Empty)]);
        assert!(ids(&new, "output_ids", 1).is_empty(), "{name}");
        let before = ids(&batch, "decode_ids", 1);
        let tail = before.len() - ids(&batch, "output_ids", 1).len();
        assert_eq!(ids(&new, "decode_ids", 1), before[..tail], "{name}");
        assert_eq!(new.tokens(1), 0);
    }
}

#[test]
fn an_emptied_row_without_output_ids_has_no_tokens() {
    let batch = read_batch(&sample("frames/tokid_output_ids_none.msgpack").bytes);
    let new = edited(&batch, &[tokens(0, TokenEdit::Empty)]);
    assert_eq!((new.tokens(0), new.tokens(1)), (0, 1));
    assert_eq!(differing(&batch, &new), ["decode_ids"]);
}

#[test]
fn a_dropped_row_leaves_the_batch() {
    for (name, batch) in firsts() {
        let new = edited(&batch, &[tokens(0, TokenEdit::Drop), tokens(2, TokenEdit::Drop)]);
        assert_eq!(open(&new), open(&batch.take(&[1]).unwrap()), "{name}");
        let all: Vec<_> = (0..3).map(|row| tokens(row, TokenEdit::Drop)).collect();
        assert!(batch.edit(&all).unwrap().is_none());
    }
}

#[test]
fn a_finished_row_says_stop_and_what_was_matched() {
    for (name, batch) in firsts() {
        let reason = FinishReason::Stop("grammar".into());
        let finish = Edit { finish: Some(reason), completion_tokens: Some(300), ..Edit::new(0) };
        let new = edited(&batch, &[finish]);
        assert_eq!(new.finish(0), Finish::Stop { matched: Matched::Text("grammar") }, "{name}");
        assert_eq!(new.completion_tokens(0), Some(300));
        assert_eq!(differing(&batch, &new), ["completion_tokens", "finished_reasons"], "{name}");
    }
}

#[test]
fn a_row_that_ends_by_length_has_the_count_of_its_request() {
    for (name, batch) in firsts() {
        let counted = batch.completion_tokens(1).unwrap();
        for (completion_tokens, length) in [(None, counted), (Some(300), 300)] {
            let finish = Some(FinishReason::Length);
            let new = edited(&batch, &[Edit { finish, completion_tokens, ..Edit::new(1) }]);
            assert_eq!(new.finish(1), Finish::Length, "{name}");
            let expected = json!({"type": "length", "length": length});
            assert_eq!(open(&new)["finished_reasons"][1], expected, "{name}");
        }
    }
}

#[test]
fn an_aborted_row_has_sglangs_finish_reason() {
    for (name, batch) in firsts() {
        for (reason, status, words, finish) in [
            (FinishReason::Abort("over the quota".into()), None, "over the quota", Finish::Abort),
            (
                FinishReason::Error { status: 429, message: String::new() },
                Some(429),
                "Aborted",
                Finish::Abort,
            ),
            (FinishReason::Error { status: 500, message: "no".into() }, Some(500), "no", Finish::Error),
        ] {
            let expected =
                json!({"type": "abort", "message": words, "status_code": status, "err_type": null});
            let new = edited(&batch, &[Edit { finish: Some(reason), ..Edit::new(1) }]);
            assert_eq!(new.finish(1), finish, "{name}");
            assert_eq!(open(&new)["finished_reasons"][1], expected, "{name}");
            assert_eq!(differing(&batch, &new), ["finished_reasons"], "{name}");
        }
    }
}

#[test]
fn tokens_that_stay_keep_their_logprobs_and_others_get_neutral_ones() {
    for wire in ["msgpack", "pickle"] {
        let batch = read_batch(&sample(&format!("versions/0.5.23/tokid_logprobs.{wire}")).bytes);
        let before = open(&batch);
        let old = ids(&batch, "output_ids", 0);
        let new = open(&edited(&batch, &[tokens(0, TokenEdit::Delta([&old[..], &[5]].concat()))]));
        let with = |name: &str, neutral: Value| {
            let mut entries = before[name][0].as_array().unwrap().clone();
            assert_eq!(entries.len(), old.len(), "{name}");
            entries.push(neutral);
            Value::Array(entries)
        };
        assert_eq!(new["output_token_logprobs_val"][0], with("output_token_logprobs_val", json!(0.0)));
        assert_eq!(new["output_token_logprobs_idx"][0], with("output_token_logprobs_idx", json!(5)));
        assert_eq!(new["output_top_logprobs_val"][0], with("output_top_logprobs_val", Value::Null));
        assert_eq!(new["output_top_logprobs_idx"][0], with("output_top_logprobs_idx", Value::Null));
        assert_eq!(
            new["output_token_ids_logprobs_val"][0],
            with("output_token_ids_logprobs_val", Value::Null)
        );
        assert_eq!(new["output_token_logprobs_val"][1], before["output_token_logprobs_val"][1]);

        let empty = open(&edited(&batch, &[tokens(0, TokenEdit::Empty)]));
        for name in ["output_token_logprobs_val", "output_top_logprobs_idx", "output_token_ids_logprobs_val"]
        {
            assert_eq!(empty[name][0], json!([]), "{name}");
        }
    }
}

#[test]
fn customized_info_follows_the_tokens() {
    for wire in ["msgpack", "pickle"] {
        let batch = read_batch(&sample(&format!("frames/tokid_customized_info.{wire}")).bytes);
        let before = &open(&batch)["customized_info"];
        let old = ids(&batch, "output_ids", 0);
        let new = open(&edited(&batch, &[tokens(0, TokenEdit::Delta(vec![1, old[0]]))]));
        let empty = open(&edited(&batch, &[tokens(0, TokenEdit::Empty)]));
        for (name, rows) in before.as_object().unwrap() {
            let entries = rows[0].as_array().unwrap();
            // A list whose length differs from the number of tokens keeps no entry.
            let kept = if entries.len() == 1 { entries[0].clone() } else { Value::Null };
            assert_eq!(new["customized_info"][name][0], json!([null, kept]), "{name}");
            assert_eq!(empty["customized_info"][name][0], json!([]), "{name}");
            assert_eq!(new["customized_info"][name][1], rows[1], "{name}");
        }
    }
}

#[test]
fn the_stop_token_that_the_detokenizer_leaves_out_stays_for_it() {
    let row = SynthRow {
        rid: "a".into(),
        ids: vec![5, 2],
        finish: Some(SynthFinish::StopToken(2)),
        completion_tokens: 9,
        ..SynthRow::default()
    };
    let batch =
        read_batch(&SynthBatch { rows: vec![row] }.encode(BatchKind::TokenId, SynthWire::Msgpack).unwrap());
    let empty = edited(&batch, &[tokens(0, TokenEdit::Empty)]);
    assert_eq!((ids(&empty, "output_ids", 0), ids(&empty, "decode_ids", 0)), (vec![], vec![2]));
    let replaced = edited(&batch, &[tokens(0, TokenEdit::Delta(vec![7]))]);
    assert_eq!((ids(&replaced, "output_ids", 0), ids(&replaced, "decode_ids", 0)), (vec![7], vec![7, 2]));
    let kept = edited(&batch, &[tokens(0, TokenEdit::Delta(vec![7, 2]))]);
    assert_eq!(ids(&kept, "decode_ids", 0), [7, 2]);
    // The detokenizer removes nothing at another finish reason.
    let finish = Edit { finish: Some(FinishReason::Stop("x".into())), ..tokens(0, TokenEdit::Empty) };
    assert!(ids(&edited(&batch, &[finish]), "decode_ids", 0).is_empty());
}

#[test]
fn text_stays_with_replaced_ids_and_goes_with_emptied_ones() {
    for wire in ["msgpack", "pickle"] {
        let batch = read_batch(&sample(&format!("frames/str_n3.{wire}")).bytes);
        let text = batch.text(0).unwrap().to_owned();
        assert_eq!(edited(&batch, &[tokens(0, TokenEdit::Delta(vec![1]))]).text(0), Some(text.as_str()));
        assert_eq!(edited(&batch, &[tokens(0, TokenEdit::Empty)]).text(0), Some(""));
    }
}

#[test]
fn a_replaced_text_goes_with_its_ids_and_is_ignored_before_a_detokenizer() {
    let new = |row, ids: &[i64]| Edit {
        text: Some("日本".into()),
        completion_tokens: Some(70),
        ..tokens(row, TokenEdit::Delta(ids.into()))
    };
    for wire in ["msgpack", "pickle"] {
        let batch = read_batch(&sample(&format!("frames/str_n3.{wire}")).bytes);
        let other = edited(&batch, &[new(1, &[7, 8])]);
        assert_eq!((other.text(1), other.tokens(1), other.completion_tokens(1)), (Some("日本"), 2, Some(70)));
        assert_eq!((other.text(0), other.text(2)), (batch.text(0), batch.text(2)));
        assert_eq!(differing(&batch, &other), ["completion_tokens", "output_ids", "output_strs"]);
        let empty = Edit { text: Some("only this".into()), ..tokens(1, TokenEdit::Empty) };
        let empty = edited(&batch, &[empty]);
        assert_eq!((empty.text(1), empty.tokens(1)), (Some("only this"), 0));
    }
    for (name, batch) in firsts() {
        let other = edited(&batch, &[new(1, &[7, 8])]);
        assert_eq!(differing(&batch, &other), ["completion_tokens", "decode_ids", "output_ids"], "{name}");
    }
}

#[test]
fn edits_must_be_ascending_one_per_row_and_of_existing_rows() {
    let batch = read_batch(&sample("frames/tokid_n3.msgpack").bytes);
    for (rows, wrong) in [(&[0, 0][..], 0), (&[1, 0], 0), (&[3], 3), (&[7], 7)] {
        let edits: Vec<_> = rows.iter().map(|&row| Edit::new(row)).collect();
        assert_eq!(batch.edit(&edits).unwrap_err(), RowsError::Row { row: wrong, rows: 3 });
    }
}

#[test]
fn tokens_and_counts_are_edited_only_where_there_are_some() {
    let batch = read_batch(&sample("frames/emb_n2.msgpack").bytes);
    let error = batch.edit(&[tokens(0, TokenEdit::Delta(vec![1]))]).unwrap_err();
    assert_eq!(error, RowsError::NoColumn { name: "output_ids" });
    let error = batch.edit(&[Edit { completion_tokens: Some(1), ..Edit::new(0) }]).unwrap_err();
    assert_eq!(error, RowsError::NoColumn { name: "completion_tokens" });
}
