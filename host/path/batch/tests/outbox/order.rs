//! The order of requests, the counts of an outbox, and frames of the real SGLang.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::support::{Numbers, batch_of, bytes, content, options, rows_of, source_of};
use afterbay_batch::outbox::{Frame, FrameToSend, Options, Outbox, When};
use afterbay_batch::{Content, JoinEnds};
use afterbay_wire::synth::{SynthBatch, SynthFinish, SynthRow, SynthWire};
use afterbay_wire::{Batch, BatchKind, BatchPart, DecodedFrame, Finish, Layouts, decode};
use bytes::Bytes;

fn row(rid: &str, count: u64, id: i64) -> SynthRow {
    SynthRow {
        rid: rid.into(),
        ids: vec![id],
        completion_tokens: count,
        prompt_tokens: 3,
        ..SynthRow::default()
    }
}

fn batch(rows: Vec<SynthRow>) -> Batch {
    batch_of(SynthBatch { rows }.encode(BatchKind::TokenId, SynthWire::Msgpack).unwrap())
}

fn rows(rows: Vec<SynthRow>) -> Content {
    content(batch(rows))
}

fn rids(leaving: &FrameToSend) -> Vec<String> {
    let batch = batch_of(leaving.bytes.clone());
    batch.rids().map(str::to_owned).collect()
}

#[test]
fn first_tokens_are_sent_first_then_last_rows_then_the_oldest() {
    let now = Instant::now();
    let mut outbox = Outbox::new(options(When::Backpressure, JoinEnds::Anywhere, 4), 0, 0);
    let old: Vec<SynthRow> = (0..6).map(|i| row(&format!("old-{i}"), 5, i)).collect();
    let mut more: Vec<SynthRow> = (0..6).map(|i| row(&format!("old-{i}"), 6, 10 + i)).collect();
    more[4].finish = Some(SynthFinish::Length(6));
    more.push(row("new-1", 1, 20));
    more.push(row("new-2", 1, 21));
    outbox.push(Frame { number: 1, at: now, content: rows(old) });
    outbox.push(Frame { number: 2, at: now, content: rows(more) });
    let first = outbox.next(true, now).unwrap();
    // Two first tokens, one last row, and a quarter for the request that has waited longest.
    assert_eq!(rids(&first), ["old-0", "old-4", "new-1", "new-2"]);
    let second = outbox.next(true, now).unwrap();
    assert_eq!(rids(&second), ["old-1", "old-2", "old-3", "old-5"]);
    assert!(outbox.next(true, now).is_none() && outbox.is_empty());
    outbox.taken(1);
    assert_eq!(outbox.taken_through(), 0, "rows of both frames are with the second");
    outbox.taken(2);
    assert_eq!(outbox.taken_through(), 2);
}

#[test]
fn each_row_of_an_unchanged_frame_is_counted() {
    let now = Instant::now();
    for (when, joins) in [(When::Backpressure, JoinEnds::Anywhere), (When::Backpressure, JoinEnds::Nowhere)] {
        let mut outbox = Outbox::new(options(when, joins, 512), 0, 0);
        let of_three = rows((0..3).map(|i| row(&format!("r-{i}"), 5, i)).collect());
        outbox.push(Frame { number: 1, at: now, content: of_three });
        outbox.next(true, now).unwrap();
        assert_eq!(outbox.totals().rows_sent, 3);
        let barrier =
            Content::Whole { bytes: Bytes::from_static(b"?"), counted: false, rows: 0, first_rows: 0 };
        outbox.push(Frame { number: 2, at: now, content: barrier });
        outbox.next(true, now).unwrap();
        assert_eq!(outbox.totals().rows_sent, 3, "a frame without rows has none");
    }
}

#[test]
fn a_frame_aside_goes_first_and_keeps_no_rows_from_being_joined() {
    let now = Instant::now();
    let mut outbox = Outbox::new(options(When::Backpressure, JoinEnds::Anywhere, 512), 0, 0);
    let aside = |number: u8| Content::Aside { bytes: Bytes::copy_from_slice(&[number]) };
    for (number, content) in [
        (1, rows(vec![row("a", 1, 7)])),
        (2, aside(2)),
        (3, rows(vec![row("a", 2, 8)])),
        (4, aside(4)),
        (5, rows(vec![row("a", 3, 9)])),
    ] {
        outbox.push(Frame { number, at: now, content });
    }
    assert_eq!((outbox.frames(), outbox.rows(), outbox.oldest()), (5, 5, Some(now)));
    assert!(outbox.next(false, now).is_none(), "it waits for room");
    for number in [2, 4] {
        let sent = outbox.next(true, now).unwrap();
        assert_eq!(
            (source_of(&sent), sent.counted, &sent.bytes[..]),
            (Some(number), true, &[number as u8][..])
        );
    }
    let joined = batch_of(outbox.next(true, now).unwrap().bytes);
    assert_eq!((joined.rows(), joined.tokens(0)), (1, 3));
    assert!(outbox.is_empty() && outbox.bytes() == 0);
    outbox.taken(2);
    assert_eq!(outbox.taken_through(), 0, "the rows before the first one are not taken");
    outbox.taken(3);
    assert_eq!(outbox.taken_through(), 5);
}

