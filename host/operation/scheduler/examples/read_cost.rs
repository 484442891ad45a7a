//! Measures a read while the file is written and read: `cargo run --release --example read_cost`.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use afterbay_scheduler::signals::{LoadConfig, LoadHandle, LoadReader, LoadSource};

const READS: u32 = 10_000;

/// Prints the best and the median of many short rounds: on a busy machine a long round is always disturbed.
fn cost(name: &str, read: impl Fn()) {
    let round = || {
        let start = Instant::now();
        (0..READS).for_each(|_| read());
        start.elapsed().as_secs_f64() * 1e9 / f64::from(READS)
    };
    let mut rounds: Vec<f64> = (0..1000).map(|_| round()).collect();
    rounds.sort_by(f64::total_cmp);
    println!("{name:8} {:6.1} ns, median {:6.1} ns", rounds[0], rounds[500]);
}

fn main() {
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/load-snapshot-two-ranks.shm");
    let file = LoadSource::File(std::env::args().nth(1).map_or_else(|| fixture.into(), Into::into));
    let reader = LoadReader::start(LoadConfig::new(file)).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let (load, now): (LoadHandle, Instant) = (reader.handle(), Instant::now());
    println!("{:?}", load.read());
    cost("clock", || _ = black_box(Instant::now()));
    cost("read_at", || _ = black_box(load.read_at(black_box(now))));
    cost("read", || _ = black_box(load.read()));
}
