//! SMG's wire: frames that its plugin's own classes wrote (`tests/fixtures/smg`), and what the crate writes of them.

use std::fs;

use afterbay_wire::synth::{SynthBatch, SynthFinish, SynthRow, SynthWire};
use afterbay_wire::{
    Barrier, BarrierKind, Batch, BatchKind, BatchPart, DecodedFrame, Decoder, Edit, Engine, Finish,
    FinishReason, Introduction, Layouts, Matched, RowsError, TokenEdit, Wrapped, decode,
};
use bytes::Bytes;
use serde_json::{Value, json};

use crate::erase::is_blank;
use crate::samples::{SMG, root};
use crate::value_len::value_len;

fn bytes(name: &str) -> Bytes {
    fs::read(root().join(SMG).join(format!("{name}.frame"))).unwrap().into()
}

fn read(bytes: Bytes) -> Result<Batch, Box<Barrier>> {
    match decode(bytes, &Layouts::of(Engine::Smg)) {
        DecodedFrame::Batch(batch) => Ok(batch),
        DecodedFrame::Barrier(barrier) => Err(Box::new(barrier)),
    }
}

fn batch(name: &str) -> Batch {
    read(bytes(name)).unwrap_or_else(|barrier| panic!("{name}: {}", barrier.kind))
}

fn json(batch: &Batch) -> Value {
    let mut json = batch.to_json(Wrapped::Keep);
    json.as_object_mut().unwrap().remove("__struct__");
    json
}

fn join(parts: &[&Batch]) -> Batch {
    Batch::join(&parts.iter().map(|batch| BatchPart::from(*batch)).collect::<Vec<_>>()).unwrap()
}

fn ids(batch: &Batch, row: u32) -> Vec<i64> {
    let mut ids = Vec::new();
    batch.row_ids(row, &mut ids);
    ids
}

fn introduction() -> Value {
    serde_json::from_slice(&fs::read(root().join(SMG).join("introduction.frame")).unwrap()).unwrap()
}

fn introduced(introduction: &Value) -> Layouts {
    Layouts::introduced(&Introduction::read(introduction.to_string().as_bytes()).unwrap()).unwrap()
}

const ROWS: [&str; 6] = ["plain-0", "plain-1", "logprobs-0", "logprobs-1", "ends", "embedding"];

#[test]
fn every_field_is_read_by_the_name_that_smgs_own_class_gives_it() {
    for name in ROWS {
        let path = root().join(SMG).join(format!("{name}.json"));
        let expected: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        for layouts in [Layouts::of(Engine::Smg), Layouts::builtin(), introduced(&introduction())] {
            let DecodedFrame::Batch(batch) = decode(bytes(name), &layouts) else {
                panic!("{name}: a barrier")
            };
            assert_eq!(json(&batch), expected, "{name}");
            assert_eq!(batch.engine(), Engine::Smg);
        }
    }
}

#[test]
fn a_row_has_its_ids_counts_logprobs_and_end() {
    let plain = batch("plain-1");
    assert_eq!((plain.rid(1), ids(&plain, 0), ids(&plain, 1)), ("b", vec![12, 13], vec![70000]));
    assert_eq!(
        (plain.completion_tokens(0), plain.prompt_tokens(0), plain.cached_tokens(0)),
        (Some(3), Some(7), Some(0))
    );
    assert_eq!(plain.finish(0), Finish::Stop { matched: Matched::Token(13) });
    assert_eq!((plain.is_first(0), batch("plain-0").first_rows()), (false, 2));
    let load = plain.load().unwrap();
    assert_eq!((load.engine, load.running, load.waiting, load.kv_cache_usage), (0, 3, 1, 0.25));
    let ends = batch("ends");
    let expected = [Finish::Stop { matched: Matched::Text("\n\n") }, Finish::Abort, Finish::Length];
    assert_eq!(ends.finishes().collect::<Vec<_>>(), expected);
    let mut logprobs = Vec::new();
    assert!(batch("logprobs-0").logprobs(0, &mut logprobs));
    assert_eq!(logprobs, [-0.5]);
    assert_eq!(batch("refused").finish(0), Finish::Abort);
}

