//! Requests of an engine that died.

use crate::stream::{Decide, Stream};
use afterbay_batch::Decoded;
use afterbay_events::EndCause;
use afterbay_events::event::{EngineRestarted, RequestImbalance, RequestMigrated};
use afterbay_journal::reader::{JournalReader, RequestHistory};
use afterbay_wire::RequestRecord;
use afterbay_wire::synth::SynthRow;

/// A row of a request with a prompt of 2 tokens, for its first engine.
fn row(rid: &str, ids: &[i64], count: u64) -> SynthRow {
    SynthRow { prompt_tokens: 2, ..crate::stream::row(rid, ids, count) }
}

fn last(rid: &str, ids: &[i64], count: u64) -> SynthRow {
    SynthRow { prompt_tokens: 2, ..crate::stream::last(rid, ids, count) }
}

/// Announces a request with a prompt of these many tokens. Returns the numbers of the requests that end because of it.
fn announce(stream: &mut Stream, rid: &str, prompt: u32, lease_ms: Option<u64>) -> Vec<u64> {
    let record = RequestRecord { rid: rid.to_owned(), lease_ms, ..RequestRecord::default() };
    let ids: Vec<u32> = (0..prompt).collect();
    let decoded = stream.receive(record.with_prompt(&ids).to_frame());
    assert!(stream.all().2.flush());
    let (ledger, held, records) = stream.all();
    let Decoded::Barrier(barrier) = &decoded else { panic!("a record has no rows") };
    let ended = ledger.lose_for(barrier, held, records);
    assert!(ledger.account(decoded, records).is_err());
    ended
}