#[test]
fn a_request_that_ended_with_abort_is_sent_as_one_row() {
    let now = Instant::now();
    let mut outbox = Outbox::new(options(When::Backpressure, JoinEnds::Anywhere, 512), 0, 0);
    for step in 1..=100 {
        let mut batch: Vec<SynthRow> = (0..300).map(|i| row(&format!("r-{i}"), step, i)).collect();
        if step == 100 {
            batch.iter_mut().for_each(|row| row.finish = Some(SynthFinish::Abort("gone".into())));
        }
        outbox.push(Frame { number: step, at: now, content: rows(batch) });
    }
    let all = outbox.next(true, now).unwrap();
    let batch = batch_of(all.bytes.clone());
    assert_eq!((batch.rows(), batch.tokens(0), batch.finish(0)), (300, 100, Finish::Abort));
    assert!(outbox.is_empty());
}

#[test]
fn a_rid_that_comes_again_is_another_request_and_waits_for_its_last_row_alone() {
    let now = Instant::now();
    let mut outbox = Outbox::new(options(When::Backpressure, JoinEnds::Anywhere, 512), 0, 0);
    let mut numbers = Numbers::default();
    let mut of = BTreeMap::new();
    let steps = [("a", 7, Some(7)), ("a", 1, None), ("a", 2, Some(2)), ("a", 1, Some(1)), ("b", 9, None)];
    for (number, (rid, count, last)) in (1..).zip(steps) {
        let mut step = row(rid, count, count as i64);
        step.finish = last.map(SynthFinish::Length);
        let other = row("other", 10 + number, number as i64);
        let batch = batch(vec![step, other]);
        let requests = numbers.of(&batch);
        of.insert(number, requests[0]);
        outbox.push(Frame { number, at: now, content: Content::Rows { batch, requests } });
    }
    assert_eq!([of[&2] == of[&1], of[&3] == of[&2], of[&4] == of[&3]], [false, true, false]);
    let sent: Vec<_> = std::iter::from_fn(|| outbox.next(true, now)).collect();
    let all: Vec<Vec<String>> = sent.iter().map(rids).collect();
    assert_eq!(all, [vec!["a", "other", "b"], vec!["a"], vec!["a"]], "nothing else waits");
    let joined: Vec<u32> = sent.iter().map(|sent| batch_of(sent.bytes.clone()).tokens(0)).collect();
    assert_eq!(joined, [1, 2, 1], "rows of one request become one");
    let told: Vec<(u64, u64)> = rows_of(&sent[1]);
    assert_eq!(told, [(of[&2], 3)], "the record names the request and its last frame");
    assert_eq!(
        source_of(&sent[2]).map_or_else(|| rows_of(&sent[2])[0], |frame| (of[&4], frame)),
        (of[&4], 4)
    );
}

/// A reader that is always behind: it finishes 32 rows while the scheduler sends four frames of 41. Returns the most frames that
/// waited, the memory after the first half and at the end, and the most rows before the first token of a new request was sent.
fn beside(steps: u64, special: impl Fn(u64) -> Batch) -> (usize, (u64, u64), u64) {
    let now = Instant::now();
    let mut outbox = Outbox::new(options(When::Backpressure, JoinEnds::Anywhere, 16), 0, 0);
    let (mut frames, mut memory, mut longest) = (0, 0, 0);
    let (mut sent_rows, mut begun) = (0, BTreeMap::new());
    for step in 1..=steps {
        // 40 requests, each of 40 steps: one begins and one ends with each step.
        let usual = (step.saturating_sub(39)..=step).map(|begun| {
            let count = step - begun + 1;
            let finish = (count == 40).then_some(SynthFinish::Length(40));
            SynthRow { finish, ..row(&format!("r-{begun}"), count, 1) }
        });
        let parts = [batch(usual.collect()), special(step)];
        let all = Batch::join(&parts.each_ref().map(BatchPart::from)).unwrap();
        begun.insert(format!("r-{step}"), sent_rows);
        outbox.push(Frame { number: step, at: now, content: content(all) });
        if step % 4 == 0 {
            let until = sent_rows + 32;
            while sent_rows < until
                && let Some(sent) = outbox.next(true, now)
            {
                let batch = batch_of(sent.bytes);
                sent_rows += u64::from(batch.rows());
                outbox.taken(sent.sequence);
                for rid in batch.rids() {
                    longest = longest.max(begun.remove(rid).map_or(0, |at| sent_rows - at));
                }
            }
        }
        frames = frames.max(outbox.frames());
        if step == steps / 2 {
            memory = outbox.memory();
        }
    }
    (frames, (memory, outbox.memory()), longest)
}