#[test]
fn messages_without_rows_keep_their_place() {
    for (frame, tag) in
        [(bytes("reply"), "ControlReplySlim"), ("ENGINE_CORE_DEAD".into(), "ENGINE_CORE_DEAD")]
    {
        let barrier = read(frame).unwrap_err();
        assert_eq!(
            (&barrier.kind, barrier.counted()),
            (&BarrierKind::Control { tag: tag.to_owned() }, false)
        );
    }
    let idle = SynthBatch::default().encode(BatchKind::TokenId, SynthWire::Slim).unwrap();
    assert_eq!(read(idle).unwrap_err().kind, BarrierKind::Idle { kind: BatchKind::TokenId });
}

#[test]
fn rows_that_are_taken_apart_and_joined_again_are_the_same_frame() {
    for name in ROWS {
        let whole = batch(name);
        let rows: Vec<_> = (0..whole.rows()).map(|row| whole.take(&[row]).unwrap()).collect();
        assert_eq!(join(&rows.iter().collect::<Vec<_>>()).bytes(), whole.bytes(), "{name}");
    }
}

#[test]
fn the_rows_of_a_request_become_one_with_all_lists_and_the_last_counts() {
    let joined = join(&[&batch("plain-0"), &batch("plain-1")]);
    let shown = json(&joined);
    assert_eq!(shown["output_ids"], json!([[11, 12, 13], [300, 70000]]));
    assert_eq!(
        (&shown["completion_tokens"], &shown["finished_reasons"]),
        (&json!([3, 2]), &json!(["stop", ""]))
    );
    let shown = json(&join(&[&batch("logprobs-0"), &batch("logprobs-1")]));
    assert_eq!(shown["output_token_logprobs_val"], json!([[-0.5, -0.75]]));
    assert_eq!(shown["output_top_logprobs_idx"], json!([[[11, 5], [12, 6]]]));
    // The prompt's, and what only the first row has.
    assert_eq!(shown["input_token_logprobs_val"], json!([[null, -2.0]]));
    assert_eq!(shown["output_hidden_states"], json!([[[0.5, 1.5]]]));
    // The refused row's frame has no optional columns.
    let shown = json(&join(&[&batch("logprobs-0"), &batch("refused")]));
    assert_eq!((&shown["finished_status"], &shown["reasoning_tokens"]), (&json!([400]), &json!([0])));
}

#[test]
fn frames_of_two_ranks_are_not_joined() {
    let mut other = batch("plain-1").bytes().to_vec();
    let at = other.windows(5).position(|window| window == [0, 3, 1, 0xcd, 1]).unwrap();
    other[at] = 1;
    let (one, other) = (batch("plain-0"), read(other.into()).unwrap());
    let parts: Vec<BatchPart<'_>> = [&one, &other].map(BatchPart::from).to_vec();
    assert_eq!((other.engine_index(), one.is_like(&other)), (Some(1), false));
    assert!(matches!(Batch::join(&parts), Err(RowsError::Mixed { .. })));
}

#[test]
fn an_edit_changes_all_columns_that_must_agree() {
    let whole = batch("logprobs-1");
    let edit = Edit {
        tokens: TokenEdit::Delta(vec![7, 12]),
        completion_tokens: Some(3),
        finish: Some(FinishReason::Stop("x".to_owned())),
        ..Edit::new(0)
    };
    let edited = whole.edit(&[edit]).unwrap().unwrap();
    let shown = json(&edited);
    assert_eq!((&shown["output_ids"], &shown["completion_tokens"]), (&json!([[7, 12]]), &json!([3])));
    assert_eq!(shown["output_token_logprobs_val"], json!([[0.0, -0.75]]));
    assert_eq!(shown["output_token_logprobs_idx"], json!([[7, 12]]));
    assert_eq!(shown["output_top_logprobs_val"], json!([[[], [-0.75, -1.5]]]));
    assert_eq!((&shown["finished_reasons"], &shown["finished_matched"]), (&json!(["stop"]), &json!(["x"])));

    let abort = |row| Edit {
        tokens: TokenEdit::Empty,
        finish: Some(FinishReason::Error { status: 403, message: String::new() }),
        ..Edit::new(row)
    };
    let ended = batch("plain-0")
        .edit(&[Edit { tokens: TokenEdit::Drop, ..Edit::new(0) }, abort(1)])
        .unwrap()
        .unwrap();
    let shown = json(&ended);
    assert_eq!((ended.rows(), &shown["rids"], &shown["output_ids"]), (1, &json!(["b"]), &json!([[]])));
    assert_eq!(
        (&shown["finished_messages"], &shown["finished_status"]),
        (&json!(["Aborted"]), &json!([403]))
    );
    // A frame without the optional columns gets those of the end.
    let shown = json(&batch("refused").edit(&[abort(0)]).unwrap().unwrap());
    assert_eq!((&shown["finished_status"], &shown["output_top_logprobs_val"]), (&json!([403]), &Value::Null));
    let drops = Edit { tokens: TokenEdit::Drop, ..Edit::new(0) };
    assert!(whole.edit(&[drops]).unwrap().is_none());
}

