//! Runs a scheduler and a reader over real sockets, with nothing between them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use afterbay_sim::Stop;
use afterbay_sim::check::Reading;
use afterbay_sim::compare::Comparison;
use afterbay_sim::frames::Encoding;
use afterbay_sim::load::{Arrivals, Endings, Lengths, Load};
use afterbay_sim::reader::{self, ReaderReport};
use afterbay_sim::scheduler::{self, SchedulerReport};
use afterbay_wire::BatchKind;
use afterbay_wire::synth::SynthWire;

const MSGPACK: Encoding = Encoding { kind: BatchKind::TokenId, wire: SynthWire::Msgpack };

/// The longest wait for a condition, on a machine with much else to do.
const PATIENCE: Duration = Duration::from_secs(60);

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "did not happen in {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A load with some of everything.
fn mixed() -> Load {
    Load {
        lengths: Lengths { low: 1, high: 60 },
        endings: Endings::MIXED,
        max_running: 64,
        tokens_per_step: 2,
        health_every: Some(7),
        idle_every: Some(11),
        control_every: Some(13),
        ..Load::new(300, 1)
    }
}

/// Runs both ends.
fn run(sender: scheduler::Options, reader: reader::Options) -> (SchedulerReport, ReaderReport) {
    let socket = reader.bind.strip_prefix("ipc://").map(PathBuf::from);
    let reading = thread::spawn(move || reader::run(reader, &Stop::new(), &mut |_| {}).unwrap());
    until("the reader has bound", || socket.as_ref().is_none_or(|socket| socket.exists()));
    let sent = scheduler::run(sender, &Stop::new(), &mut |_| {}).unwrap();
    until("the reader ends", || reading.is_finished());
    (sent, reading.join().unwrap())
}

fn ipc(dir: &Path) -> String {
    format!("ipc://{}", dir.join("reader").display())
}

/// A reader that ends after this many requests and some time to linger.
fn reader(dir: &Path, requests: u64) -> reader::Options {
    let mut options = reader::Options::new(ipc(dir));
    options.until.requests = Some(requests);
    options.until.linger = Duration::from_millis(100);
    options
}

/// Runs a reader whose inbox takes all frames while it handles the first ones.
fn slow(dir: &Path, reading: Reading) -> (SchedulerReport, ReaderReport) {
    let mut reader = reader(dir, 20);
    (reader.is_unbounded, reader.reading) = (true, reading);
    reader.cost_per_row = Duration::from_millis(5);
    run(scheduler::Options::new(ipc(dir), Load::new(20, 30), MSGPACK), reader)
}

#[test]
fn an_unbounded_inbox_takes_all_frames_of_a_slow_reader() {
    let dir = tempfile::tempdir().unwrap();
    let (_, received) = slow(dir.path(), Reading::Deltas);
    assert!(received.is_whole(), "{received:?}");
    assert!(received.backlog.frames > 8, "{received:?}");
    assert_eq!(received.backlog.rows, 20 * received.backlog.frames);
}

#[test]
fn an_overwriting_reader_loses_tokens_of_chunks_that_it_finds_together() {
    let dir = tempfile::tempdir().unwrap();
    let (sent, received) = slow(dir.path(), Reading::Overwriting);
    assert!(received.overwritten_rows > 0, "{received:?}");
    assert_eq!(received.faults.lost_tokens, received.overwritten_rows, "a token a chunk");
    assert_eq!(received.record.tokens + received.faults.lost_tokens, sent.record.tokens);
    assert_eq!((received.record.requests, received.open), (20, 0));
}

#[test]
fn all_frames_arrive_exactly_in_every_encoding() {
    for kind in [BatchKind::TokenId, BatchKind::Str] {
        for wire in [SynthWire::Msgpack, SynthWire::Pickle] {
            let dir = tempfile::tempdir().unwrap();
            let encoding = Encoding { kind, wire };
            let (sent, received) =
                run(scheduler::Options::new(ipc(dir.path()), mixed(), encoding), reader(dir.path(), 300));
            assert!(received.is_whole() && !received.stopped, "{kind} {wire:?}: {received:?}");
            let comparison = Comparison::of(&sent.record, &received.record);
            assert!(comparison.is_exact() && comparison.same_frames, "{kind} {wire:?}: {comparison:?}");
            assert_eq!((comparison.whole, sent.undelivered, sent.broken), (300, 0, 0));
            assert_eq!(comparison.first_token.unwrap().count, 300);
            assert!(!dir.path().join("reader").exists(), "the socket's name is removed");
        }
    }
}

