//! Options that change while rows wait, lanes of several kinds, and the counts of what waits.

use std::time::{Duration, Instant};

use crate::support::{batch_of, content, source_of};
use afterbay_batch::outbox::{Frame, FrameToSend, Options, Outbox, When};
use afterbay_batch::{Content, JoinEnds};
use afterbay_wire::BatchKind;
use afterbay_wire::synth::{SynthBatch, SynthRow, SynthWire};
use bytes::Bytes;

fn options(when: When, ends: JoinEnds) -> Options {
    Options { when, joins: ends.into(), max_rows: 512, max_frames: 64, max_bytes: 1 << 20 }
}

fn row(rid: &str, count: u64) -> SynthRow {
    SynthRow {
        rid: rid.into(),
        ids: vec![1],
        text: "a".into(),
        completion_tokens: count,
        ..SynthRow::default()
    }
}

fn frame(number: u64, at: Instant, kind: BatchKind, rows: Vec<SynthRow>) -> Frame {
    let batch = batch_of(SynthBatch { rows }.encode(kind, SynthWire::Msgpack).unwrap());
    Frame { number, at, content: content(batch) }
}

fn ids(number: u64, at: Instant, rows: Vec<SynthRow>) -> Frame {
    frame(number, at, BatchKind::TokenId, rows)
}

/// The tokens of each row.
fn tokens(frame: &FrameToSend) -> Vec<u32> {
    batch_of(frame.bytes.clone()).token_counts().collect()
}

#[test]
fn frames_of_another_kind_or_encoding_are_not_joined_with_those_before() {
    let now = Instant::now();
    let mut outbox = Outbox::new(options(When::Backpressure, JoinEnds::Anywhere), 0, 0);
    outbox.push(ids(1, now, vec![row("a", 5)]));
    outbox.push(ids(2, now, vec![row("a", 6)]));
    outbox.push(frame(3, now, BatchKind::Str, vec![row("a", 7)]));
    outbox.push(frame(4, now, BatchKind::Str, vec![row("a", 8)]));
    let sent: Vec<Vec<u32>> =
        std::iter::from_fn(|| outbox.next(true, now)).map(|sent| tokens(&sent)).collect();
    assert_eq!(sent.len(), 2, "one frame of each kind");
    assert_eq!(sent[0], [2]);
}

#[test]
fn new_options_apply_to_the_frames_that_come_next_and_keep_the_joins() {
    let now = Instant::now();
    let mut outbox = Outbox::new(options(When::Never, JoinEnds::Nowhere), 0, 0);
    outbox.push(ids(1, now, vec![row("a", 5)]));
    outbox.push(ids(2, now, vec![row("a", 6)]));
    // The reader may be a detokenizer: new options do not know better.
    outbox.reset(options(When::Backpressure, JoinEnds::Anywhere));
    outbox.push(ids(3, now, vec![row("a", 7)]));
    outbox.push(ids(4, now, vec![row("a", 8)]));
    assert_eq!(std::iter::from_fn(|| outbox.next(true, now)).count(), 4, "no row is joined");
    outbox.set_joins(JoinEnds::Anywhere.into());
    outbox.push(ids(5, now, vec![row("a", 9)]));
    outbox.push(ids(6, now, vec![row("a", 10)]));
    assert_eq!(tokens(&outbox.next(true, now).unwrap()), [2]);
    outbox.reset(options(When::Never, JoinEnds::Anywhere));
    outbox.push(ids(7, now, vec![row("a", 11)]));
    outbox.push(ids(8, now, vec![row("a", 12)]));
    assert_eq!(std::iter::from_fn(|| outbox.next(true, now)).count(), 2);
    outbox.reset(Options { max_frames: 1, ..options(When::Never, JoinEnds::Anywhere) });
    outbox.push(ids(9, now, vec![row("a", 13)]));
    assert!(!outbox.has_room());
}

#[test]
fn a_health_check_is_sent_although_the_sink_has_no_room() {
    let now = Instant::now();
    let mut outbox = Outbox::new(options(When::Backpressure, JoinEnds::Anywhere), 0, 0);
    let health_check = row("HEALTH_CHECK_0123456789abcdef0123456789abcdef", 1);
    outbox.push(frame(1, now, BatchKind::Str, vec![health_check]));
    assert_eq!((outbox.rows(), outbox.frames(), outbox.bytes(), outbox.memory()), (1, 0, 0, 0));
    assert!(!outbox.is_empty());
    assert!(outbox.next(false, now).is_some() && outbox.is_empty());
}

#[test]
fn an_outbox_counts_the_tokens_of_rows_that_wait_alone_and_of_rows_that_wait_together() {
    let now = Instant::now();
    let later = now + Duration::from_millis(20);
    let mut outbox = Outbox::new(options(When::Backpressure, JoinEnds::Anywhere), 0, 0);
    assert_eq!((outbox.rows(), outbox.tokens(), outbox.oldest()), (0, 0, None));
    let mut wide = row("a", 5);
    wide.ids = vec![1, 2, 3];
    outbox.push(ids(1, now, vec![wide, row("b", 5)]));
    assert_eq!((outbox.rows(), outbox.tokens(), outbox.oldest()), (2, 4, Some(now)));
    outbox.push(ids(2, later, vec![row("a", 6)]));
    assert_eq!((outbox.rows(), outbox.tokens(), outbox.oldest()), (3, 5, Some(now)));
    outbox.push(Frame {
        number: 3,
        at: later,
        content: Content::Whole { bytes: Bytes::from_static(b"?"), counted: false, rows: 0, first_rows: 0 },
    });
    assert_eq!(
        (outbox.rows(), outbox.tokens()),
        (4, 5),
        "a frame that is sent whole is one row without tokens"
    );
    outbox.next(true, later).unwrap();
    // The barrier waits, although the rows before it are sent.
    assert_eq!((outbox.rows(), outbox.tokens(), outbox.oldest()), (1, 0, Some(later)));
}

