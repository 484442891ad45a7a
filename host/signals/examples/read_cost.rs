//! What a read costs while the file is being written and read beside it: `cargo run --release --example read_cost`.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use afterbay_signals::{Load, LoadConfig, LoadReader, SnapshotPlace};

const READS: u32 = 2_000_000;

fn best(read: impl Fn()) -> f64 {
    let round = || {
        let begun = Instant::now();
        (0..READS).for_each(|_| read());
        begun.elapsed().as_secs_f64() * 1e9 / f64::from(READS)
    };
    (0..7).map(|_| round()).fold(f64::INFINITY, f64::min)
}

fn main() {
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/load-snapshot-two-ranks.shm");
    let place = SnapshotPlace::Path(std::env::args().nth(1).map_or_else(|| fixture.into(), Into::into));
    let reader =
        LoadReader::start(LoadConfig { load_snapshot: Some(place), ..LoadConfig::default() }).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let (load, now): (Load, Instant) = (reader.handle(), Instant::now());
    println!("{:?}", load.read());
    println!("clock    {:5.1} ns", best(|| _ = black_box(Instant::now())));
    println!("read_at  {:5.1} ns", best(|| _ = black_box(load.read_at(black_box(now)))));
    println!("read     {:5.1} ns", best(|| _ = black_box(load.read())));
}
