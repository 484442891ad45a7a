//! Rows changed and ended by plugins.

use afterbay_wire::vllm::{SynthOutput, SynthOutputs};
use afterbay_wire::{Batch, Edit, Finish, FinishReason, Matched, RowsError, TokenEdit};
use serde_json::{Value, json};

use super::support::{as_vllm, barrier, batch, batch_of, frame, ids, join, json, last, row, sample};

fn edited(batch: &Batch, edit: Edit) -> Batch {
    batch.edit(&[edit]).unwrap().unwrap()
}

fn tokens(row: u32, tokens: TokenEdit) -> Edit {
    Edit { tokens, ..Edit::new(row) }
}

fn finish(row: u32, finish: FinishReason) -> Edit {
    Edit { finish: Some(finish), ..Edit::new(row) }
}

/// The rows as they are on the wire.
fn arrays(batch: &Batch) -> Vec<Value> {
    json(batch)["outputs"].as_array().unwrap().clone()
}

#[test]
fn replaced_ids_keep_the_logprobs_of_retained_ids_and_new_ids_get_their_own() {
    let logprobs = SynthOutput { logprobs: Some(2), ..row("a", &[10, 11, 12]) };
    let before = batch_of(1, vec![row("x", &[1]), logprobs]);
    let after = edited(&before, tokens(1, TokenEdit::Delta(vec![10, 99, 98, 12])));
    assert_eq!((ids(&after, 0), ids(&after, 1)), (vec![1], vec![10, 99, 98, 12]));
    let [one, two] =
        [&before, &after].map(|batch| as_vllm(&json(batch))["outputs"][1]["new_logprobs"].clone());
    for (name, new) in [
        ("logprob_token_ids", [json!([99, 99, 99]), json!([98, 98, 98])]),
        ("logprobs", [json!([0.0, 0.0, 0.0]), json!([0.0, 0.0, 0.0])]),
        ("sampled_token_ranks", [json!(1), json!(1)]),
    ] {
        let (old, data) = (&one[name]["data"], two[name]["data"].as_array().unwrap());
        assert_eq!(data[..], [old[0].clone(), new[0].clone(), new[1].clone(), old[2].clone()], "{name}");
        assert_eq!(two[name]["shape"][0], 4);
    }
    let emptied = edited(&before, tokens(1, TokenEdit::Empty));
    assert_eq!((emptied.tokens(1), &json(&emptied)["outputs"][1]["new_logprobs"]), (0, &Value::Null));
    // The frame's fields stay.
    assert_eq!((after.load(), emptied.load()), (before.load(), before.load()));
}

#[test]
fn ids_that_vllm_does_not_take_are_refused() {
    let batch = batch_of(1, vec![row("a", &[1])]);
    for id in [-1, 1 << 31] {
        let refused = batch.edit(&[tokens(0, TokenEdit::Delta(vec![1, id]))]);
        assert_eq!(refused.unwrap_err(), RowsError::TokenId { id });
    }
    assert_eq!(
        ids(&edited(&batch, tokens(0, TokenEdit::Delta(vec![0, (1 << 31) - 1]))), 0),
        [0, (1 << 31) - 1]
    );
}

#[test]
fn values_of_ids_that_are_no_longer_there_are_removed() {
    for (name, field) in
        [("syn_sampling_mask", "new_sampling_mask"), ("syn_routed_experts", "routed_experts")]
    {
        let before = batch(&sample(name).bytes);
        assert!(!json(&before)["outputs"][0][field].is_null());
        let after = edited(&before, tokens(0, TokenEdit::Delta(vec![5, 6])));
        assert!(json(&after)["outputs"][0][field].is_null(), "{name}");
        let same = edited(&before, tokens(0, TokenEdit::Delta(ids(&before, 0))));
        assert_eq!(json(&same)["outputs"], json(&before)["outputs"], "{name}");
    }
}

