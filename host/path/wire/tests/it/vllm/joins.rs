//! Rows taken out of frames, and rows of several frames joined.

use afterbay_wire::vllm::{SynthOutput, SynthOutputs};
use afterbay_wire::{Batch, BatchPart, Edit, Finish, Matched, RowsError, TokenEdit};
use bytes::Bytes;
use serde_json::{Value, json};

use super::support::{as_vllm, batch, batch_of, frame, ids, join, json, last, row, sample, split_and_join};

fn decoded(batch: &Batch) -> Value {
    as_vllm(&json(batch))
}

fn with_logprobs(rid: &str, ids: &[i64], others: u32) -> SynthOutput {
    SynthOutput { logprobs: Some(others), ..row(rid, ids) }
}

#[test]
fn rows_of_a_request_become_one_with_all_ids_and_the_last_finish() {
    let frames = [
        batch_of(1, vec![SynthOutput { prompt_tokens: Some(9), ..row("a", &[1]) }, row("b", &[300, 70_000])]),
        batch_of(2, vec![row("b", &[4]), row("a", &[])]),
        batch_of(3, vec![last("a", &[5, 6], 1), row("c", &[7])]),
    ];
    let joined = join(&frames.iter().collect::<Vec<_>>());
    assert_eq!(joined.rids().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(
        [ids(&joined, 0), ids(&joined, 1), ids(&joined, 2)],
        [vec![1, 5, 6], vec![300, 70_000, 4], vec![7]]
    );
    assert_eq!(joined.finishes().collect::<Vec<_>>(), [Finish::Length, Finish::Running, Finish::Running]);
    assert_eq!((joined.is_first(0), joined.prompt_tokens(0), joined.is_first(1)), (true, Some(9), false));
}

#[test]
fn many_ids_and_long_names_keep_their_headers() {
    let long = "r".repeat(300);
    let rows: Vec<Batch> =
        (0..70_i64).map(|step| batch_of(1, vec![row(&long, &[step, step + 1000])])).collect();
    let joined = join(&rows.iter().collect::<Vec<_>>());
    assert_eq!((joined.rid(0), joined.tokens(0)), (long.as_str(), 140));
    assert_eq!(ids(&joined, 0), (0..70).flat_map(|step| [step, step + 1000]).collect::<Vec<_>>());
}

#[test]
fn logprobs_are_put_together_along_the_tokens_whether_in_parts_or_in_the_row() {
    let in_parts = batch(&sample("syn_logprobs_aux").bytes);
    let three = TokenEdit::Delta(vec![0, 1, 5]);
    let in_row = in_parts.edit(&[Edit { tokens: three, ..Edit::new(0) }]).unwrap().unwrap();
    assert_ne!(in_row.bytes()[0], 0xc1);
    let joined = join(&[&in_parts, &in_row, &in_parts]);
    let [one, two, all] =
        [&in_parts, &in_row, &joined].map(|batch| decoded(batch)["outputs"][0]["new_logprobs"].clone());
    for name in ["logprob_token_ids", "logprobs"] {
        assert_eq!(all[name]["shape"], json!([83, 21]), "{name}");
        let data = |json: &Value| json[name]["data"].as_array().unwrap().clone();
        assert_eq!(data(&all), [data(&one), data(&two), data(&one)].concat(), "{name}");
    }
    assert_eq!(all["sampled_token_ranks"]["shape"], json!([83]));
    assert_ne!(joined.bytes()[0], 0xc1, "the joined frame has one part");
}

#[test]
fn rows_whose_values_cannot_be_joined_stay_single() {
    let column = |parts: &[&Batch]| {
        let parts: Vec<_> = parts.iter().map(|batch| BatchPart::from(*batch)).collect();
        match Batch::join(&parts) {
            Err(RowsError::Column { name, .. }) => name,
            other => panic!("{other:?}"),
        }
    };
    for (name, field) in [
        ("syn_sampling_mask", "new_sampling_mask"),
        ("syn_routed_experts", "routed_experts"),
        ("syn_pooling", "pooling_output"),
        ("prompt_logprobs_long-000", "new_prompt_logprobs_tensors"),
    ] {
        let first = batch(&sample(name).bytes);
        let columns = &decoded(&first)["outputs"][0]["new_logprobs"]["logprobs"]["shape"][1];
        let logprobs = columns.as_u64().map(|columns| columns as u32 - 1);
        let next = SynthOutput { logprobs, ..row(first.rid(0), &[7]) };
        let next = SynthOutputs { rows: vec![next], ..SynthOutputs::default() };
        let next = batch(&with_weights_of(&first, next));
        match first.finish(0) {
            Finish::Running => assert_eq!(column(&[&first, &next]), field),
            _ => assert_eq!(column(&[&next, &first]), field),
        }
        // Rows of other requests may stand beside them.
        let other = batch(&with_weights_of(&first, frame(1, vec![row("other", &[1])])));
        assert_eq!(decoded(&join(&[&other, &first]))["outputs"][1], decoded(&first)["outputs"][0], "{name}");
    }
    let wide = batch_of(1, vec![with_logprobs("a", &[1], 3)]);
    for other in [with_logprobs("a", &[1], 4), row("a", &[2])] {
        assert_eq!(column(&[&wide, &batch_of(2, vec![other])]), "new_logprobs");
    }
    // A row without ids needs no logprobs.
    let ended = join(&[&wide, &batch_of(2, vec![last("a", &[], 1)])]);
    assert_eq!(decoded(&ended)["outputs"][0]["new_logprobs"], decoded(&wide)["outputs"][0]["new_logprobs"]);
}

/// The frame of `outputs`, with no version of the weights if the other batch has none.
fn with_weights_of(other: &Batch, outputs: SynthOutputs) -> Bytes {
    let bytes = outputs.encode();
    if json(other)["weight_version"].is_null() {
        let cut = bytes.len() - b"\xa7default".len();
        return [&bytes[..cut], &[0xc0]].concat().into();
    }
    bytes
}

#[test]
fn a_request_has_no_row_after_its_last() {
    let end = batch_of(1, vec![last("a", &[1], 0)]);
    let parts = [BatchPart::from(&end), BatchPart::from(&end)];
    assert_eq!(Batch::join(&parts).unwrap_err(), RowsError::AfterFinish { rid: "a".to_owned() });
}

#[test]
fn the_fields_of_a_frame_go_with_its_last_row_and_with_no_other() {
    let outputs = SynthOutputs {
        finished_requests: vec!["gone".to_owned()],
        ..frame(3, vec![row("a", &[1]), row("b", &[2]), row("c", &[3])])
    };
    let whole = batch(&outputs.encode());
    for (rows, has) in [(&[0, 1][..], false), (&[2], true), (&[0, 2], true), (&[1], false)] {
        let taken = whole.take(rows).unwrap();
        assert_eq!(taken.load().is_some(), has, "{rows:?}");
        assert_eq!(taken.finished_requests().count() == 1, has, "{rows:?}");
        let part = BatchPart { batch: &whole, rows: Some(rows) };
        assert_eq!(Batch::join(&[part]).unwrap().bytes(), taken.bytes(), "{rows:?}");
        assert_eq!(json(&taken)["timestamp"], json(&whole)["timestamp"]);
        let detached = whole.detach(rows).unwrap();
        assert_eq!(detached.load(), None, "{rows:?}");
        assert_eq!(Batch::join_detached(&[part]).unwrap().bytes(), detached.bytes(), "{rows:?}");
    }
    assert_eq!(split_and_join(&whole).bytes(), whole.bytes());
    let rest = batch(&whole.without_rows().map(|bytes| with_row(&bytes)).unwrap());
    assert_eq!((rest.load(), rest.finished_requests().count()), (whole.load(), 1));
    let bare = SynthOutputs { rows: vec![row("a", &[1])], ..SynthOutputs::default() };
    assert_eq!(batch(&bare.encode()).without_rows(), None);
}

/// A frame without rows, with one.
fn with_row(bytes: &Bytes) -> Bytes {
    let row = &SynthOutputs { rows: vec![row("x", &[1])], ..SynthOutputs::default() }.encode();
    let (head, rest) = bytes.split_at(2);
    assert_eq!((head, rest[0]), (&[0x99, 0][..], 0x90));
    let end = row.len() - (6 + b"\xa7default".len() + 8);
    [head, &row[2..end], &rest[1..]].concat().into()
}

#[test]
fn statistics_of_joined_frames_are_added_where_they_are_of_a_step_and_else_the_last() {
    let first = SynthOutput { prompt_tokens: Some(9), ..row("a", &[1]) };
    let frames = [
        batch_of(1, vec![first]),
        batch_of(2, vec![row("a", &[2]), SynthOutput { prompt_tokens: Some(5), ..row("b", &[1]) }]),
        batch_of(3, vec![row("a", &[3])]),
    ];
    let joined = join(&frames.iter().collect::<Vec<_>>());
    let fields = json(&joined);
    assert_eq!(fields["timestamp"], 103.0);
    let stats = &fields["scheduler_stats"];
    assert_eq!((&stats["num_running_reqs"], &stats["num_waiting_reqs"]), (&json!(1), &json!(3)));
    let prefix = &stats["prefix_cache_stats"];
    assert_eq!((&prefix["requests"], &prefix["queries"]), (&json!(2), &json!(14)));
    assert_eq!(prefix["reset"], false);
    let keys = |json: &Value| json.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(stats), keys(&json(&frames[0])["scheduler_stats"]));

    let spec = [batch(&sample("spec_row5").bytes), batch(&sample("spec_row1").bytes)];
    let [one, two] =
        spec.each_ref().map(|batch| json(batch)["scheduler_stats"]["spec_decoding_stats"].clone());
    let parts = [&spec[0], &spec[1], &spec[0]];
    let both = json(&join(&parts))["scheduler_stats"]["spec_decoding_stats"].clone();
    assert_eq!(both["num_spec_tokens"], one["num_spec_tokens"]);
    for key in ["num_drafts", "num_draft_tokens", "num_accepted_tokens"] {
        let sum = 2 * one[key].as_u64().unwrap() + two[key].as_u64().unwrap_or(0);
        assert_eq!(both[key], sum, "{key}");
    }
    for key in ["num_accepted_tokens_per_pos", "num_draft_tokens_per_pos"] {
        let at = |json: &Value, at: usize| json[key][at].as_u64().unwrap_or(0);
        let sums: Vec<u64> = (0..4).map(|pos| 2 * at(&one, pos) + at(&two, pos)).collect();
        assert_eq!(both[key], json!(sums), "{key}");
    }
}

