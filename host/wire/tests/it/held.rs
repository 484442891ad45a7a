//! Rows that were held, and what leaves when they go on.

use afterbay_wire::synth::{SynthBatch, SynthFinish, SynthRow, SynthWire};
use afterbay_wire::{Batch, Edit, Finish, FinishReason, Held, Kind, RowsError, Tokens};

use crate::samples::{open, read_batch, sample};

const WIRES: [SynthWire; 2] = [SynthWire::Msgpack, SynthWire::Pickle];

fn row(rid: &str, ids: &[i64], completion_tokens: u64) -> SynthRow {
    let text = ids.iter().map(|id| format!(" {id}")).collect();
    SynthRow { rid: rid.into(), ids: ids.into(), text, completion_tokens, ..SynthRow::default() }
}

fn batch(kind: Kind, wire: SynthWire, rows: &[SynthRow]) -> Batch {
    read_batch(&SynthBatch { rows: rows.to_vec() }.encode(kind, wire).unwrap())
}

fn ids(batch: &Batch, row: u32) -> Vec<i64> {
    let mut ids = Vec::new();
    batch.row_ids(row, &mut ids);
    ids
}

fn rids(batch: &Batch) -> Vec<&str> {
    batch.rids().collect()
}

/// Two rows of `a` that wait, its first among them, and a frame with its third between others.
fn waiting(kind: Kind, wire: SynthWire) -> (Vec<Batch>, Batch) {
    let first = SynthRow { prompt_tail: vec![70, 71], ..row("a", &[1], 1) };
    let frames = [
        batch(kind, wire, &[first, row("b", &[11], 5)]),
        batch(kind, wire, &[row("b", &[12], 6), row("a", &[2, 3], 3)]),
    ];
    let held = vec![frames[0].take(&[0]).unwrap(), frames[1].take(&[1]).unwrap()];
    (held, batch(kind, wire, &[row("b", &[13], 7), row("a", &[4], 4), row("c", &[21], 1)]))
}

fn each() -> impl Iterator<Item = (Kind, Vec<Batch>, Batch)> {
    let kinds = [Kind::TokenId, Kind::Str];
    kinds.into_iter().flat_map(|kind| {
        WIRES.map(|wire| {
            let (held, frame) = waiting(kind, wire);
            (kind, held, frame)
        })
    })
}

#[test]
fn what_was_held_becomes_one_with_the_row_that_releases_it() {
    for (kind, held, frame) in each() {
        let released = frame.edit_after(&[], &[Held { row: 1, rows: &held, join: true }]).unwrap();
        assert!(released.before.is_empty());
        let whole = released.batch.unwrap();
        assert_eq!(rids(&whole), ["b", "a", "c"]);
        assert_eq!((ids(&whole, 0), ids(&whole, 1), ids(&whole, 2)), (vec![13], vec![1, 2, 3, 4], vec![21]));
        assert_eq!(whole.completion_tokens(1), Some(4));
        if kind == Kind::Str {
            assert_eq!(whole.text(1), Some(" 1 2 3 4"));
        } else {
            assert_eq!(open(&whole)["decode_ids"][1]["v"], serde_json::json!([70, 71, 1, 2, 3, 4]));
        }
    }
}

#[test]
fn where_nothing_may_be_joined_what_was_held_goes_before_as_it_came() {
    for (_, held, frame) in each() {
        let released = frame.edit_after(&[], &[Held { row: 1, rows: &held, join: false }]).unwrap();
        let before: Vec<_> = released.before.iter().map(open).collect();
        assert_eq!(before, held.iter().map(open).collect::<Vec<_>>());
        assert_eq!(open(&released.batch.unwrap()), open(&frame));
    }
}

#[test]
fn other_tokens_stand_in_place_of_all_that_waited() {
    for (kind, held, frame) in each() {
        let edit = Edit {
            tokens: Tokens::Delta(vec![90, 91]),
            text: Some("***".into()),
            finish: Some(FinishReason::Stop("masked".into())),
            completion_tokens: Some(2),
            ..Edit::new(1)
        };
        let held = [Held { row: 1, rows: &held, join: true }];
        let released = frame.edit_after(&[edit], &held).unwrap();
        assert!(released.before.is_empty());
        let whole = released.batch.unwrap();
        assert_eq!((ids(&whole, 1), whole.completion_tokens(1)), (vec![90, 91], Some(2)));
        assert!(matches!(whole.finish(1), Finish::Stop { .. }));
        assert_eq!(whole.finish(0), Finish::Running);
        if kind == Kind::Str {
            assert_eq!((whole.text(0), whole.text(1)), (Some(" 13"), Some("***")));
        } else {
            assert_eq!(open(&whole)["decode_ids"][1]["v"], serde_json::json!([70, 71, 90, 91]));
        }
    }
}

#[test]
fn other_rows_of_the_frame_are_edited_beside() {
    for (_, held, frame) in each() {
        let edits = [
            Edit { tokens: Tokens::Drop, ..Edit::new(0) },
            Edit { tokens: Tokens::Delta(vec![5]), ..Edit::new(2) },
        ];
        let released = frame.edit_after(&edits, &[Held { row: 1, rows: &held, join: true }]).unwrap();
        let whole = released.batch.unwrap();
        assert_eq!(rids(&whole), ["a", "c"]);
        assert_eq!((ids(&whole, 0), ids(&whole, 1)), (vec![1, 2, 3, 4], vec![5]));
        let all: Vec<_> = (0..3).map(|row| Edit { tokens: Tokens::Drop, ..Edit::new(row) }).collect();
        let nothing = frame.edit_after(&all, &[Held { row: 1, rows: &held, join: false }]).unwrap();
        assert!(nothing.batch.is_none() && nothing.before.is_empty());
    }
}