#[test]
fn all_frames_arrive_exactly_over_tcp() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let endpoint = format!("tcp://127.0.0.1:{port}");
    let dir = tempfile::tempdir().unwrap();
    let options = reader::Options { bind: endpoint.clone(), ..reader(dir.path(), 300) };
    let (sent, received) = run(scheduler::Options::new(endpoint, mixed(), MSGPACK), options);
    assert!(Comparison::of(&sent.record, &received.record).is_exact(), "{received:?}");
}

#[test]
fn a_slow_reader_blocks_the_scheduler_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = reader(dir.path(), 64);
    options.cost_per_row = Duration::from_micros(20);
    let load = Load { tokens_per_step: 16, ..Load::new(64, 16 * 400) };
    let (sent, received) = run(scheduler::Options::new(ipc(dir.path()), load, MSGPACK), options);
    assert!(Comparison::of(&sent.record, &received.record).is_exact());
    let cost = Duration::from_micros(20) * 64 * 400;
    assert!(received.elapsed >= cost * 9 / 10, "{:?} is less than the rows cost, {cost:?}", received.elapsed);
    assert!(sent.blocked > Duration::ZERO, "16 MB exceed the kernel's buffers and the bound in flight");
}

#[test]
fn steps_keep_their_pace() {
    let dir = tempfile::tempdir().unwrap();
    let load = Load { arrivals: Arrivals::Rate(1000.0), ..Load::new(50, 20) };
    let mut sender = scheduler::Options::new(ipc(dir.path()), load, MSGPACK);
    sender.steps_per_second = 200.0;
    let (sent, received) = run(sender, reader(dir.path(), 50));
    assert!(received.is_whole());
    let least = Duration::from_millis(5) * (sent.steps as u32 - 1);
    assert!(sent.elapsed >= least, "{} steps at 200 a second took {:?}", sent.steps, sent.elapsed);
}

#[test]
fn a_stopped_scheduler_aborts_its_requests_and_the_reader_sees_their_ends() {
    let dir = tempfile::tempdir().unwrap();
    let stop = Stop::new();
    let scheduler_stop = stop.clone();
    let options = reader(dir.path(), 1000);
    let reading = thread::spawn(move || reader::run(options, &Stop::new(), &mut |_| {}).unwrap());
    let mut sender = scheduler::Options::new(ipc(dir.path()), Load::new(1000, 1_000_000), MSGPACK);
    sender.steps_per_second = 100.0;
    let seen = Arc::new(AtomicU64::new(0));
    let sees = seen.clone();
    let sending = thread::spawn(move || {
        scheduler::run(sender, &scheduler_stop, &mut |progress| {
            sees.fetch_max(progress.frames, Ordering::SeqCst);
        })
    });
    until("frames are sent", || seen.load(Ordering::SeqCst) > 0);
    stop.stop();
    let sent = sending.join().unwrap().unwrap();
    let seen = seen.load(Ordering::SeqCst);
    assert!(sent.stopped && sent.undelivered == 0 && seen == sent.record.frames, "{sent:?}");
    until("all 1,000 requests have ended, by an abort", || reading.is_finished());
    let received = reading.join().unwrap();
    assert!(received.is_whole(), "{received:?}");
    assert!(Comparison::of(&sent.record, &received.record).is_exact());
}

#[test]
fn a_scheduler_without_a_listener_fails() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = scheduler::Options::new(ipc(dir.path()), mixed(), MSGPACK);
    options.connect_timeout = Duration::from_millis(200);
    let error = scheduler::run(options, &Stop::new(), &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("nobody listens there"), "{error}");
}

#[test]
fn a_scheduler_ends_with_its_report_if_the_reader_disappears_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let (options, stop) = (reader(dir.path(), 2), Stop::new());
    let reading = thread::spawn(move || {
        let stopping = stop.clone();
        reader::run(options, &stop, &mut |progress| {
            if progress.frames >= 50 {
                stopping.stop();
            }
        })
    });
    let mut sender = scheduler::Options::new(ipc(dir.path()), Load::new(2, 1000), MSGPACK);
    sender.steps_per_second = 500.0;
    let sending = thread::spawn(move || {
        // The reader binds first, and leaves long before this ends.
        sender.connect_timeout = Duration::from_secs(1);
        scheduler::run(sender, &Stop::new(), &mut |_| {})
    });
    until("the reader ends", || reading.is_finished());
    let received = reading.join().unwrap().unwrap();
    let sent = sending.join().unwrap().unwrap();
    assert!((50..1000).contains(&received.record.frames), "{received:?}");
    assert!(sent.broken == 1 && !sent.stopped, "{sent:?}");
    assert!(sent.undelivered > 0 && sent.record.frames + sent.undelivered == 1000, "{sent:?}");
}
