//! The memory that an outbox counts is that of the process. The only test of its process, which it measures.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use afterbay_batch::frame_log::FrameLog;
use afterbay_batch::hold::HeldRows;
use afterbay_batch::ledger::{Ledger, LedgerLinks, RestartGap};
use afterbay_batch::outbox::{Frame, Options, Outbox, When};
use afterbay_batch::records::{JournalPolicy, Records};
use afterbay_batch::{
    ChainOutput, Content, FrameDecoder, JoinEnds, Joins, Received, RoutingTable, SingleRows, Timestamp,
};
use afterbay_events::{Events, Health, Metrics, StreamTelemetry};
use afterbay_journal::storage::DiscardingStorage;
use afterbay_journal::{Background, JournalDirectory, JournalOptions, SyncPolicy};
use afterbay_wire::synth::{SynthBatch, SynthRow, SynthWire};
use afterbay_wire::{BatchKind, DecodedFrame, Decoder, Layouts};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Instant;

const OPTIONS: Options = Options {
    when: When::Backpressure,
    joins: Joins { ends: JoinEnds::Anywhere, single: SingleRows::None },
    max_rows: 512,
    max_frames: usize::MAX,
    max_bytes: u64::MAX,
};
/// The memory of an outbox, so large that the process's other memory does not count.
const MEMORY: u64 = 12 << 20;

/// The resident memory of this process in bytes.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Pushes frames of `rows` rows of one token each.
fn filled(wire: SynthWire, rows: u64) -> Outbox {
    let (mut outbox, mut decoder) = (Outbox::new(OPTIONS, 0, 0), Decoder::new(Layouts::builtin()));
    for number in 1.. {
        let row = |request: u64| SynthRow {
            rid: format!("chatcmpl-{request:032}"),
            ids: vec![70_000],
            completion_tokens: number,
            prompt_tokens: 1000,
            ..SynthRow::default()
        };
        let batch = SynthBatch { rows: (0..rows).map(row).collect() };
        // A frame out of a socket has no spare room behind it.
        let bytes = Bytes::copy_from_slice(&batch.encode(BatchKind::TokenId, wire).unwrap());
        let DecodedFrame::Batch(batch) = decoder.decode(bytes) else { panic!("no batch") };
        let content = Content::Rows { batch, requests: (1..=rows).collect() };
        outbox.push(Frame { number, at: Instant::now(), content });
        if outbox.memory() >= MEMORY {
            break;
        }
    }
    outbox
}

/// A ledger and a journal with this many live requests, and the memory that they count.
fn live(requests: u64) -> (Ledger, FrameLog, u64) {
    let options = JournalOptions { sync: SyncPolicy::None, ..JournalOptions::default() };
    let storage = Arc::new(DiscardingStorage::default());
    let journal =
        JournalDirectory::open_on(storage, "/memory".as_ref(), options, Background::Caller).unwrap();
    let (writer, recovered) = journal.stream("s").unwrap();
    let (events, health, routing) = (Events::new(), Health::default(), Arc::new(RoutingTable::default()));
    let counters = Metrics::new(events.clone(), health.clone()).stream("s");
    let telemetry = StreamTelemetry { stream: "s".into(), events, counters };
    let policy = JournalPolicy::default();
    let at = Timestamp { instant: Instant::now(), unix_ns: 1 };
    let records = Records::new(writer, policy, &recovered, telemetry.clone(), health, at);
    let mut log = FrameLog::new(records, &recovered);
    let (links, gap) = (LedgerLinks::default(), RestartGap::default());
    let mut ledger = Ledger::new(&[], links, gap, routing, telemetry, at);
    let mut decoder = FrameDecoder::new(Layouts::builtin());
    for first in (0..requests).step_by(1000) {
        let row =
            |at| SynthRow { rid: format!("chatcmpl-{at:023}"), ids: vec![70_000], ..SynthRow::default() };
        let batch = SynthBatch { rows: (first..first + 1000).map(row).collect() };
        let bytes = batch.encode(BatchKind::TokenId, SynthWire::Msgpack).unwrap();
        log.persist(Received { bytes, at }, at);
        let decoded = decoder.decode(log.next(at).unwrap());
        let Ok(accounted) = ledger.account(decoded, &mut log.records) else { panic!("a barrier") };
        let mut held_rows = HeldRows::new(JoinEnds::Anywhere);
        ledger.settle(ChainOutput::new(accounted), &mut held_rows, &mut log.records);
    }
    let counted = ledger.memory() + log.records.requests_memory();
    (ledger, log, counted)
}

#[test]
fn the_counted_memory_of_waiting_rows_and_live_requests_is_that_of_the_process() {
    // The first use of a table's memory is more than the table.
    drop(live(1000));
    let before = resident();
    // Both live to the end: an outbox would get their memory.
    let (ledger, log, counted) = live(50_000);
    let used = resident() - before;
    println!("a live request: {} bytes, counted {}", used / 50_000, counted / 50_000);
    let share = counted as f64 / used as f64;
    assert!((0.6..1.4).contains(&share), "live requests: {counted} of {used} bytes");

    let mut outboxes = Vec::new();
    for wire in [SynthWire::Msgpack, SynthWire::Pickle] {
        for rows in [1, 64] {
            let before = resident();
            let outbox = filled(wire, rows);
            let used = resident() - before;
            let counted = outbox.memory();
            let (memory, bytes) = (counted as f64 / used as f64, counted as f64 / outbox.bytes() as f64);
            println!("{wire:?}, {rows} rows a frame: {memory:.2} of the memory, {bytes:.1} times the frames");
            assert!(
                (0.75..1.25).contains(&memory),
                "{wire:?}, {rows} rows a frame: {counted} of {used} bytes"
            );
            // The allocator gives the memory of a dropped outbox to the next one.
            outboxes.push(outbox);
        }
    }
    drop((ledger, log));
}