#[test]
fn a_stop_of_a_row_with_ids_is_written_as_the_ids_and_an_empty_row_and_read_as_one() {
    let before = batch_of(1, vec![row("a", &[1, 2]), row("b", &[3])]);
    let stop = |text: &str| finish(0, FinishReason::Stop(text.to_owned()));
    let after = edited(&before, stop("enough"));
    assert_eq!((after.rows(), ids(&after, 0), ids(&after, 1)), (2, vec![1, 2], vec![3]));
    assert_eq!(after.finish(0), Finish::Stop { matched: Matched::Text("enough") });
    assert_eq!(after.finishes().collect::<Vec<_>>(), [after.finish(0), Finish::Running]);
    let rows = arrays(&after);
    assert_eq!(rows.len(), 3);
    assert_eq!((&rows[0]["new_token_ids"], &rows[0]["finish_reason"]), (&json!([1, 2]), &Value::Null));
    assert_eq!((&rows[1]["request_id"], &rows[1]["new_token_ids"]), (&json!("a"), &json!([])));
    assert_eq!((&rows[1]["finish_reason"], &rows[1]["stop_reason"]), (&json!(0), &json!("enough")));

    // Taken, joined and edited again it stays two.
    let taken = after.take(&[0]).unwrap();
    assert_eq!((taken.rows(), arrays(&taken).len(), ids(&taken, 0)), (1, 2, vec![1, 2]));
    let joined = join(&[&batch_of(0, vec![row("a", &[0])]), &taken]);
    assert_eq!((joined.rows(), arrays(&joined).len(), ids(&joined, 0)), (1, 2, vec![0, 1, 2]));
    assert_eq!(joined.finish(0), after.finish(0));
    let shorter = edited(&after, tokens(0, TokenEdit::Delta(vec![9])));
    assert_eq!((arrays(&shorter).len(), ids(&shorter, 0), shorter.finish(0)), (3, vec![9], after.finish(0)));
    let emptied = edited(&after, tokens(0, TokenEdit::Empty));
    assert_eq!((arrays(&emptied).len(), emptied.tokens(0), emptied.finish(0)), (2, 0, after.finish(0)));

    // A row without ids needs no second, and gets one if ids are joined before it.
    let empty = edited(&before, Edit { tokens: TokenEdit::Empty, ..stop("x") });
    assert_eq!((arrays(&empty).len(), empty.tokens(0)), (2, 0));
    let joined = join(&[&batch_of(0, vec![row("a", &[7])]), &empty.take(&[0]).unwrap()]);
    assert_eq!((joined.rows(), arrays(&joined).len(), ids(&joined, 0)), (1, 2, vec![7]));
}

#[test]
fn other_reasons_stay_in_the_row() {
    let before = batch_of(1, vec![row("a", &[1])]);
    for (reason, number, text, read) in [
        (FinishReason::Length, 1, Value::Null, Finish::Length),
        (FinishReason::Abort("no".into()), 2, json!("no"), Finish::Abort),
        (FinishReason::Abort(String::new()), 2, Value::Null, Finish::Abort),
        (FinishReason::Error { status: 503, message: "bad".into() }, 3, json!("bad"), Finish::Error),
    ] {
        let after = edited(&before, finish(0, reason));
        let row = &arrays(&after)[0];
        assert_eq!((&row["finish_reason"], &row["stop_reason"]), (&json!(number), &text));
        assert_eq!((after.finish(0), ids(&after, 0), arrays(&after).len()), (read, vec![1], 1));
    }
}

#[test]
fn an_engines_stop_token_that_is_replaced_leaves_the_text_whole() {
    let stop = SynthOutput { stop_token: Some(2), ..last("a", &[5, 2], 0) };
    let before = batch_of(1, vec![stop]);
    let kept = edited(&before, tokens(0, TokenEdit::Delta(vec![6, 2])));
    assert_eq!((arrays(&kept).len(), ids(&kept, 0)), (1, vec![6, 2]));
    let replaced = edited(&before, tokens(0, TokenEdit::Delta(vec![6])));
    assert_eq!((arrays(&replaced).len(), ids(&replaced, 0)), (2, vec![6]));
    assert_eq!(replaced.finish(0), Finish::Stop { matched: Matched::Token(2) });
    let emptied = edited(&before, tokens(0, TokenEdit::Empty));
    assert_eq!((arrays(&emptied).len(), emptied.finish(0)), (1, replaced.finish(0)));
}

