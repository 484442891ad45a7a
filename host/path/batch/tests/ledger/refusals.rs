//! Frames and batches that no plugin judged, and frames without rows.

use crate::frames;
use crate::stream::{Decide, PLUGIN, Stream, row, sent_rows};
use afterbay_batch::{ChainOutput, Content, Decoded, SettledContent, not_judged};
use afterbay_events::Barrier;
use afterbay_events::event::{FrameNotUnderstood, RequestFinishedEarly, VerdictFailed};
use afterbay_journal::{Passage, Verdict};
use afterbay_wire::synth::{SynthBatch, SynthWire};
use afterbay_wire::{Batch, BatchKind, Finish};
use bytes::Bytes;

/// A message without rows.
const CONTROL: &[u8] = b"\x91\xa5Other";
const GARBAGE: &[u8] = b"garbage";

/// A batch whose columns are not of one length: its rows are known only by name.
fn named(rids: &[&str]) -> Bytes {
    frames::pickled(rids, 1, &[("output_ids", vec![b"](K\x01e".to_vec(); rids.len() + 1])])
}

/// The rows `a`, `odd` and `b`. The batch can be read but not written: a cell is deeper than the limit for writing.
fn unwritable(count: u8) -> Bytes {
    let deep = [&b"]".repeat(1_000)[..], &b"a".repeat(999)].concat();
    let prompt = vec![b"K\x05".to_vec(), deep, b"K\x05".to_vec()];
    frames::pickled(&["a", "odd", "b"], count, &[("prompt_tokens", prompt)])
}

fn barrier(stream: &Stream, kind: Barrier) -> u64 {
    stream.counters().barriers.get(kind)
}

/// Passes a frame without rows. Returns its content.
fn pass(stream: &mut Stream, bytes: &'static [u8]) -> (Bytes, bool, bool) {
    let decoded = stream.receive(Bytes::from_static(bytes));
    let (ledger, records) = stream.both();
    let Err(settled) = ledger.account(decoded, records) else { panic!("rows") };
    let (_, SettledContent { content, to_all, .. }) = settled.into_parts();
    let Content::Whole { bytes, counted, .. } = content else { panic!("no frame") };
    (bytes, counted, to_all)
}

#[test]
fn a_frame_without_rows_passes_whole_and_is_recorded_and_counted_by_kind() {
    let mut stream = Stream::new();
    assert_eq!(pass(&mut stream, CONTROL), (Bytes::from_static(CONTROL), false, true));
    assert_eq!(pass(&mut stream, GARBAGE), (Bytes::from_static(GARBAGE), false, false));
    let idle = SynthBatch::default().encode(BatchKind::TokenId, SynthWire::Msgpack).unwrap();
    assert_eq!(pass(&mut stream, idle.to_vec().leak()), (idle.clone(), true, true));
    let kinds = [Barrier::Control, Barrier::Idle, Barrier::NotUnderstood, Barrier::Refused];
    assert_eq!(kinds.map(|kind| barrier(&stream, kind)), [1, 1, 1, 0]);
    let passages: Vec<_> = stream.outcomes().into_iter().map(|outcome| outcome.passage).collect();
    let [Passage::Barrier(control), Passage::NotUnderstood(_), Passage::Barrier(idle)] = &passages[..] else {
        panic!("{passages:?}")
    };
    assert_eq!((&**control, idle.starts_with("idle")), ("Other", true));
    let [event] = &stream.recorder.of::<FrameNotUnderstood>()[..] else { panic!("one event") };
    assert_eq!((event.frame, event.bytes, &*event.then), (2, GARBAGE.len() as u64, "forwarded unchanged"));
}

fn refuse(stream: &mut Stream, bytes: Bytes) -> SettledContent {
    let Decoded::Barrier(decoded) = stream.receive(bytes) else { panic!("rows") };
    let (ledger, records) = stream.both();
    ledger.refuse_barrier(decoded, &PLUGIN.into(), records).into_parts().1
}

#[test]
fn a_frame_that_a_guard_cannot_judge_is_dropped() {
    let mut stream = Stream::new();
    assert!(matches!(refuse(&mut stream, Bytes::from_static(GARBAGE)).content, Content::Nothing));
    assert_eq!(stream.outcomes()[0].passage, Passage::Dropped);
    assert_eq!((barrier(&stream, Barrier::Refused), barrier(&stream, Barrier::NotUnderstood)), (1, 0));
    let event = stream.recorder.of::<FrameNotUnderstood>().pop().unwrap();
    assert!(event.then.contains(PLUGIN) && event.then.ends_with("aborted requests: 0"), "{}", event.then);
}

