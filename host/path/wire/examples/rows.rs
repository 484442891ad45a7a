//! Measures the cost of a row in ns: `cargo run --release -p afterbay-wire --example rows [msgpack|pickle|vllm]`. It prints
//! the minimum of many runs, which depends less on the machine's load. A further argument makes a single run, for
//! callgrind.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use afterbay_types::Engine;
use std::hint::black_box;
use std::time::{Duration, Instant};

use afterbay_wire::synth::{SynthBatch, SynthFinish, SynthRow, SynthWire};
use afterbay_wire::{
    Batch, BatchKind, BatchPart, DecodedFrame, Decoder, Edit, Finish, Ids, Layouts, TokenEdit,
};
use bytes::Bytes;

fn frame(rows: usize, wire: SynthWire) -> Bytes {
    let row = |at: usize| SynthRow {
        rid: format!("{:032x}", at as u128 * 0x9e37_79b9_7f4a_7c15),
        ids: vec![1000 + at as i64],
        finish: (at % 128 == 127).then_some(SynthFinish::Length(1000)),
        completion_tokens: 1 + (at as u64 * 37) % 512,
        prompt_tokens: 20 + (at as u64 * 13) % 3000,
        ..SynthRow::default()
    };
    SynthBatch { rows: (0..rows).map(row).collect() }.encode(BatchKind::TokenId, wire).unwrap()
}

fn batch(decoder: &mut Decoder, frame: &Bytes) -> Batch {
    match decoder.decode(frame.clone()) {
        DecodedFrame::Batch(batch) => batch,
        DecodedFrame::Barrier(barrier) => panic!("{:?}", barrier.kind),
    }
}

/// Calls the accessors that the stream calls for every row.
fn read(batch: &Batch) -> u64 {
    let mut sum = 0;
    for row in 0..batch.rows() {
        sum += batch.rid(row).len() as u64 + u64::from(batch.tokens(row));
        sum += batch.completion_tokens(row).unwrap_or(0) + u64::from(batch.finish(row) == Finish::Running);
    }
    sum
}

/// Calls the same accessors for a whole column at a time.
fn read_columns(batch: &Batch) -> u64 {
    batch.rids().map(|rid| rid.len() as u64).sum::<u64>()
        + batch.token_counts().map(u64::from).sum::<u64>()
        + batch.completion_counts().map(|count| count.unwrap_or(0)).sum::<u64>()
        + batch.finishes().filter(|finish| *finish == Finish::Running).count() as u64
}

/// The shortest run within about 0.4 s.
fn least(once: bool, mut run: impl FnMut()) -> Duration {
    let begun = Instant::now();
    let mut least = Duration::MAX;
    loop {
        let start = Instant::now();
        run();
        least = least.min(start.elapsed());
        if once || begun.elapsed() > Duration::from_millis(400) {
            return least;
        }
    }
}

fn main() {
    let args: Vec<_> = std::env::args().collect();
    let only = args.get(1).map(String::as_str);
    let once = args.len() > 2;
    println!(
        "{:8} {:>5} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "", "rows", "decode", "by row", "columns", "ids", "take", "join of 8", "edit 1", "edit all"
    );
    for (name, wire, layouts) in [
        ("msgpack", SynthWire::Msgpack, Layouts::builtin()),
        ("pickle", SynthWire::Pickle, Layouts::builtin()),
        ("vllm", SynthWire::EngineCore, Layouts::of(Engine::Vllm)),
    ] {
        if only.is_some_and(|only| only != name) {
            continue;
        }
        for rows in if once { vec![1024] } else { vec![1, 16, 64, 256, 1024, 4096] } {
            let frame = frame(rows, wire);
            let mut decoder = Decoder::new(layouts.clone());
            let decode = least(once, || drop(black_box(batch(&mut decoder, &frame))));
            let it = batch(&mut decoder, &frame);
            let accessors = least(once, || _ = black_box(read(&it)));
            assert_eq!(read(&it), read_columns(&it));
            let columns = least(once, || _ = black_box(read_columns(&it)));
            let mut ids = Ids::default();
            let output_ids = least(once, || it.output_ids(black_box(&mut ids)));
            let half: Vec<u32> = (0..rows as u32).step_by(2).collect();
            let take = least(once, || drop(black_box(it.take(&half).unwrap()))) * 2;
            // Eight batches of the same requests, without last rows.
            let going: Vec<u32> = (0..rows as u32).filter(|row| row % 128 != 127).collect();
            let parts = vec![BatchPart { batch: &it, rows: Some(&going) }; 8];
            let join = least(once, || drop(black_box(Batch::join(&parts).unwrap()))) / 8;
            let edit = |row| Edit { tokens: TokenEdit::Delta(vec![7]), ..Edit::new(row) };
            let one = least(once, || drop(black_box(it.edit(&[edit(rows as u32 / 2)]).unwrap())));
            let every: Vec<_> = (0..rows as u32).map(edit).collect();
            let all = least(once, || drop(black_box(it.edit(&every).unwrap())));
            let ns = |time: Duration| time.as_secs_f64() * 1e9 / rows as f64;
            println!(
                "{name:8} {rows:5} {:8.1} {:8.1} {:8.1} {:8.1} {:8.1} {:8.1} {:8.1} {:8.1}",
                ns(decode),
                ns(accessors),
                ns(columns),
                ns(output_ids),
                ns(take),
                ns(join),
                ns(one),
                ns(all)
            );
        }
    }
}
