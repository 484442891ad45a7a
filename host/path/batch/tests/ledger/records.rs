//! The record of a request, which comes before the request's first row.

use crate::stream::{Stream, last, row};
use afterbay_events::EndCause;
use afterbay_journal::FrameNo;
use afterbay_journal::reader::{JournalReader, RequestState};
use afterbay_wire::synth::{SynthBatch, SynthRow, SynthWire};
use afterbay_wire::vllm::{SynthOutput, SynthOutputs};
use afterbay_wire::{BatchKind, RequestRecord};
use std::time::Duration;

fn record(rid: &str) -> RequestRecord {
    RequestRecord { rid: rid.to_owned(), ..RequestRecord::default() }.with_prompt(&[5, 6])
}

/// Passes a record. Nothing of it is sent.
fn announce(stream: &mut Stream, record: &RequestRecord) {
    let decoded = stream.receive(record.to_frame());
    let (ledger, records) = stream.both();
    let Err(settled) = ledger.account(decoded, records) else { panic!("a record has no rows") };
    let (_, content) = settled.into_parts();
    assert!(matches!(content.content, afterbay_batch::Content::Nothing));
}

fn attributes_of(stream: &mut Stream, number: u64) -> Option<String> {
    stream.ledger().attributes(number).map(|attributes| attributes.to_string())
}

#[test]
fn a_request_is_live_from_its_record_on_and_its_first_row_finds_it() {
    let mut stream = Stream::new();
    announce(&mut stream, &record("a"));
    assert_eq!((stream.ledger().live(), stream.counters().requests_opened.get()), (1, 1));
    let output = stream.account(vec![row("b", &[1], 1), row("a", &[1], 1)]);
    let firsts: Vec<_> = output.accounted().rows().iter().map(|row| (row.number(), row.first)).collect();
    assert_eq!(firsts, [(2, true), (1, true)]);
    stream.settle(output);
    let output = stream.account(vec![row("a", &[2], 2), row("b", &[2], 2)]);
    assert!(output.accounted().rows().iter().all(|row| !row.first));
    stream.settle(output);
    // A second record of the rid is of the live request.
    announce(&mut stream, &record("a"));
    assert_eq!(stream.ledger().live(), 2);
    stream.pass(vec![last("a", &[3], 3), last("b", &[3], 3)]);
    assert_eq!(stream.ledger().live(), 0);
}

#[test]
fn a_request_without_a_row_outlives_a_restart_and_is_given_up_as_others() {
    for is_clean in [true, false] {
        let mut stream = Stream::new();
        announce(&mut stream, &record("queued"));
        announce(&mut stream, &record("lost"));
        stream.restart(is_clean);
        assert_eq!(stream.ledger().live(), 2);
        let sent = stream.pass(vec![row("queued", &[1], 1)]);
        assert_eq!((sent.len(), sent[0].request), (1, 1));
        stream.seconds += 70;
        stream.pass(vec![row("queued", &[2], 2)]);
        let now = stream.now().instant;
        let (ledger, held, records) = stream.all();
        assert_eq!(ledger.abandon(Duration::from_secs(60), now, held, records), [2]);
    }
}

#[test]
fn a_request_that_begins_in_a_frame_without_a_call_is_told_to_the_plugins_once() {
    let mut stream = Stream::new();
    let rows = SynthBatch { rows: vec![row("a", &[1], 1), last("b", &[1], 1)] };
    let frame = rows.encode(BatchKind::TokenId, SynthWire::Msgpack).unwrap();
    for frame in [frame, record("c").to_frame()] {
        let decoded = stream.receive(frame);
        let (ledger, held, records) = stream.all();
        ledger.recover(decoded, held, records);
    }
    let begun = stream.ledger().take_unannounced();
    assert_eq!(begun.iter().map(|handle| handle.number().0).collect::<Vec<_>>(), [1, 3], "b has ended");
    assert_eq!(stream.ledger().take_unannounced().len(), 0);
    let output = stream.account(vec![row("a", &[2], 2), row("c", &[1], 1)]);
    assert!(output.accounted().rows().iter().all(|row| !row.opens));
}

#[test]
fn after_a_restart_a_request_without_a_row_has_the_front_end_of_its_record() {
    let mut stream = Stream::new();
    announce(&mut stream, &RequestRecord { front_end: Some("ipc://one".into()), ..record("a") });
    announce(&mut stream, &record("b"));
    stream.restart(false);
    assert!(stream.ledger().blank_row(1, FrameNo(3)).is_none(), "no batch has shown the form of a row");
    let other = Some("ipc://two".to_owned());
    stream.pass(vec![SynthRow { http_worker_ipc: other, ..row("c", &[1], 1) }]);
    let (handle, _) = stream.ledger().blank_row(1, FrameNo(3)).unwrap();
    let (rid, request) = stream.ledger().request(handle).unwrap();
    assert_eq!((rid, &*request.reader.front_end), ("a", "ipc://one"));
    assert!(stream.ledger().blank_row(2, FrameNo(3)).is_none(), "nobody knows where its row is to go");
}