#[test]
fn an_edit_that_smg_could_not_read_is_refused() {
    let whole = batch("plain-0");
    let edit = |tokens| whole.edit(&[Edit { tokens, ..Edit::new(0) }]).unwrap_err();
    assert_eq!(edit(TokenEdit::Cumulative(vec![1])), RowsError::NoColumn { name: "output_ids" });
    assert_eq!(edit(TokenEdit::Delta(vec![-1])), RowsError::TokenId { id: -1 });
}

#[test]
fn a_row_that_is_replaced_takes_the_place_of_the_old_one_in_this_frame() {
    let (held, whole) = (batch("plain-0").take(&[1]).unwrap(), batch("plain-1"));
    let joined = join(&[&held, &whole.take(&[1]).unwrap()]);
    let edited = whole.edit_replacing(&[Edit::new(0)], &[(1, &joined, 0)]).unwrap().unwrap();
    assert_eq!((ids(&edited, 0), ids(&edited, 1)), (vec![12, 13], vec![300, 70000]));
}

#[test]
fn an_end_has_the_rid_and_counts_of_the_row_and_nothing_else_of_it() {
    let ended = batch("logprobs-0").ended(&[0], &FinishReason::Abort("a guard failed".into())).unwrap();
    let shown = json(&ended);
    assert_eq!((ended.finish(0), &shown["finished_messages"]), (Finish::Abort, &json!(["a guard failed"])));
    assert_eq!((&shown["output_ids"], &shown["completion_tokens"]), (&json!([[]]), &json!([1])));
    for name in ["output_token_logprobs_val", "input_token_logprobs_idx"] {
        assert_eq!(shown[name], json!([[]]), "{name}");
    }
    assert_eq!(shown["output_hidden_states"], json!([null]));
}

#[test]
fn an_erased_row_has_no_content_and_the_other_rows_keep_theirs() {
    for name in ROWS {
        let whole = batch(name);
        let mut decoder = Decoder::new(Layouts::of(Engine::Smg));
        let last = whole.rid(whole.rows() - 1).to_owned();
        let erased = decoder.erase(whole.bytes(), |rid| rid == last.as_bytes()).unwrap();
        assert_eq!((erased.rows, erased.left.len()), (1, 0), "{name}");
        let (before, after) = (json(&whole), json(&read(erased.bytes).unwrap()));
        let row = whole.rows() as usize - 1;
        for (field, column) in before.as_object().unwrap().iter().filter(|(_, column)| column.is_array()) {
            assert_eq!(
                after[field].as_array().unwrap()[..row],
                column.as_array().unwrap()[..row],
                "{name} {field}"
            );
        }
        for content in
            ["output_ids", "finished_messages", "finished_matched", "output_top_logprobs_val", "embeddings"]
        {
            assert!(
                after.get(content).is_none_or(|column| is_blank(&column[row])),
                "{name} {content}: {}",
                after[content]
            );
        }
        assert_eq!(
            (&after["rids"], &after["finished_reasons"]),
            (&before["rids"], &before["finished_reasons"])
        );
    }
}

/// The frame with other columns: `change` gets their bytes.
fn changed(name: &str, change: impl Fn(&mut Vec<Vec<u8>>)) -> Bytes {
    let (frame, mut columns, mut at) = (bytes(name), Vec::new(), 3);
    while at < frame.len() {
        let start = at;
        at += value_len(&frame[at..]);
        columns.push(frame[start..at].to_vec());
    }
    change(&mut columns);
    [&[0xdc, 0, columns.len() as u8][..], &columns.concat()].concat().into()
}