#[test]
fn a_frame_whose_other_rows_were_sent_before_is_done_once_those_are_taken() {
    let now = Instant::now();
    // Sent frame 5 has rows of frame 11, and sent frame 6 has rows of frame 12.
    let mut outbox = Outbox::new(options(When::Backpressure, JoinEnds::Anywhere), 6, 10);
    outbox.push_rest(ids(11, now, vec![row("a", 5)]), 5);
    let sent = outbox.next(true, now).unwrap();
    assert_eq!((sent.sequence, source_of(&sent)), (7, Some(11)));
    outbox.push_rest(Frame { number: 12, at: now, content: Content::Nothing }, 6);
    outbox.push_rest(Frame { number: 13, at: now, content: Content::Nothing }, 5);
    outbox.taken(5);
    assert_eq!(outbox.taken_through(), 10, "the rest of frame 11 is on its way");
    outbox.taken(6);
    assert_eq!(outbox.taken_through(), 10);
    outbox.taken(7);
    assert_eq!(outbox.taken_through(), 13);
    // The reader has had sent frame 7 before the rest arrives.
    outbox.push_rest(Frame { number: 14, at: now, content: Content::Nothing }, 7);
    assert_eq!(outbox.taken_through(), 14);
    outbox.push_rest(Frame { number: 15, at: now, content: Content::Nothing }, 8);
    assert_eq!(outbox.taken_through(), 14);
    outbox.push(Frame { number: 16, at: now, content: Content::Nothing });
    outbox.taken(8);
    assert_eq!(outbox.taken_through(), 16, "only the frame that was pushed as a rest waits for another");
}

#[test]
fn rows_of_one_frame_leave_as_that_frame_although_others_wait() {
    let now = Instant::now();
    let one = Options { max_rows: 1, ..options(When::Backpressure, JoinEnds::Anywhere) };
    let mut outbox = Outbox::new(one, 0, 0);
    for (number, rid) in [(1, "a"), (2, "b")] {
        outbox.push(ids(number, now, vec![row(rid, 5)]));
    }
    assert_eq!(source_of(&outbox.next(true, now).unwrap()), Some(1), "it is no composed frame");
}

#[test]
fn a_quarter_of_a_frame_is_for_the_requests_that_wait_longest() {
    let now = Instant::now();
    let eight = Options { max_rows: 8, ..options(When::Backpressure, JoinEnds::Anywhere) };
    let mut outbox = Outbox::new(eight, 0, 0);
    outbox.push(ids(1, now, (0..9).map(|i| row(&format!("old-{i}"), 5)).collect()));
    outbox.push(ids(2, now, (0..9).map(|i| row(&format!("new-{i}"), 1)).collect()));
    let batch = batch_of(outbox.next(true, now).unwrap().bytes);
    assert_eq!(batch.rids().filter(|rid| rid.starts_with("old")).collect::<Vec<_>>(), ["old-0", "old-1"]);
    assert_eq!(batch.rows(), 8);
}

#[test]
fn a_request_that_was_sent_waits_behind_the_others_again() {
    let now = Instant::now();
    let one = Options { max_rows: 1, ..options(When::Backpressure, JoinEnds::Anywhere) };
    let mut outbox = Outbox::new(one, 0, 0);
    outbox.push(ids(1, now, vec![row("a", 1), row("b", 5)]));
    outbox.push(ids(2, now, vec![row("c", 5)]));
    let next = |outbox: &mut Outbox| -> String {
        let batch = batch_of(outbox.next(true, now).unwrap().bytes);
        batch.rid(0).to_owned()
    };
    assert_eq!(next(&mut outbox), "a", "its first token");
    outbox.push(ids(3, now, vec![row("a", 2)]));
    assert_eq!([next(&mut outbox), next(&mut outbox), next(&mut outbox)], ["b", "c", "a"]);
}

#[test]
fn rows_whose_requests_are_not_known_are_sent_as_their_frame() {
    let now = Instant::now();
    let mut outbox = Outbox::new(options(When::Backpressure, JoinEnds::Anywhere), 0, 0);
    for number in [1, 2] {
        let Content::Rows { batch, .. } = ids(number, now, vec![row("a", number), row("b", number)]).content
        else {
            panic!("rows")
        };
        let content = Content::Rows { batch, requests: vec![0, 0].into() };
        outbox.push(Frame { number, at: now, content });
    }
    let sent = std::iter::from_fn(|| outbox.next(true, now));
    assert_eq!(sent.map(|sent| source_of(&sent)).collect::<Vec<_>>(), [Some(1), Some(2)]);
}
