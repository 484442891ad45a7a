//! Hostile frames end in values, in bounded time and memory.

use afterbay_wire::{
    BarrierKind, Batch, BatchPart, DecodedFrame, Edit, Finish, FinishReason, Ids, TokenEdit, Wrapped,
};
use bytes::Bytes;

use super::support::{all, barrier, batch, ids, read, sample};
use crate::hostile::flips;

/// Decodes a frame and calls everything. A barrier must keep the frame's bytes.
fn use_up(frame: &Bytes) {
    match read(frame) {
        DecodedFrame::Barrier(barrier) => {
            assert_eq!(barrier.bytes(), frame);
            _ = (barrier.to_json(Wrapped::Keep), barrier.load(), barrier.finished_requests().count());
            if let Some(named) = barrier.named_rows() {
                _ = named.ended(&[0], &FinishReason::Abort("ended".into()));
            }
        }
        DecodedFrame::Batch(batch) => {
            assert_eq!(batch.bytes(), frame);
            let mut ids = Ids::default();
            batch.output_ids(&mut ids);
            for row in 0..batch.rows() {
                assert!(batch.tokens(row) == 0 || !batch.is_unread(row));
                assert_eq!(ids.row(row).len(), batch.tokens(row) as usize);
                _ = (batch.finish(row), batch.prompt_tokens(row), batch.is_first(row));
            }
            _ = (batch.to_json(Wrapped::Keep), batch.load(), batch.without_rows());
            let last = batch.rows() - 1;
            if let Ok(one) = batch.take(&[last]) {
                assert_eq!(one.rid(0), batch.rid(last));
                _ = Batch::join(&[BatchPart { batch: &batch, rows: Some(&[0]) }, BatchPart::from(&one)]);
            }
            for tokens in [TokenEdit::Delta(vec![1, 2]), TokenEdit::Empty, TokenEdit::Drop] {
                let finish = Some(FinishReason::Stop("x".to_owned()));
                _ = batch.edit(&[Edit { tokens, finish, ..Edit::new(last) }]);
            }
            if let Ok(ended) = batch.ended(&[last], &FinishReason::Abort("ended".into())) {
                assert_eq!((ended.tokens(0), ended.finish(0)), (0, Finish::Abort));
            }
        }
    }
}

const SOME: [&str; 9] = [
    "plain_length-000",
    "logprobs3-001",
    "syn_logprobs_aux",
    "prompt_logprobs_long-000",
    "dp_engine1_mid",
    "spec_row5",
    "syn_nans_mm_miss",
    "util_collective_rpc_fail-000",
    "syn_pooling",
];

#[test]
fn a_frame_cut_anywhere_is_not_understood() {
    for name in SOME {
        let whole = sample(name).bytes;
        for end in 0..whole.len() {
            let barrier = barrier(&whole.slice(..end));
            assert!(matches!(barrier.kind, BarrierKind::NotUnderstood { .. }), "{name} cut at {end}");
            assert!(barrier.hides_rows() && barrier.counted(), "{name} cut at {end}");
        }
        let longer = barrier(&[&whole[..], &[0xc0]].concat().into());
        assert!(matches!(longer.kind, BarrierKind::NotUnderstood { .. }), "{name}");
    }
}

#[test]
fn flipped_bytes_end_in_values() {
    let mut flip = flips([0xdd, 0xdf, 0xc6, 0xc9, 0xdb, 0x93, 0xc0, 0x01]);
    for sample in all() {
        for _ in 0..60 {
            use_up(&flip(&sample.bytes));
        }
    }
}

/// A frame of 0.32 with these rows, as msgpack.
fn with_rows(rows: &[&[u8]]) -> Bytes {
    let rest: &[u8] = &[0xc0, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0];
    [&[0x99, 0, 0x90 | rows.len() as u8], &rows.concat()[..], rest].concat().into()
}

/// A row of 0.32 whose request and ids are these values, as msgpack.
fn with(rid: &[u8], ids: &[u8]) -> Vec<u8> {
    [&[0xdc, 0, 18], rid, ids, &[0xc0; 11], &[0], &[0xc0; 4]].concat()
}