#[test]
fn a_frame_that_names_its_requests_and_that_a_guard_cannot_judge_ends_these_requests() {
    let mut stream = Stream::with(Vec::new(), true);
    stream.pass(vec![row("known", &[1], 1), row("other", &[1], 1)]);
    let content = refuse(&mut stream, named(&["known", "new"]));
    let SettledContent { content: Content::Rows { batch, requests }, redirected, .. } = content else {
        panic!("rows")
    };
    let ends =
        |batch: &Batch| batch.rids().map(str::to_owned).zip(batch.finishes()).collect::<Vec<_>>().len();
    assert_eq!((ends(&batch), requests.len(), redirected.len()), (2, 2, 0));
    assert!((0..2).all(|row| matches!(batch.finish(row), Finish::Error) && batch.tokens(row) == 0));
    assert!(barrier(&stream, Barrier::Refused) == 1 && stream.counters().frames_rewritten.get() == 1);
    let outcome = stream.outcomes().pop().unwrap();
    assert_eq!((outcome.passage, &outcome.tokens[..]), (Passage::Changed, &[0, 0][..]));
    assert_eq!(outcome.changed.as_ref(), Some(batch.bytes()), "a restart sends the same");
    assert_eq!(outcome.requests.iter().map(|it| it.0).collect::<Vec<_>>(), *requests);
    let verdicts: Vec<_> = outcome.actions.iter().map(|action| (action.row, action.verdict)).collect();
    let ends = [(0, Verdict::Drop), (0, Verdict::Error), (1, Verdict::Drop), (1, Verdict::Error)];
    assert_eq!(verdicts, ends);
    let aborted: Vec<String> = stream.aborts().into_iter().map(|abort| abort.rid).collect();
    assert_eq!(aborted, ["known", "new"]);
    let early: Vec<String> =
        stream.recorder.of::<RequestFinishedEarly>().into_iter().map(|it| it.reason).collect();
    assert_eq!(early, vec![format!("500 {}", not_judged(PLUGIN)); 2]);
    // The number of tokens in the frame is not known, so the next count is no gap. The row is swallowed.
    assert_eq!(stream.pass(vec![row("known", &[2], 9)]), []);
    assert_eq!(stream.counters().request_gaps.get(), 0);
}

#[test]
fn a_poison_frame_passes_or_is_dropped_as_the_guards_of_the_chain_want() {
    let mut stream = Stream::new();
    let persisted = |stream: &mut Stream| {
        let bytes =
            SynthBatch { rows: vec![row("a", &[1], 1)] }.encode(BatchKind::TokenId, SynthWire::Msgpack);
        stream.persist(bytes.unwrap())
    };
    let frame = persisted(&mut stream);
    let (ledger, records) = stream.both();
    let settled = ledger.forward_poison(frame, "panicked twice".to_owned(), records);
    let SettledContent { content, to_all, .. } = settled.into_parts().1;
    let Content::Whole { counted, .. } = content else { panic!("no frame") };
    assert_eq!((counted, to_all), (true, false));
    let frame = persisted(&mut stream);
    let (ledger, records) = stream.both();
    let settled = ledger.refuse_poison(frame, "panicked twice".to_owned(), &PLUGIN.into(), records);
    assert!(matches!(settled.into_parts().1.content, Content::Nothing));
    let passages: Vec<_> = stream.outcomes().into_iter().map(|outcome| outcome.passage).collect();
    assert_eq!(passages, [Passage::NotUnderstood("panicked twice".into()), Passage::Dropped]);
    assert_eq!((barrier(&stream, Barrier::NotUnderstood), barrier(&stream, Barrier::Refused)), (1, 1));
    let events = stream.recorder.of::<FrameNotUnderstood>();
    assert!(events.iter().all(|event| event.kind == "panic" && event.why == "panicked twice"));
    assert_eq!(events.len(), 2);
}

#[test]
fn a_batch_that_cannot_be_written_as_decided_passes_as_it_arrived_and_the_plugin_is_named() {
    let mut stream = Stream::new();
    let (received, mut output) = account(&mut stream, unwritable(1));
    for row in 0..2 {
        stream.apply(&mut output, row, &Decide::Drop);
    }
    let (_, content) = stream.settle(output).into_parts();
    let Content::Rows { batch, requests } = content.content else { panic!("rows") };
    assert_eq!((batch.bytes(), requests.len()), (&received, 3));
    let [failed] = &stream.recorder.of::<VerdictFailed>()[..] else { panic!("one event for both rows") };
    assert_eq!((failed.plugin.as_str(), failed.frame), (PLUGIN, 1));
    assert_eq!((stream.counters().rows_forwarded.get(), stream.counters().rows_dropped.get()), (3, 0));
    assert_eq!(stream.outcomes()[0].passage, Passage::Unchanged);
}

#[test]
fn a_batch_that_cannot_be_written_and_that_a_guard_judged_ends_all_its_requests() {
    let mut stream = Stream::with(Vec::new(), true);
    let (_, mut output) = account(&mut stream, unwritable(1));
    stream.apply(&mut output, 0, &Decide::Finish);
    output.guard = Some(PLUGIN.into());
    let sent = sent_rows(stream.settle(output));
    assert_eq!(sent.iter().map(|row| &*row.rid).collect::<Vec<_>>(), ["a", "odd", "b"]);
    assert!(sent.iter().all(|row| row.is_last && row.ids.is_empty()), "{sent:?}");
    let outcome = stream.outcomes().pop().unwrap();
    let ends: Vec<u32> = outcome
        .actions
        .iter()
        .filter(|action| action.verdict == Verdict::Error)
        .map(|action| action.row)
        .collect();
    assert_eq!(ends, [0, 1, 2], "no other verdict is left");
    assert_eq!(stream.counters().rows_dropped.get(), 3);
    assert_eq!(stream.aborts().len(), 3);
    // Swallowed rows stay swallowed, and nothing is left to end.
    let (_, mut output) = account(&mut stream, unwritable(2));
    output.decide();
    output.guard = Some(PLUGIN.into());
    assert!(matches!(stream.settle(output).into_parts().1.content, Content::Nothing));
    assert_eq!(stream.counters().rows_swallowed.get(), 3);
}

/// Accounts a message. Returns its bytes, too.
fn account(stream: &mut Stream, bytes: Bytes) -> (Bytes, ChainOutput) {
    let decoded = stream.receive(bytes.clone());
    let (ledger, records) = stream.both();
    let Ok(accounted) = ledger.account(decoded, records) else { panic!("no rows") };
    (bytes, ChainOutput::new(accounted))
}