#[test]
fn values_of_the_end_stand_in_the_row_that_ends() {
    let before = batch(&sample("syn_kv_ec_trace").bytes);
    let rows = arrays(&edited(&before, finish(0, FinishReason::Stop("s".to_owned()))));
    assert_eq!(rows.len(), 2);
    for field in ["kv_transfer_params", "ec_transfer_params", "trace_headers"] {
        assert_eq!(
            (&rows[0][field], &rows[1][field]),
            (&Value::Null, &json(&before)["outputs"][0][field]),
            "{field}"
        );
        assert!(!rows[1][field].is_null(), "{field}");
    }
    let first = batch(&sample("plain_length-000").bytes);
    let rows = arrays(&edited(&first, finish(0, FinishReason::Stop("s".to_owned()))));
    assert!(!rows[0]["prefill_stats"].is_null() && !rows[0]["events"].is_null());
    assert!(rows[1]["prefill_stats"].is_null() && rows[1]["events"].is_null());
}

#[test]
fn dropped_rows_leave_the_fields_of_their_frame() {
    let outputs = SynthOutputs {
        finished_requests: vec!["gone".to_owned()],
        ..frame(4, vec![row("a", &[1]), row("b", &[2])])
    };
    let before = batch(&outputs.encode());
    let one = edited(&before, tokens(1, TokenEdit::Drop));
    assert_eq!((one.rows(), one.rid(0), one.load()), (1, "a", before.load()));
    let all = [tokens(0, TokenEdit::Drop), tokens(1, TokenEdit::Drop)];
    assert!(before.edit(&all).unwrap().is_none());
    let rest = barrier(&before.without_rows().unwrap());
    assert_eq!((rest.load(), rest.finished_requests().collect::<Vec<_>>()), (before.load(), vec!["gone"]));
}

#[test]
fn replaced_rows_bring_no_fields_of_their_frames() {
    let held = batch_of(1, vec![row("b", &[1])]).detach(&[0]).unwrap();
    let now = batch_of(2, vec![row("a", &[5]), row("b", &[2])]);
    let released = join(&[&held, &now.detach(&[1]).unwrap()]);
    let after = now.edit_replacing(&[], &[(1, &released, 0)]).unwrap().unwrap();
    assert_eq!((ids(&after, 0), ids(&after, 1)), (vec![5], vec![1, 2]));
    assert_eq!((after.load(), &json(&after)["timestamp"]), (now.load(), &json!(102.0)));
}

#[test]
fn edits_that_vllm_has_no_place_for_are_errors() {
    let batch = batch_of(1, vec![row("a", &[1])]);
    let count = Edit { completion_tokens: Some(3), ..Edit::new(0) };
    assert_eq!(batch.edit(&[count]).unwrap_err(), RowsError::NoColumn { name: "completion_tokens" });
    let cumulative = tokens(0, TokenEdit::Cumulative(vec![1]));
    assert_eq!(batch.edit(&[cumulative]).unwrap_err(), RowsError::NoColumn { name: "output_ids" });
    assert!(matches!(batch.without_detokenizing(&[0]), Err(RowsError::NotTokenIds { .. })));
}

#[test]
fn ended_requests_have_no_ids_and_the_frame_keeps_its_fields() {
    let before = batch_of(1, vec![row("a", &[1]), row("b", &[2]), row("c", &[3])]);
    let ended = before.ended(&[0, 2], &FinishReason::Abort("no plugin judged it".into())).unwrap();
    assert_eq!(ended.rids().collect::<Vec<_>>(), ["a", "c"]);
    assert!(ended.finishes().all(|finish| finish == Finish::Abort));
    assert_eq!((ended.tokens(0), ended.load()), (0, before.load()));
    assert_eq!(json(&ended)["outputs"][0]["stop_reason"], "no plugin judged it");
}