#[test]
fn names_of_ended_requests_stand_one_after_the_other() {
    let ended = |step, names: &[&str]| {
        let finished_requests = names.iter().map(|name| (*name).to_owned()).collect();
        batch(&SynthOutputs { finished_requests, ..frame(step, vec![row("a", &[1])]) }.encode())
    };
    let joined = join(&[&ended(1, &["x", "y"]), &ended(2, &[]), &ended(3, &["z"])]);
    assert_eq!(joined.finished_requests().collect::<Vec<_>>(), ["x", "y", "z"]);
}

#[test]
fn answers_and_other_engines_share_no_frame() {
    let plain = batch_of(1, vec![row("a", &[1])]);
    let answer = SynthOutputs { answers: Some(7), ..frame(2, vec![row("a", &[2]), row("b", &[3])]) };
    let answer = batch(&with_weights_of(&plain, answer));
    let engine = batch(&SynthOutputs { engine_index: 1, ..frame(2, vec![row("a", &[2])]) }.encode());
    for other in [&answer, &engine] {
        assert!(!plain.is_like(other) && !other.is_like(&plain));
        let parts = [BatchPart::from(&plain), BatchPart::from(other)];
        assert!(matches!(Batch::join(&parts), Err(RowsError::Mixed { part: 1, .. })));
    }
    // Rows of one frame with an answer: the answer is in one of the frames.
    let answers = |batch: &Batch| !json(batch)["utility_output"].is_null();
    assert!(!answers(&answer.take(&[0]).unwrap()) && answers(&answer.take(&[1]).unwrap()));
    let part = BatchPart { batch: &answer, rows: Some(&[0, 1]) };
    assert!(answers(&Batch::join(&[part]).unwrap()));
}

#[test]
fn a_stop_token_is_still_the_last_id_after_a_join() {
    let stop = SynthOutput { stop_token: Some(2), ..last("a", &[2], 0) };
    let joined = join(&[&batch_of(1, vec![row("a", &[1])]), &batch_of(2, vec![stop])]);
    assert_eq!(joined.finish(0), Finish::Stop { matched: Matched::Token(2) });
    assert_eq!(ids(&joined, 0), [1, 2]);
    assert_eq!(json(&joined)["outputs"].as_array().unwrap().len(), 1);
}

#[test]
fn parts_that_no_row_names_keep_the_frame_whole() {
    let sample = sample("syn_logprobs_aux").bytes;
    // A fourth part.
    let parts = afterbay_types::parts::split(&sample).unwrap();
    let more = [parts, vec![Bytes::from_static(b"more")]].concat();
    let whole = batch(&afterbay_types::parts::join(&more));
    assert_eq!(whole.take(&[0]).unwrap_err(), RowsError::Split { name: "parts".to_owned() });
    assert_eq!((whole.tokens(0), whole.unread()), (40, &[][..]));
}
