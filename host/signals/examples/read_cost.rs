//! What a read costs while the file is being written and read beside it: `cargo run --release --example read_cost`.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use afterbay_signals::{Load, LoadConfig, LoadReader, SnapshotPlace};

const READS: u32 = 10_000;

/// The best of many short rounds, and the middle one: on a busy machine a long round is never left alone.
fn cost(what: &str, read: impl Fn()) {
    let round = || {
        let begun = Instant::now();
        (0..READS).for_each(|_| read());
        begun.elapsed().as_secs_f64() * 1e9 / f64::from(READS)
    };
    let mut rounds: Vec<f64> = (0..1000).map(|_| round()).collect();
    rounds.sort_by(f64::total_cmp);
    println!("{what:8} {:6.1} ns, median {:6.1} ns", rounds[0], rounds[500]);
}

fn main() {
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/load-snapshot-two-ranks.shm");
    let place = SnapshotPlace::Path(std::env::args().nth(1).map_or_else(|| fixture.into(), Into::into));
    let reader =
        LoadReader::start(LoadConfig { load_snapshot: Some(place), ..LoadConfig::default() }).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let (load, now): (Load, Instant) = (reader.handle(), Instant::now());
    println!("{:?}", load.read());
    cost("clock", || _ = black_box(Instant::now()));
    cost("read_at", || _ = black_box(load.read_at(black_box(now))));
    cost("read", || _ = black_box(load.read()));
}