#[test]
fn a_request_that_its_engine_ends_in_the_queue_is_closed_as_aborted() {
    let mut stream = Stream::new();
    announce(&mut stream, &record("a"));
    announce(&mut stream, &record("b"));
    for rid in ["a", "unknown"] {
        let decoded = stream.receive(format!("{{\"afterbay\":\"end\",\"rid\":\"{rid}\"}}").into());
        let (ledger, held, records) = stream.all();
        let Err(settled) = ledger.account(decoded, records) else { panic!("an end has no rows") };
        assert!(matches!(settled.into_parts().1.content, afterbay_batch::Content::Nothing));
        assert_eq!(ledger.close_departed(held, records), if rid == "a" { vec![1] } else { vec![] });
    }
    assert_eq!((stream.ledger().live(), stream.counters().requests_ended.get(EndCause::Client)), (1, 1));
    stream.restart(true);
    assert_eq!(stream.ledger().live(), 1);
    let journal = JournalReader::open(stream.dir.path()).unwrap();
    let [a] = &journal.stream("s").unwrap().lives("a").unwrap()[..] else { panic!("one request") };
    assert_eq!((a.request.state, &*a.request.finish), (RequestState::Finished, "abort"));
}

#[test]
fn the_journal_has_the_frame_of_the_record_beside_the_rows() {
    let mut stream = Stream::new();
    announce(&mut stream, &record("a"));
    stream.seconds += 3;
    stream.pass(vec![row("a", &[1], 1)]);
    announce(&mut stream, &record("queued"));
    stream.restart(true);
    let journal = JournalReader::open(stream.dir.path()).unwrap();
    let reader = journal.stream("s").unwrap();
    let [a] = &reader.lives("a").unwrap()[..] else { panic!("one request") };
    let info = &a.request;
    assert_eq!((info.rows, info.record_frame.0, info.first_frame.0, info.last_frame.0), (1, 1, 2, 2));
    assert_eq!(info.first_unix_ns - info.record_unix_ns, 3_000_000_000);
    assert_eq!((a.rows.len(), a.record.map(|at| at.frame.0)), (1, Some(1)));
    let [queued] = &reader.lives("queued").unwrap()[..] else { panic!("one request") };
    let info = &queued.request;
    assert_eq!((info.rows, info.record_frame.0, info.first_frame.0, info.last_frame.0), (0, 3, 3, 3));
    assert_eq!((info.state, queued.rows.len()), (RequestState::Live, 0));
    let frame = reader.frame(&queued.record.unwrap()).unwrap();
    let read = RequestRecord::of_frame(&frame.bytes.into()).unwrap().unwrap();
    assert_eq!((&*read.rid, read.prompt_ids().unwrap().collect::<Vec<_>>()), ("queued", vec![5, 6]));
}

#[test]
fn the_attributes_of_the_engine_are_those_of_the_request_with_the_record() {
    let mut stream = Stream::new();
    let source = |_: &str, of_engine: &[(String, String)]| {
        let known: Vec<_> = of_engine.iter().map(|(name, value)| format!("{name}={value}")).collect();
        (!known.is_empty()).then(|| known.join(" ").into())
    };
    stream.ledger().set_attributes_source(Some(Box::new(source)));
    announce(&mut stream, &RequestRecord { lora: Some("sql".into()), resumable: true, ..record("s") });
    let of_record = Some("lora=sql resumable=true".to_owned());
    assert_eq!(attributes_of(&mut stream, 1), of_record);
    stream.pass(vec![last("s", &[1], 1), row("a", &[1], 1)]);
    // Another request of the rid has no record of its own.
    stream.pass(vec![row("s", &[2], 1), row("a", &[2], 2)]);
    assert_eq!(attributes_of(&mut stream, 3), None);
    // The record of a request that is known by its rows.
    announce(&mut stream, &RequestRecord { session: Some("x".into()), ..record("a") });
    let a = stream.ledger().numbered(2).unwrap();
    stream.ledger().refresh_attributes(a);
    assert_eq!(attributes_of(&mut stream, 2), Some("session=x".to_owned()));
}

#[test]
fn the_length_of_the_prompt_is_that_of_the_record_unless_the_first_row_says_it() {
    let mut stream = Stream::new();
    announce(&mut stream, &record("a"));
    announce(&mut stream, &record("b"));
    let row = |rid: &str, prompt_tokens| SynthOutput {
        request_id: rid.to_owned(),
        new_token_ids: vec![1],
        prompt_tokens,
        ..SynthOutput::default()
    };
    let rows = vec![row("a", None), row("b", Some(7)), row("c", None)];
    let decoded = stream.receive(SynthOutputs { rows, ..SynthOutputs::default() }.encode());
    let (ledger, records) = stream.both();
    let Ok(accounted) = ledger.account(decoded, records) else { panic!("no rows") };
    let lengths = accounted.rows().iter().map(|row| ledger.request(row.request).unwrap().1.prompt_tokens);
    assert_eq!(lengths.collect::<Vec<_>>(), [2, 7, 0]);
}