#[test]
fn a_request_whose_rows_may_not_be_joined_and_a_rid_that_comes_again_hold_up_no_other() {
    let usual = beside(300, |step| batch(vec![row("one", step, 1)]));
    let fixture = include_bytes!("../../../../../tests/fixtures/frames/tokid_hidden_states.msgpack");
    let not_joined = |_| batch_of(Bytes::from_static(fixture)).take(&[0]).unwrap();
    let again = SynthRow { finish: Some(SynthFinish::Length(1)), ..row("one", 1, 1) };
    let again = |_| batch(vec![again.clone()]);
    for (frames, (memory, at_end), longest) in [usual, beside(300, not_joined), beside(300, again)] {
        assert!(frames < 30, "{frames} frames waited");
        assert!(at_end < 2 * memory, "{memory} bytes of memory, then {at_end}");
        assert!(longest < 3 * 32, "{longest} rows were sent before a first token");
    }
}

#[test]
fn an_outbox_has_room_up_to_its_bounds_of_frames_and_bytes() {
    let now = Instant::now();
    let bound = Options { max_frames: 2, ..options(When::Backpressure, JoinEnds::Anywhere, 8) };
    let mut outbox = Outbox::new(bound, 0, 0);
    for number in 1..=2 {
        assert!(outbox.has_room());
        outbox.push(Frame { number, at: now, content: rows(vec![row("a", number, 1)]) });
    }
    assert!(!outbox.has_room());
    assert!(outbox.next(true, now).is_some() && outbox.has_room());
    let content =
        Content::Whole { bytes: Bytes::from_static(b"12345"), counted: false, rows: 0, first_rows: 0 };
    let bound = Options { max_bytes: 5, ..options(When::Backpressure, JoinEnds::Anywhere, 8) };
    let mut outbox = Outbox::new(bound, 0, 0);
    outbox.push(Frame { number: 1, at: now, content });
    assert!(!outbox.has_room());
}

/// The tokens of each request in these frames.
fn tokens<'f>(frames: impl Iterator<Item = &'f Bytes>) -> BTreeMap<String, u64> {
    let mut tokens = BTreeMap::new();
    for frame in frames {
        let batch = batch_of(frame.clone());
        for (rid, count) in batch.rids().zip(batch.token_counts()) {
            *tokens.entry(rid.to_owned()).or_default() += u64::from(count);
        }
    }
    tokens
}

/// This includes columns that cannot be joined, ended requests, embeddings, and frames that cannot be taken apart.
#[test]
fn every_frame_of_the_real_sglang_is_sent_with_every_token_once() {
    let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures");
    let mut dirs = vec![fixtures];
    let (mut frames, mut single, mut partly) = (0, 0, 0);
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
                continue;
            }
            if !path.extension().is_some_and(|kind| kind == "msgpack" || kind == "pickle") {
                continue;
            }
            let bytes = Bytes::from(std::fs::read(&path).unwrap());
            let DecodedFrame::Batch(_) = decode(bytes.clone(), &Layouts::builtin()) else { continue };
            let now = Instant::now();
            let mut outbox = Outbox::new(options(When::Backpressure, JoinEnds::Anywhere, 512), 0, 0);
            for number in 1..=3 {
                let content = content(batch_of(bytes.clone()));
                outbox.push(Frame { number, at: now, content });
            }
            let mut left = Vec::new();
            while let Some(leaving) = outbox.next(true, now) {
                outbox.taken(leaving.sequence);
                left.push(leaving.bytes);
            }
            let came = [&bytes, &bytes, &bytes].into_iter();
            assert_eq!(tokens(left.iter()), tokens(came), "{}", path.display());
            assert_eq!((outbox.taken_through(), outbox.totals().frames_torn), (3, 0), "{}", path.display());
            frames += 1;
            single += usize::from(left.len() == 3);
            partly += usize::from(left.len() == 3 && outbox.totals().rows_joined > 0);
        }
    }
    assert!(frames > 50 && single > 5 && single < frames, "{single} of {frames} were not joined");
    assert!(partly > 0, "a request that cannot be joined keeps no other from it: {partly}");
}

