//! Cost of a frame beside plain `write` calls of the same bytes in the same run. `cargo test --release -p
//! afterbay-journal --test it -- --ignored --nocapture bench::`

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use crate::support::*;
use afterbay_journal::*;

const ROUNDS: usize = 9;
const BYTES: usize = 192 << 20;

/// Uses the build directory: a disk, not a memory file system.
fn temporary() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// CPU time of this thread, independent of other work on the machine.
struct Clock(Duration);

impl Clock {
    fn start() -> Clock {
        Clock(Clock::now())
    }

    fn now() -> Duration {
        rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).try_into().unwrap()
    }

    fn elapsed(&self) -> Duration {
        Clock::now() - self.0
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
#[ignore = "a benchmark"]
fn a_frame_costs_little_more_than_a_write() {
    println!(
        "median of {ROUNDS} rounds, each beside its baseline; ns of processor time a frame (GB/s), the outcome included"
    );
    for (bytes, rows) in [(1 << 10, 1), (1 << 10, 64), (100 << 10, 1), (100 << 10, 1024)] {
        let frame = Random(1).bytes(bytes);
        let frames = (BYTES / bytes).min(60_000);
        let (mut plain, mut whole) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            plain.push(write_plainly(&frame, frames));
            whole.push(write_journal(&frame, frames, rows));
        }
        let ratios = plain.iter().zip(&whole).map(|(plain, whole)| whole / plain).collect();
        let (plain, whole, ratio) = (median(plain), median(whole), median(ratios));
        println!(
            "{bytes:>6} B, {rows:>4} rows: write {plain:>7.0} ({:.2}), journal {whole:>7.0} ({:.2}), ratio {ratio:.2}",
            bytes as f64 / plain,
            bytes as f64 / whole,
        );
    }
}

fn write_plainly(frame: &[u8], frames: usize) -> f64 {
    let dir = temporary();
    let mut file = File::create(dir.path().join("plain")).unwrap();
    let start = Clock::start();
    for _ in 0..frames {
        file.write_all(frame).unwrap();
    }
    start.elapsed().as_nanos() as f64 / frames as f64
}

fn write_journal(frame: &[u8], frames: usize, rows: usize) -> f64 {
    let dir = temporary();
    let (_directory, mut writer, _) = open(dir.path(), options());
    let requests: Vec<_> = (0..rows).map(|row| writer.open(format!("request-{row:032}"))).collect();
    let tokens = vec![1; rows];
    let start = Clock::start();
    for ns in 0..frames as u64 {
        let at = writer.append(frame, ns).unwrap();
        writer.outcome(&plain_outcome(at.frame, &requests, &tokens));
        writer.taken("sink", 0, at.frame, None, 0);
    }
    start.elapsed().as_nanos() as f64 / frames as f64
}

#[test]
#[ignore = "a benchmark"]
fn an_outcome_costs_a_few_nanoseconds_a_row() {
    for live in [64, 1024, 4096, 16384] {
        let dir = temporary();
        let (_directory, mut writer, _) = open(dir.path(), options());
        let mut requests: Vec<_> = (0..live).map(|row| writer.open(format!("request-{row:032}"))).collect();
        let mut random = Random(3);
        for at in 0..requests.len() {
            requests.swap(at, random.below(live) as usize);
        }
        let tokens = vec![1; live as usize];
        let mut cost = Vec::new();
        for ns in 0..400 {
            let at = writer.append(b"", ns).unwrap();
            let start = Clock::start();
            writer.outcome(&plain_outcome(at.frame, &requests, &tokens));
            cost.push(start.elapsed().as_nanos() as f64 / live as f64);
        }
        println!("{live:>6} rows, all requests live: {:.2} ns a row", median(cost));
    }
}

