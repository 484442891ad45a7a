//! The bound of live requests, on a journal in a temporary directory and without a clock.

use crate::frame_log::FrameLog;
use crate::hold::HeldRows;
use crate::ledger::{Ledger, LedgerLinks, RestartGap};
use crate::records::{JournalPolicy, Records};
use crate::{FrameDecoder, JoinEnds, Received, RoutingTable, Timestamp};
use afterbay_events::event::LiveRequestsFull;
use afterbay_events::{Events, Health, Metrics, StreamTelemetry};
use afterbay_journal::{JournalDirectory, JournalOptions};
use afterbay_wire::synth::{SynthBatch, SynthFinish, SynthRow, SynthWire};
use afterbay_wire::{BatchKind, Layouts};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MAX: usize = 4;

struct Stream {
    ledger: Ledger,
    log: FrameLog,
    held_rows: HeldRows,
    decode: FrameDecoder,
    began: Instant,
    _dir: tempfile::TempDir,
    _journal: JournalDirectory,
}

impl Stream {
    fn new(events: Events) -> Stream {
        let (dir, began) = (tempfile::tempdir().unwrap(), Instant::now());
        let journal = JournalDirectory::open(dir.path(), JournalOptions::default()).unwrap();
        let (writer, recovered) = journal.stream("s").unwrap();
        let health = Health::default();
        let counters = Metrics::new(events.clone(), health.clone()).stream("s");
        let telemetry = StreamTelemetry { stream: "s".into(), events, counters };
        let policy = JournalPolicy::default();
        let now = Timestamp { instant: began, unix_ns: 0 };
        let records = Records::new(writer, policy, &recovered, telemetry.clone(), health, now);
        let log = FrameLog::new(records, &recovered);
        let (links, routing) = (LedgerLinks::default(), Arc::new(RoutingTable::default()));
        let mut ledger = Ledger::new(&[], links, RestartGap::default(), routing, telemetry, now);
        ledger.bound.max = MAX;
        let (held_rows, decode) = (HeldRows::new(JoinEnds::Anywhere), FrameDecoder::new(Layouts::builtin()));
        Stream { ledger, log, held_rows, decode, began, _dir: dir, _journal: journal }
    }

    /// Accounts a frame with one row for each of these requests, received this long after the start. Returns the numbers of the
    /// requests that are given up for it, and whether plugins see each row.
    fn frame(&mut self, seconds: u64, rids: &[&str]) -> (usize, Vec<bool>) {
        let rows = rids.iter().map(|rid| SynthRow {
            rid: (*rid).to_owned(),
            ids: vec![1],
            finish: rid.starts_with("whole").then_some(SynthFinish::Length(1)),
            ..SynthRow::default()
        });
        let batch = SynthBatch { rows: rows.collect() };
        let bytes = batch.encode(BatchKind::TokenId, SynthWire::Msgpack).unwrap();
        let at = Timestamp { instant: self.began + Duration::from_secs(seconds), unix_ns: seconds };
        self.log.persist(Received { bytes, at }, at);
        let decoded = self.decode.decode(self.log.next(at).unwrap());
        let crate::Decoded::Batch(batch) = &decoded else { panic!("no batch") };
        let Stream { ledger, log, held_rows, .. } = self;
        let records = &mut log.records;
        let given_up = match ledger.lacks_room(batch.batch()) {
            true => ledger.make_room(batch.batch(), at.instant, held_rows, records).len(),
            false => 0,
        };
        let Ok(accounted) = ledger.account(decoded, records) else { panic!("a barrier") };
        let seen = accounted.rows().iter().map(|row| !row.hidden).collect();
        ledger.settle(crate::ChainOutput::new(accounted), held_rows, records);
        (given_up, seen)
    }

    fn rids(&self) -> Vec<&str> {
        let mut rids: Vec<&str> = self.ledger.requests().map(|(rid, _)| rid).collect();
        rids.sort_unstable();
        rids
    }
}

#[test]
fn a_request_without_a_row_for_60_seconds_is_given_up_at_the_bound() {
    let (events, recorder) = Events::recorded();
    let mut stream = Stream::new(events);
    assert_eq!(stream.frame(0, &["a", "b"]), (0, vec![true, true]));
    assert_eq!(stream.frame(30, &["b", "c", "d"]), (0, vec![true; 3]));
    // "a" is idle for 59 seconds: the new request has no place, and plugins do not see it.
    assert_eq!(stream.frame(59, &["e"]), (0, vec![false]));
    assert_eq!(stream.rids(), ["a", "b", "c", "d"]);
    assert_eq!(stream.frame(60, &["e"]), (1, vec![true]));
    assert_eq!(stream.rids(), ["b", "c", "d", "e"]);
    let given_up: Vec<u64> = recorder.of::<LiveRequestsFull>().iter().map(|event| event.given_up).collect();
    assert_eq!(given_up, [0, 1]);
}

#[test]
fn at_the_bound_idle_requests_are_searched_for_once_a_second() {
    let mut stream = Stream::new(Events::new());
    stream.frame(0, &["a", "b", "c", "d"]);
    assert_eq!(stream.frame(59, &["e"]).0, 0);
    assert_eq!(stream.frame(60, &["e", "f"]), (2, vec![true, true]));
    // The next search is due at 61 seconds, although "c" and "d" are idle, too.
    assert_eq!(stream.frame(60, &["g"]), (0, vec![false]));
    assert_eq!(stream.frame(61, &["g"]), (1, vec![true]));
}

#[test]
fn a_request_that_begins_and_ends_in_one_frame_takes_no_place_of_the_bound() {
    let mut stream = Stream::new(Events::new());
    let (given_up, seen) = stream.frame(0, &["whole-1", "whole-2", "whole-3", "a", "b", "c", "d", "e"]);
    assert_eq!((given_up, seen), (0, [vec![true; 7], vec![false]].concat()));
    assert_eq!(stream.rids(), ["a", "b", "c", "d"]);
}

#[test]
fn the_bound_counts_as_reached_until_a_sixteenth_of_it_is_free() {
    let mut stream = Stream::new(Events::new());
    stream.ledger.bound.max = 32;
    let rids: Vec<String> = (0..33).map(|number| format!("req-{number}")).collect();
    let rids: Vec<&str> = rids.iter().map(String::as_str).collect();
    assert_eq!(stream.ledger.full(), None);
    stream.frame(0, &rids);
    let mut close = |ledger: &mut Ledger| {
        let (first, ..) = ledger.requests.iter().next().unwrap();
        ledger.remove(first, &mut stream.log.records);
        (ledger.live(), ledger.full().is_some())
    };
    assert_eq!((stream.ledger.live(), stream.ledger.full().is_some()), (32, true));
    assert_eq!(close(&mut stream.ledger), (31, true));
    assert_eq!(close(&mut stream.ledger), (30, false));
}
