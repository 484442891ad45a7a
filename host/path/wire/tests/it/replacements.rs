//! Batches in which rows are replaced by held rows joined with them.

use afterbay_wire::synth::{SynthBatch, SynthRow, SynthWire};
use afterbay_wire::{Batch, BatchKind, BatchPart, Edit, Finish, FinishReason, RowsError, TokenEdit};

use crate::samples::{open, read_batch};

fn row(rid: &str, ids: &[i64], completion_tokens: u64) -> SynthRow {
    let text = ids.iter().map(|id| format!(" {id}")).collect();
    SynthRow { rid: rid.into(), ids: ids.into(), text, completion_tokens, ..SynthRow::default() }
}

fn ids(batch: &Batch, row: u32) -> Vec<i64> {
    let mut ids = Vec::new();
    batch.row_ids(row, &mut ids);
    ids
}

/// A frame with the third row of `a` between other rows, and that row joined with the two before it.
fn waiting(kind: BatchKind, wire: SynthWire) -> (Batch, Batch) {
    let batch =
        |rows: &[SynthRow]| read_batch(&SynthBatch { rows: rows.to_vec() }.encode(kind, wire).unwrap());
    let first = SynthRow { prompt_tail: vec![70, 71], ..row("a", &[1], 1) };
    let frames = [
        batch(&[first, row("b", &[11], 5)]),
        batch(&[row("b", &[12], 6), row("a", &[2, 3], 3)]),
        batch(&[row("b", &[13], 7), row("a", &[4], 4), row("c", &[21], 1)]),
    ];
    let rows = [0, 1, 1].map(|row| [row]);
    let parts: Vec<_> =
        frames.iter().zip(&rows).map(|(batch, rows)| BatchPart { batch, rows: Some(rows) }).collect();
    let joined = Batch::join(&parts).unwrap();
    let [.., frame] = frames;
    (frame, joined)
}

fn each() -> impl Iterator<Item = (BatchKind, Batch, Batch)> {
    let wires = [SynthWire::Msgpack, SynthWire::Pickle];
    [BatchKind::TokenId, BatchKind::Str].into_iter().flat_map(move |kind| {
        wires.map(|wire| {
            let (frame, joined) = waiting(kind, wire);
            (kind, frame, joined)
        })
    })
}

#[test]
fn held_rows_are_sent_joined_with_the_next_row() {
    for (kind, frame, joined) in each() {
        let whole = frame.edit_replacing(&[], &[(1, &joined, 0)]).unwrap().unwrap();
        assert_eq!(whole.rids().collect::<Vec<_>>(), ["b", "a", "c"]);
        assert_eq!((ids(&whole, 0), ids(&whole, 1), ids(&whole, 2)), (vec![13], vec![1, 2, 3, 4], vec![21]));
        assert_eq!(whole.completion_tokens(1), Some(4));
        match kind {
            BatchKind::Str => assert_eq!(whole.text(1), Some(" 1 2 3 4")),
            _ => assert_eq!(open(&whole)["decode_ids"][1]["v"], serde_json::json!([70, 71, 1, 2, 3, 4])),
        }
    }
}

#[test]
fn an_edit_applies_to_the_replacement() {
    for (kind, frame, joined) in each() {
        let edit = Edit {
            tokens: TokenEdit::Delta(vec![90, 91]),
            text: Some("***".into()),
            finish: Some(FinishReason::Stop("masked".into())),
            completion_tokens: Some(2),
            ..Edit::new(1)
        };
        let whole = frame.edit_replacing(&[edit], &[(1, &joined, 0)]).unwrap().unwrap();
        assert_eq!((ids(&whole, 1), whole.completion_tokens(1)), (vec![90, 91], Some(2)));
        assert!(matches!(whole.finish(1), Finish::Stop { .. }));
        assert_eq!(whole.finish(0), Finish::Running);
        match kind {
            BatchKind::Str => assert_eq!((whole.text(0), whole.text(1)), (Some(" 13"), Some("***"))),
            _ => assert_eq!(open(&whole)["decode_ids"][1]["v"], serde_json::json!([70, 71, 90, 91])),
        }
    }
}

#[test]
fn other_rows_of_the_frame_are_edited_too() {
    for (_, frame, joined) in each() {
        let edits = [
            Edit { tokens: TokenEdit::Drop, ..Edit::new(0) },
            Edit { tokens: TokenEdit::Delta(vec![5]), ..Edit::new(2) },
        ];
        let whole = frame.edit_replacing(&edits, &[(1, &joined, 0)]).unwrap().unwrap();
        assert_eq!(whole.rids().collect::<Vec<_>>(), ["a", "c"]);
        assert_eq!((ids(&whole, 0), ids(&whole, 1)), (vec![1, 2, 3, 4], vec![5]));
        let all: Vec<_> = (0..3).map(|row| Edit { tokens: TokenEdit::Drop, ..Edit::new(row) }).collect();
        assert!(frame.edit_replacing(&all, &[(1, &joined, 0)]).unwrap().is_none());
    }
}

#[test]
fn a_replacement_of_a_missing_row_or_given_twice_is_refused() {
    let (frame, joined) = waiting(BatchKind::Str, SynthWire::Msgpack);
    let of = |rows: &[u32]| {
        let instead: Vec<_> = rows.iter().map(|row| (*row, &joined, 0)).collect();
        frame.edit_replacing(&[], &instead).map(drop).unwrap_err()
    };
    assert_eq!(of(&[3]), RowsError::Row { row: 3, rows: 3 });
    assert_eq!(of(&[1, 1]), RowsError::Row { row: 1, rows: 3 });
    assert_eq!(of(&[2, 1]), RowsError::Row { row: 1, rows: 3 });
}