#[test]
fn a_bad_row_is_unread_and_takes_no_other_row() {
    let good = with(b"\xa1g", &[0x91, 7]);
    for (bad, column, rid) in [
        (with(b"\xa1b", &[0xa1, b'x']), "new_token_ids", Some(&b"b"[..])),
        (with(b"\xa1b", &[0x92, 1, 0xa1, b'x']), "new_token_ids", Some(b"b")),
        (with(b"\xa1b", &[0x91, 0xcf, 255, 255, 255, 255, 255, 255, 255, 255]), "new_token_ids", Some(b"b")),
        (with(b"\xa1b", &[0xc0]), "new_token_ids", Some(b"b")),
        (with(&[7], &[0x91, 1]), "request_id", None),
        (vec![0xc0], "outputs", None),
        (b"\xa5other".to_vec(), "outputs", None),
        (vec![0x92, 0xa1, b'b', 0x91, 1][..4].to_vec(), "outputs", Some(b"b")),
        (vec![0x90], "outputs", None),
    ] {
        let mut bad = bad;
        if bad[0] == 0x92 {
            bad = vec![0x92, 0xa1, b'b', 0x90];
        }
        let batch = batch(&with_rows(&[&good, &bad, &good[..]]));
        let unread: Vec<_> = batch.unread().iter().map(|unread| (unread.row, unread.column)).collect();
        assert_eq!((batch.rows(), unread), (3, vec![(1, column)]), "{bad:02x?}");
        assert_eq!((batch.rid_of(1), batch.tokens(1), ids(&batch, 1)), (rid, 0, vec![]), "{bad:02x?}");
        assert_eq!((batch.rid(0), batch.rid(2), ids(&batch, 2)), ("g", "g", vec![7]));
        assert_eq!(batch.take(&[0]).unwrap().rid(0), "g");
        let dropped = batch.edit(&[Edit { tokens: TokenEdit::Drop, ..Edit::new(1) }]).unwrap().unwrap();
        assert_eq!((dropped.rows(), dropped.unread()), (2, &[][..]), "{bad:02x?}");
        let parts =
            [BatchPart { batch: &batch, rows: Some(&[1]) }, BatchPart { batch: &batch, rows: Some(&[1]) }];
        assert!(Batch::join(&parts).is_err(), "{bad:02x?}");
        if rid.is_some() {
            let ended = batch.ended(&[1], &FinishReason::Abort("no".into())).unwrap();
            assert_eq!((ended.rid(0), ended.finish(0)), ("b", Finish::Abort));
        }
    }
}

#[test]
fn a_frame_of_which_no_row_can_be_read_names_its_requests() {
    let odd = with(b"\xa1b", &[0xc0]);
    let barrier = barrier(&with_rows(&[&odd, &odd]));
    assert!(barrier.hides_rows());
    let named = barrier.named_rows().unwrap();
    assert_eq!(named.rids().collect::<Vec<_>>(), ["b", "b"]);
    assert_eq!(named.ended(&[0], &FinishReason::Abort("no".into())).unwrap().finish(0), Finish::Abort);
}

#[test]
fn a_request_that_is_no_text_is_not_joined() {
    let batch = batch(&with_rows(&[&with(b"\xa1g", &[0x91, 7]), &with(b"\xa1\xff", &[0x91, 8])]));
    assert!(!batch.has_text_rids());
    assert_eq!((batch.rid(1), batch.rid_of(1), ids(&batch, 1)), ("", Some(&b"\xff"[..]), vec![8]));
    assert!(Batch::join(&[BatchPart::from(&batch)]).is_err());
}

#[test]
fn declared_lengths_are_checked_before_anything_is_allocated() {
    for rows in [&b"\xdd\xff\xff\xff\xff"[..], b"\xdd\x00\x10\x00\x00", b"\xdc\xff\xff"] {
        let small = [&[0x99, 0], rows, &[0xc0; 200]].concat();
        assert!(barrier(&small.into()).hides_rows());
    }
    // Rows of one byte each would take more memory than the frame.
    let rows = [&[0x99, 0, 0xdc, 0xff, 0xff], &[0xc0; 0xffff][..], &[0xc0; 7]].concat();
    assert!(barrier(&rows.into()).hides_rows());
    let parts = b"\xc1\xff\xff\xff\x7f\x01\x00\x00\x00";
    assert!(barrier(&Bytes::from_static(parts)).hides_rows());
}

#[test]
fn arrays_of_parts_that_are_not_there_keep_the_frame_whole() {
    let logprobs = b"\x94\x93\xa3<i4\x92\x01\x01\x05\x93\xa3<f4\x92\x01\x01\x05\x93\xa3<i8\x91\x01\x05\xc0";
    let row = [&[0xdc, 0, 18], &b"\xa1r\x91\x07"[..], logprobs, &[0xc0; 10], &[0], &[0xc0; 4]].concat();
    let message = with_rows(&[&row]);
    let whole = batch(&afterbay_types::parts::join(&[message, Bytes::from_static(b"part")]));
    assert!(whole.take(&[0]).is_err());
    assert_eq!((whole.rid(0), ids(&whole, 0)), ("r", vec![7]));
    whole.to_json(Wrapped::Keep);
}

#[test]
fn many_different_keys_of_statistics_are_joined_in_time() {
    let stats = |from: u32| {
        let keys = (from..from + 60_000).flat_map(|key| [&[0xa4][..], &key.to_be_bytes(), &[1]].concat());
        [&[0xdf][..], &60_000_u32.to_be_bytes(), &keys.collect::<Vec<_>>()].concat()
    };
    let frame = |from| {
        let row = with(b"\xa1r", &[0x91, 7]);
        let rest = [0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0];
        batch(&[&[0x99, 0, 0x91], &row[..], &stats(from), &rest].concat().into())
    };
    let frames = [frame(0), frame(100_000), frame(200_000)];
    let joined = super::support::join(&frames.iter().collect::<Vec<_>>());
    assert_eq!((joined.rows(), ids(&joined, 0)), (1, vec![7, 7, 7]));
}