#[test]
fn an_older_plugin_sends_fewer_columns_and_a_newer_one_introduces_its_own() {
    let older = read(changed("plain-1", |columns| columns.truncate(16))).unwrap();
    assert_eq!((ids(&older, 0), older.finish(1)), (vec![12, 13], Finish::Running));
    assert!(json(&older).get("finished_status").is_none());

    let newer = changed("plain-1", |columns| columns.insert(3, vec![0x92, 0x01, 0xc0]));
    assert!(read(newer.clone()).unwrap_err().hides_rows());
    let mut introduction = introduction();
    introduction["classes"]["BatchTokenIDSlimOutput"]
        .as_array_mut()
        .unwrap()
        .insert(2, json!(["brand_new", null]));
    let layouts = introduced(&introduction);
    assert_eq!(layouts.unknown_fields(), ["brand_new"]);
    let DecodedFrame::Batch(newer) = decode(newer, &layouts) else { panic!("a barrier") };
    assert_eq!((ids(&newer, 0), &json(&newer)["brand_new"]), (vec![12, 13], &json!([1, null])));
    assert_eq!(json(&newer.take(&[0]).unwrap())["brand_new"], json!([1]));
    let [first, second] = [1, 1].map(|_| newer.take(&[1]).unwrap());
    assert_eq!(ids(&join(&[&first, &second]), 0), [70000, 70000], "nil in an unknown column is joined");
}

#[test]
fn a_row_with_a_wrong_cell_is_unread_and_a_frame_of_them_is_not_understood() {
    let one = changed("plain-0", |columns| columns[2] = vec![0x92, 0x91, 0x0b, 0xa1, b'x']);
    let batch = read(one).unwrap();
    assert_eq!((batch.unread().len(), batch.is_unread(1), batch.tokens(1)), (1, true, 0));
    assert_eq!(batch.ended(&[1], &FinishReason::Length).unwrap().rid(0), "b");
    for ids in [vec![0x92, 0xc0, 0xc0], vec![0xc0], vec![0x91, 0x90]] {
        let barrier = read(changed("plain-0", |columns| columns[2].clone_from(&ids))).unwrap_err();
        assert!(barrier.hides_rows(), "{ids:?}: {}", barrier.kind);
        assert_eq!(barrier.named_rows().map(Batch::rows), Some(2), "{ids:?}");
    }
}

#[test]
fn no_cut_and_no_changed_byte_of_a_frame_is_a_panic() {
    for name in ROWS {
        let frame = bytes(name);
        for at in 0..frame.len() {
            _ = read(frame.slice(..at));
            for byte in [0x00, 0x90, 0xc0, 0xdd, 0xff] {
                let mut frame = frame.to_vec();
                frame[at] = byte;
                if let Ok(batch) = read(frame.into()) {
                    let row = batch.rows() - 1;
                    _ = (
                        batch.take(&[row]).map(|taken| Batch::join(&[BatchPart::from(&taken)])),
                        batch.load(),
                    );
                    _ = (
                        batch.ended(&[row], &FinishReason::Length),
                        batch.edit(&[Edit { tokens: TokenEdit::Empty, ..Edit::new(row) }]),
                    );
                    _ = Decoder::new(Layouts::of(Engine::Smg)).erase(batch.bytes(), |_| true);
                }
            }
        }
    }
}

#[test]
fn a_synthetic_frame_has_the_fields_that_the_plugin_writes() {
    let row = |rid: &str, finish| SynthRow {
        rid: rid.to_owned(),
        ids: vec![1, 2],
        completion_tokens: 2,
        prompt_tokens: 3,
        finish,
        ..SynthRow::default()
    };
    let rows = vec![
        row("a", None),
        row("b", Some(SynthFinish::StopToken(2))),
        row("c", Some(SynthFinish::Abort("no".to_owned()))),
    ];
    let synthetic = read(SynthBatch { rows }.encode(BatchKind::TokenId, SynthWire::Slim).unwrap()).unwrap();
    let names = |batch: &Batch| json(batch).as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&synthetic), names(&batch("ends")));
    assert_eq!(
        (synthetic.first_rows(), synthetic.finish(1)),
        (3, Finish::Stop { matched: Matched::Token(2) })
    );
}