/// Hidden states are not joined: what waited keeps them, without the tokens that are replaced.
#[test]
fn rows_that_cannot_become_one_go_before_without_what_is_replaced() {
    for wire in ["msgpack", "pickle"] {
        let frame = read_batch(&sample(&format!("frames/tokid_hidden_states.{wire}")).bytes);
        let row =
            (0..frame.rows()).find(|row| !open(&frame)["output_hidden_states"][*row as usize].is_null());
        let row = row.unwrap();
        let held = [frame.take(&[row]).unwrap(), frame.take(&[row]).unwrap()];
        let edit = |tokens, completion_tokens| Edit { tokens, completion_tokens, ..Edit::new(row) };
        let of = |edits: &[Edit]| frame.edit_after(edits, &[Held { row, rows: &held, join: true }]).unwrap();

        let released = of(&[edit(Tokens::Delta(vec![7, 8]), Some(30))]);
        assert_eq!(released.before.len(), 2, "{wire}");
        for before in &released.before {
            assert_eq!((ids(before, 0), before.completion_tokens(0)), (vec![], Some(28)));
            assert_eq!(open(before)["output_hidden_states"], open(&held[0])["output_hidden_states"]);
        }
        let last = released.batch.unwrap();
        assert_eq!((ids(&last, row), last.completion_tokens(row)), (vec![7, 8], Some(30)));

        // What keeps its tokens is counted as the last is: here three more than came.
        let came = frame.completion_tokens(row).unwrap();
        let released = of(&[edit(Tokens::Keep, Some(came + 3))]);
        for before in &released.before {
            assert_eq!((ids(before, 0), before.completion_tokens(0)), (ids(&held[0], 0), Some(came + 3)));
        }
        assert_eq!(of(&[edit(Tokens::Drop, None)]).before.len(), 0);
    }
}

#[test]
fn a_row_that_cannot_stand_in_its_frame_when_it_is_joined_goes_before_it() {
    let held = read_batch(&sample("frames/tokid_customized_info.msgpack").bytes).take(&[0]).unwrap();
    let rid = held.rid(0).to_owned();
    let frame = batch(Kind::TokenId, SynthWire::Msgpack, &[row("b", &[11], 5), row(&rid, &[4], 40)]);
    let before = ids(&held, 0);
    let edit = Edit { completion_tokens: Some(41), ..Edit::new(1) };
    let released = frame.edit_after(&[edit], &[Held { row: 1, rows: &[held], join: true }]).unwrap();
    assert_eq!(released.before.len(), 1);
    assert_eq!(ids(&released.before[0], 0), [&before[..], &[4]].concat());
    assert_eq!(released.before[0].completion_tokens(0), Some(41));
    assert_eq!(rids(&released.batch.unwrap()), ["b"]);
}

#[test]
fn rows_of_several_requests_that_go_on_stand_side_by_side() {
    for wire in WIRES {
        let one = |rid: &str, id: i64| batch(Kind::TokenId, wire, &[row(rid, &[id], id as u64)]);
        let (a, b) = ([one("a", 1), one("a", 2)], [one("b", 11)]);
        let frames = Batch::release(&[&a, &b], false).unwrap();
        let told: Vec<_> = frames.iter().map(|frame| (rids(frame), ids(frame, 0))).collect();
        assert_eq!(told, [(vec!["a", "b"], vec![1]), (vec!["a"], vec![2])]);
        let frames = Batch::release(&[&a, &b], true).unwrap();
        let told: Vec<_> = frames.iter().map(|frame| (rids(frame), ids(frame, 0))).collect();
        assert_eq!(told, [(vec!["a", "b"], vec![1, 2])]);
        assert!(Batch::release(&[], true).unwrap().is_empty());
    }
}

#[test]
fn what_was_held_is_single_rows_of_the_request_and_none_of_them_the_last() {
    let wire = SynthWire::Msgpack;
    let frame = batch(Kind::Str, wire, &[row("a", &[1], 1), row("b", &[2], 2)]);
    let of = |rows: &[Batch], at: u32| {
        frame.edit_after(&[], &[Held { row: at, rows, join: true }]).map(drop).unwrap_err()
    };
    let other = [batch(Kind::Str, wire, &[row("b", &[1], 1)])];
    let wrong = |held: &str| RowsError::Held { row: 0, held: held.into(), rid: "a".into() };
    assert_eq!(of(&other, 0), wrong("b"));
    let two = [batch(Kind::Str, wire, &[row("a", &[1], 1), row("b", &[2], 2)])];
    assert_eq!(of(&two, 0), wrong(""));
    assert_eq!(Batch::release(&[&two], true).map(drop).unwrap_err(), wrong(""));
    let last = SynthRow { finish: Some(SynthFinish::Length(1)), ..row("a", &[1], 1) };
    let ended = [batch(Kind::Str, wire, &[last])];
    assert_eq!(of(&ended, 0), RowsError::AfterFinish { rid: "a".into() });
    assert_eq!(of(&other, 2), RowsError::Row { row: 2, rows: 2 });
    let twice = [0, 0].map(|row| Held { row, rows: &[], join: true });
    let error = frame.edit_after(&[], &twice).map(drop).unwrap_err();
    assert_eq!(error, RowsError::Row { row: 0, rows: 2 });
}