#[test]
#[ignore = "a benchmark"]
fn rotation_and_requests() {
    let dir = temporary();
    let (_directory, mut writer, _) =
        open(dir.path(), JournalOptions { segment_bytes: 64 << 20, ..options() });
    let requests: Vec<_> = (0..4096).map(|row| writer.open(format!("request-{row:032}"))).collect();
    let tokens = vec![1; 4096];
    let frame = vec![7; 100 << 10];
    let (mut last, mut slow, mut usual) = (None, Vec::new(), Vec::new());
    for ns in 0..4000 {
        let start = Clock::start();
        let at = writer.append(&frame, ns).unwrap();
        let took = start.elapsed().as_nanos() as f64 / 1e3;
        if last.replace(at.segment) == Some(at.segment) {
            usual.push(took)
        } else {
            slow.push(took)
        };
        writer.outcome(&plain_outcome(at.frame, &requests, &tokens));
    }
    println!(
        "append with 4096 live: {:.0} us; where it begins a segment: {:.0} us",
        median(usual),
        median(slow)
    );
    let start = Clock::start();
    for round in 0..60_000 {
        let request = writer.open(format!("request-{round:032}"));
        writer.close(request);
    }
    println!("a request opened and closed: {:.0} ns", start.elapsed().as_nanos() as f64 / 6e4);
}

#[test]
#[ignore = "a benchmark"]
fn a_frame_is_read_back_at_the_speed_of_memory() {
    for (bytes, rows) in [(1 << 10, 16), (100 << 10, 1024)] {
        let dir = temporary();
        let (_directory, mut writer, _) =
            open(dir.path(), JournalOptions { segment_bytes: 64 << 20, ..options() });
        let requests: Vec<_> = (0..rows).map(|_| writer.open("r")).collect();
        let (frame, tokens) = (Random(1).bytes(bytes), vec![1; rows]);
        let frames = BYTES / bytes;
        for ns in 0..frames as u64 {
            let at = writer.append(&frame, ns).unwrap();
            writer.outcome(&plain_outcome(at.frame, &requests, &tokens));
        }
        writer.flush().unwrap();
        let read = |mut backlog: BacklogReader| {
            let start = Clock::start();
            while backlog.next().unwrap().is_some() {}
            start.elapsed().as_nanos() as f64 / frames as f64
        };
        let plain = median((0..ROUNDS).map(|_| read(writer.backlog(FrameNo(1)))).collect());
        let told = median((0..ROUNDS).map(|_| read(writer.backlog(FrameNo(1)).with_outcomes())).collect());
        println!(
            "{bytes:>6} B, {rows:>4} rows: {plain:.0} ns a frame ({:.2} GB/s), with outcomes {told:.0}",
            bytes as f64 / plain
        );
    }
}

#[test]
#[ignore = "a benchmark"]
fn recording_what_a_sink_was_sent_costs_little() {
    let dir = temporary();
    let (_directory, mut writer, _) = open(dir.path(), options());
    let requests: Vec<_> = (0..4096).map(|_| writer.open("r").number()).collect();
    let (mut whole, mut rows) = (Vec::new(), Vec::new());
    let mut sequence = 0;
    for ns in 0..4000 {
        let frame = writer.append(b"", ns).unwrap().frame;
        let from = (ns as usize % 8) * 512;
        let content: Vec<_> = requests[from..from + 512].iter().map(|request| (*request, frame)).collect();
        for (sent, cost) in
            [(SinkContent::Whole(frame), &mut whole), (SinkContent::Rows((&content).into()), &mut rows)]
        {
            sequence += 1;
            let start = Clock::start();
            writer.sent("sink", sequence, sent, 0);
            writer.taken("sink", sequence - 1, FrameNo(frame.0.saturating_sub(64)), None, 0);
            cost.push(start.elapsed().as_nanos() as f64);
        }
        writer.outcome(&plain_outcome(frame, &[], &[]));
    }
    println!(
        "rows of 512 requests sent, a frame taken: {:.0} ns; a whole frame sent, those rows taken: {:.0} ns",
        median(rows),
        median(whole)
    );
}