/// The engine dies, and the next one introduces itself. Returns the numbers of the requests that end.
fn restart_engine(stream: &mut Stream) -> Vec<u64> {
    assert!(stream.all().2.flush());
    let introduction = stream.receive(r#"{"afterbay":"introduction","format":1,"engine":"sglang"}"#.into());
    let (ledger, held, records) = stream.all();
    let ended = ledger.lose_all(introduction.persisted(), held, records);
    assert!(ledger.account(introduction, records).is_err());
    ended
}

fn attribute(life: &RequestHistory, name: &str) -> Option<String> {
    life.request.attribute(name).map(str::to_owned)
}

fn lives(stream: &Stream, rid: &str) -> Vec<RequestHistory> {
    JournalReader::open(stream.dir.path()).unwrap().stream("s").unwrap().lives(rid).unwrap()
}

fn ids(rows: &[crate::stream::SentRow]) -> Vec<i64> {
    rows.iter().flat_map(|row| row.ids.clone()).collect()
}

#[test]
fn requests_without_a_lease_end_with_their_engine() {
    let mut stream = Stream::new();
    announce(&mut stream, "a", 2, None);
    stream.pass(vec![row("a", &[1], 1), row("b", &[1], 1)]);
    let at = stream.now().unix_ns / 1_000_000;
    assert_eq!(restart_engine(&mut stream), [1, 2]);
    assert!(restart_engine(&mut stream).is_empty());
    assert_eq!((stream.counters().requests_ended.get(EndCause::Lost), stream.ledger().live()), (2, 0));
    let events = stream.recorder.of::<EngineRestarted>();
    assert_eq!(events.iter().map(|it| (it.requests, it.waiting)).collect::<Vec<_>>(), [(2, 0)]);
    assert_eq!(stream.interruptions(), [""; 0]);
    stream.restart(true);
    assert_eq!(attribute(&lives(&stream, "a")[0], RequestRecord::ENGINE_DIED), Some(at.to_string()));
}

#[test]
fn a_request_goes_on_with_the_next_engine_under_its_rid_and_its_tokens_add_up() {
    for restarts in [0, 1, 2] {
        let mut stream = Stream::new();
        announce(&mut stream, "a", 2, Some(60_000));
        stream.pass(vec![row("a", &[10, 11, 12], 3)]);
        assert!(restart_engine(&mut stream).is_empty());
        assert_eq!(stream.interruptions(), ["1 a has 3 behind 2"]);
        if restarts > 0 {
            stream.restart(restarts == 1);
            assert_eq!(stream.interruptions(), ["1 a has 3 behind 2"], "whoever sends it is told again");
        }
        assert_eq!(stream.leases(), [""; 0], "no lease runs while no engine has it");
        assert!(announce(&mut stream, "a", 5, Some(60_000)).is_empty());
        assert_eq!(stream.interruptions(), ["1 taken"]);
        assert_eq!(stream.leases().len(), 1, "its client has left");
        if restarts > 0 {
            stream.restart(restarts == 1);
            stream.leases();
        }
        // The next engine counts from 0, and its reader gets its counts.
        let sent = stream.pass(vec![row("a", &[13], 1)]);
        assert_eq!((ids(&sent), sent[0].count, sent[0].request), (vec![13], Some(1), 1));
        assert_eq!(ids(&stream.pass(vec![last("a", &[14], 2)])), [14]);
        assert_eq!(stream.leases(), ["1 ended"]);
        assert_eq!(
            (stream.counters().request_gaps.get(), stream.counters().request_imbalances.get()),
            (0, 0)
        );
        assert!(stream.recorder.of::<RequestImbalance>().is_empty());
        assert_eq!(stream.recorder.of::<RequestMigrated>()[0].tokens, 3);
        stream.restart(true);
        let [life] = &lives(&stream, "a")[..] else { panic!("one request") };
        let request = &life.request;
        assert_eq!((request.received, request.forwarded, request.completion_tokens), (5, 5, Some(5)));
        assert_eq!(attribute(life, RequestRecord::MIGRATED_AT).as_deref(), Some("3"));
    }
}

#[test]
fn a_request_goes_on_again_after_a_second_death() {
    let mut stream = Stream::new();
    announce(&mut stream, "a", 2, Some(60_000));
    stream.pass(vec![row("a", &[10], 1)]);
    restart_engine(&mut stream);
    announce(&mut stream, "a", 3, Some(60_000));
    stream.pass(vec![row("a", &[11], 1)]);
    assert!(restart_engine(&mut stream).is_empty());
    assert_eq!(stream.interruptions(), ["1 a has 1 behind 2", "1 taken", "1 a has 2 behind 2"]);
    announce(&mut stream, "a", 4, Some(60_000));
    stream.pass(vec![last("a", &[12], 1)]);
    assert_eq!((stream.counters().request_gaps.get(), stream.counters().request_imbalances.get()), (0, 0));
}

#[test]
fn held_rows_of_an_engine_that_died_leave_with_those_of_the_next_one() {
    let mut stream = Stream::new();
    announce(&mut stream, "a", 2, Some(60_000));
    stream.pass(vec![row("a", &[10], 1)]);
    stream.decide(vec![row("a", &[11], 2)], &Decide::Hold);
    restart_engine(&mut stream);
    announce(&mut stream, "a", 4, Some(60_000));
    stream.pass(vec![row("a", &[12], 1)]);
    stream.seconds += 61;
    while stream.release_due().is_some() {}
    stream.pass(vec![last("a", &[13], 2)]);
    assert_eq!((stream.ledger().live(), stream.counters().request_imbalances.get()), (0, 0));
}

#[test]
fn a_request_that_cannot_go_on_ends_with_the_reason() {
    let mut stream = Stream::new();
    announce(&mut stream, "a", 2, Some(60_000));
    restart_engine(&mut stream);
    let (ledger, held, records) = stream.all();
    assert_eq!(ledger.not_migrated(1, "it has a grammar", held, records), [1]);
    assert!(ledger.not_migrated(1, "again", held, records).is_empty());
    assert_eq!(stream.interruptions(), ["1 a has 0 behind 2", "1 ended"]);
    stream.restart(true);
    let why = attribute(&lives(&stream, "a")[0], RequestRecord::NOT_MIGRATED);
    assert_eq!(why.as_deref(), Some("it has a grammar"));
}

#[test]
fn another_request_with_the_rid_of_one_that_waits_begins_anew() {
    let mut stream = Stream::new();
    announce(&mut stream, "a", 2, Some(60_000));
    stream.pass(vec![row("a", &[10], 1)]);
    restart_engine(&mut stream);
    // The client sends its prompt again, under the id that it chose.
    assert_eq!(announce(&mut stream, "a", 2, None), [1]);
    let sent = stream.pass(vec![last("a", &[10], 1)]);
    assert_eq!(sent[0].request, 2);
    stream.restart(true);
    let lives = lives(&stream, "a");
    assert_eq!(lives.len(), 2);
    let why = attribute(&lives[0], RequestRecord::NOT_MIGRATED);
    assert_eq!(why.as_deref(), Some("another request has its rid"));
}

#[test]
fn a_request_that_nobody_sends_again_ends_with_its_engine() {
    let mut stream = Stream::new();
    stream.migrates = false;
    stream.restart(true);
    announce(&mut stream, "a", 2, Some(60_000));
    assert_eq!(restart_engine(&mut stream).len(), 1);
    assert_eq!(stream.ledger().live(), 0);
}