#[test]
fn before_a_detokenizer_rows_are_joined_up_to_the_last_whole_text_and_all_at_the_end() {
    let now = Instant::now();
    let cut = "\u{20ac}".as_bytes();
    let of_text = |id: u8, count| row("a", count, id.into());
    let mut outbox = Outbox::new(options(When::Backpressure, bytes(), 512), 0, 0);
    let push = |outbox: &mut Outbox, number, row| {
        outbox.push(Frame { number, at: now, content: rows(vec![row]) });
    };
    push(&mut outbox, 1, of_text(b'x', 5));
    for (number, byte) in (2..).zip(cut) {
        push(&mut outbox, number, of_text(*byte, 4 + number));
    }
    push(&mut outbox, 5, of_text(cut[0], 9));
    let tokens = |outbox: &mut Outbox| batch_of(outbox.next(true, now).unwrap().bytes).tokens(0);
    assert_eq!(tokens(&mut outbox), 4, "up to the end of the character");
    // The character stays cut: the request ends.
    let mut last = of_text(cut[1], 10);
    last.finish = Some(SynthFinish::Length(10));
    push(&mut outbox, 6, last);
    assert_eq!(tokens(&mut outbox), 2, "the last row takes all before it along");
    // Rows that have a text are joined anywhere.
    assert!(bytes().vocabulary(BatchKind::TokenId).is_some());
    assert!(bytes().vocabulary(BatchKind::Str).is_none());
}

#[test]
fn a_frame_says_when_its_rows_and_its_first_rows_were_received() {
    let begun = Instant::now();
    let at = |ms| begun + Duration::from_millis(ms);
    let mut outbox = Outbox::new(options(When::Backpressure, JoinEnds::Anywhere, 512), 0, 0);
    // A frame that waits alone, of which one request begins.
    outbox.push(Frame { number: 1, at: at(1), content: rows(vec![row("a", 1, 0), row("old", 9, 0)]) });
    assert_eq!(outbox.next(true, at(5)).unwrap().first_rows, [(at(1), 1)]);
    assert_eq!(outbox.sent_rows(), [(at(1), 2)]);
    // Three frames that are joined: "b" begins in the first, "c" and "d" in the third.
    outbox.push(Frame { number: 2, at: at(10), content: rows(vec![row("a", 2, 0), row("b", 1, 0)]) });
    outbox.push(Frame { number: 3, at: at(20), content: rows(vec![row("a", 3, 0), row("b", 2, 0)]) });
    let third = rows(vec![row("c", 1, 0), row("d", 1, 0)]);
    outbox.push(Frame { number: 4, at: at(30), content: third });
    let joined = outbox.next(true, at(40)).unwrap();
    assert_eq!(joined.first_rows.iter().map(|(at, rows)| (*at, *rows)).collect::<BTreeMap<_, _>>().len(), 2);
    let firsts =
        |from| joined.first_rows.iter().filter(|(at, _)| *at == from).map(|(_, rows)| rows).sum::<u32>();
    assert_eq!((firsts(at(10)), firsts(at(30))), (1, 2));
    assert_eq!(outbox.sent_rows(), [(at(10), 2), (at(20), 2), (at(30), 2)]);
    // A frame of which the ledger knows that no request begins in it.
    let Content::Rows { batch, requests } = rows(vec![row("e", 1, 0)]) else { panic!("rows") };
    let content = Content::Rows { batch: batch.without_first_rows(), requests };
    outbox.push(Frame { number: 5, at: at(50), content });
    assert_eq!(outbox.next(true, at(60)).unwrap().first_rows, []);
    assert!(outbox.next(true, at(60)).is_none() && outbox.sent_rows().is_empty());
}

#[test]
fn a_frame_that_is_never_joined_says_how_many_requests_begin_in_it() {
    let now = Instant::now();
    let mut outbox = Outbox::new(options(When::Never, JoinEnds::Anywhere, 512), 0, 0);
    let content = rows(vec![row("a", 1, 0), row("b", 7, 0), row("c", 1, 0)]);
    outbox.push(Frame { number: 1, at: now, content });
    assert_eq!(outbox.next(true, now).unwrap().first_rows, [(now, 2)]);
    assert_eq!(outbox.sent_rows(), [(now, 3)]);
}
