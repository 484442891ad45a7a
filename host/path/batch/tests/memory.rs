//! The memory that an outbox counts is that of the process. The only test of its process, which it measures.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use afterbay_batch::outbox::{Frame, Options, Outbox, When};
use afterbay_batch::{Content, JoinEnds, Joins, SingleRows};
use afterbay_wire::synth::{SynthBatch, SynthRow, SynthWire};
use afterbay_wire::{BatchKind, DecodedFrame, Decoder, Layouts};
use bytes::Bytes;
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

#[test]
fn the_counted_memory_of_waiting_rows_is_that_of_the_process() {
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
}
