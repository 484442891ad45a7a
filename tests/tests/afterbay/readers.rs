//! A reader that is absent, slow, killed or restarted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use afterbay_sockets::credit::{CreditWriter, ReaderKind};
use afterbay_tests::commands::verify;
use afterbay_tests::frames::{WIRES, ids, rows};
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, load, until};
use afterbay_wire::synth::SynthWire::Msgpack;
use serde_json::Value;

fn numbered(number: u32, bytes: usize) -> Vec<u8> {
    let mut frame = vec![b'.'; bytes];
    frame[..4].copy_from_slice(&number.to_be_bytes());
    frame
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[..4].try_into().unwrap())
}

#[test]
fn a_reader_that_is_absent_at_the_start_gets_every_frame() {
    let sandbox = Sandbox::new();
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let condition = afterbay.until_degraded("sink:test/reader");
    assert!(condition.contains("no reader") && condition.contains(&sandbox.reader_side()), "{condition}");
    let frames = load(20, 30, Msgpack);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    frames.iter().for_each(|frame| sender.send(&frame.bytes));
    drop(sender);
    afterbay.until_metrics("every frame is received", |metrics| {
        metrics.stream("frames_received_total") == frames.len() as u64
    });
    let mut reader = Reader::bind(&sandbox.reader_side());
    for frame in &frames {
        assert_eq!(reader.frame(), frame.bytes);
    }
    afterbay.until_healthy();
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
}

#[test]
fn a_reader_that_finished_every_frame_and_restarts_gets_only_new_frames() {
    let sandbox = Sandbox::new();
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut next = 0;
    for _ in 0..5 {
        let mut reader = Reader::bind(&sandbox.reader_side());
        for _ in 0..10 {
            sender.send(&numbered(next, 100));
            assert_eq!(number(&reader.frame()), next);
            next += 1;
        }
        drop(reader);
        // The next frames wait.
        until("the loss is seen", || afterbay.metrics().sink("connected") == 0);
    }
    let metrics = afterbay.metrics();
    assert_eq!(metrics.events("SinkConnected"), 5);
    assert_eq!((metrics.sink("frames_resent_total"), metrics.sink("frames_unconfirmed_total")), (0, 0));
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn frames_that_a_dead_reader_without_credit_may_lack_are_reported_as_unconfirmed() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    reader.wait_connected();
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    const SENT: u32 = 100;
    (0..SENT).for_each(|number| sender.send(&numbered(number, 20_000)));
    let mut received: Vec<u32> = (0..3).map(|_| number(&reader.frame())).collect();
    // The kernel's buffer is full of frames that the reader will not read.
    afterbay.until_metrics("the other frames wait", |metrics| {
        metrics.stream("frames_received_total") == u64::from(SENT) && metrics.stream("outbox_frames") > 3
    });
    drop(reader);
    let mut reader = Reader::bind(&sandbox.reader_side());
    while received.last() != Some(&(SENT - 1)) {
        received.push(number(&reader.frame()));
    }
    let lost = afterbay.event("SinkLost");
    let settled = afterbay.event("SinkSettled");
    let unconfirmed = afterbay.metrics().sink("frames_unconfirmed_total");
    assert_eq!(settled["unconfirmed_frames"], unconfirmed, "{lost} {settled}");
    assert!(received.is_sorted_by(|one, next| one < next), "repeated or out of order: {received:?}");
    let missing = u64::from(SENT) - received.len() as u64;
    assert!(missing > 0 && missing <= unconfirmed, "{missing} are missing, {unconfirmed} are reported");
    assert_eq!(afterbay.stop(), 0);
    // The journal has every frame.
    assert_eq!(verify(&sandbox).1["frames"], SENT);
}

#[test]
fn a_reader_that_pauses_around_a_kill_gets_no_token_twice() {
    let sandbox = Sandbox::new();
    let (mut reader, mut credit, config) = sandbox.counting_tokenizer();
    let afterbay = Afterbay::run(&sandbox, &config);
    afterbay.event("CreditSeen");
    reader.wait_connected();
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let frames = load(4, 8, Msgpack);
    frames.iter().for_each(|frame| sender.send(&frame.bytes));
    afterbay.until_metrics("the reader has frames", |metrics| {
        metrics.sink("lag_frames") > 0 && metrics.stream("frames_received_total") == frames.len() as u64
    });
    afterbay.kill();
    // Longer than a start waits for the reader's count to move (5 s).
    let reads = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(7));
        let mut received = Vec::new();
        while let Some(frame) = reader.next_within(Duration::from_secs(1)) {
            credit.finished().unwrap();
            received.push(frame);
        }
        received
    });
    let afterbay = Afterbay::run(&sandbox, &config);
    assert!(afterbay.event("SinkResuming")["frames"].as_u64() > Some(0));
    let received = reads.join().unwrap();
    let received = ids(&received);
    assert_eq!(received, ids(frames.iter().map(|frame| &frame.bytes)), "{}", afterbay.log());
    assert_eq!(afterbay.metrics().sink("frames_unconfirmed_total"), 0);
    assert_eq!(afterbay.stop(), 0);
}

/// Sends frames of 500 kB on a thread. Returns the counter of sent frames and the thread.
fn send_many(sandbox: &Sandbox, frames: u32) -> (Arc<AtomicU32>, std::thread::JoinHandle<()>) {
    let sent = Arc::new(AtomicU32::new(0));
    let mut socket = Sender::connect(&sandbox.scheduler_side());
    let counter = sent.clone();
    let sends = std::thread::spawn(move || {
        for number in 0..frames {
            socket.send(&numbered(number, MANY_BYTES));
            counter.store(number + 1, Ordering::SeqCst);
        }
    });
    (sent, sends)
}

const MANY_BYTES: usize = 500_000;

fn take_many(sandbox: &Sandbox, frames: u32) {
    let mut reader = Reader::bind(&sandbox.reader_side());
    for expected in 0..frames {
        let frame = reader.frame();
        assert_eq!((number(&frame), frame.len()), (expected, MANY_BYTES));
    }
}

#[test]
fn frames_past_the_memory_bound_wait_in_the_journal_and_are_sent_in_order() {
    const FRAMES: u32 = 400;
    let sandbox = Sandbox::new();
    let afterbay =
        Afterbay::run(&sandbox, &sandbox.config().sink("queue = { frames = 1000, bytes = \"4MiB\" }"));
    let before = afterbay.resident_bytes();
    let (_, sends) = send_many(&sandbox, FRAMES);
    // Without a reader the scheduler is not blocked.
    sends.join().unwrap();
    let metrics = afterbay.until_metrics("every frame is received", |metrics| {
        metrics.stream("frames_received_total") == u64::from(FRAMES)
    });
    // 4 MiB in the outbox and 16 MiB before the outbox.
    let spilled = metrics.stream("spilled_frames");
    assert!(spilled >= u64::from(FRAMES) - 45, "{spilled} frames wait in the journal");
    assert_eq!(metrics.stream("spilled_bytes"), spilled * MANY_BYTES as u64);
    assert!(metrics.stream("outbox_bytes") <= (4 << 20) + MANY_BYTES as u64);
    assert_eq!(metrics.stream("receiving"), 1);
    let more = afterbay.resident_bytes().saturating_sub(before);
    assert!(
        more < 64 << 20,
        "{} MiB more for {} MiB that wait",
        more >> 20,
        (FRAMES as usize * MANY_BYTES) >> 20
    );
    take_many(&sandbox, FRAMES);
    afterbay.until_metrics("no row waits", |metrics| {
        metrics.sink("taken_frame") == u64::from(FRAMES) && metrics.stream("spilled_frames") == 0
    });
    // The gauge follows the count.
    afterbay.until_metrics("every frame is counted", |metrics| {
        metrics.stream("frames_forwarded_total") == u64::from(FRAMES)
    });
    assert_eq!(afterbay.stop(), 0);
    let (code, report) = verify(&sandbox);
    assert_eq!((code, &report["frames"]), (0, &FRAMES.into()));
}

#[test]
fn a_journal_at_its_bound_stops_receiving_and_blocks_the_scheduler() {
    const FRAMES: u32 = 200;
    let sandbox = Sandbox::new();
    let config = sandbox.config().sink("queue = { frames = 1000, bytes = \"4MiB\" }");
    let config = config.journal("segment = \"1MiB\"").journal("retain = { bytes = \"8MiB\" }");
    let afterbay = Afterbay::run(&sandbox, &config);
    let (sent, sends) = send_many(&sandbox, FRAMES);
    let paused = afterbay.event("ReceivePaused");
    assert!(paused["why"].as_str().unwrap().contains("reached journal.retain.bytes"), "{paused}");
    afterbay.until_metrics("the stream stops receiving", |metrics| metrics.stream("receiving") == 0);
    let held = sent.load(Ordering::SeqCst);
    // 4 MiB in the outbox, 8 MiB in the journal, and less than one frame in the kernel.
    assert!((24..40).contains(&held), "{held} frames were taken");
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(sent.load(Ordering::SeqCst), held, "the scheduler is not blocked");
    take_many(&sandbox, FRAMES);
    sends.join().unwrap();
    afterbay.event("ReceiveResumed");
    afterbay.until_metrics("the stream receives", |metrics| metrics.stream("receiving") == 1);
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn without_credit_rows_are_joined_once_a_quarter_of_the_kernels_buffer_is_unread() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay =
        Afterbay::run(&sandbox, &sandbox.config().sink("reader = \"tokenizer\"\ntool_calls = \"joined\""));
    reader.wait_connected();
    afterbay.until_metrics("the reader is connected", |metrics| metrics.sink("connected") == 1);
    let frames = load(200, 40, Msgpack);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    for (frame, number) in frames.iter().zip(1..) {
        // One frame at a time, so that each finds the buffer as the earlier ones left it.
        sender.send(&frame.bytes);
        afterbay.until_metrics("the frame is received", |metrics| {
            metrics.stream("frames_received_total") == number
        });
    }
    let metrics = afterbay.metrics();
    // Each frame has 15 KB. The kernel would take 180 KB. Once a quarter of its buffer (52 KB) is unread, the rest waits.
    let (given, bytes) = (metrics.sink("frames_written_total"), metrics.sink("bytes_written_total"));
    assert!(bytes > 0 && bytes < 100_000, "{bytes} bytes of {given} frames were given");
    assert!(metrics.stream("outbox_frames") > 0);
    let mut received: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    let mut got = 0;
    while received.values().map(Vec::len).sum::<usize>() < 200 * 40 {
        got += 1;
        for row in rows(&reader.frame()) {
            let ids = received.entry(row.rid).or_default();
            ids.extend(row.ids);
            assert_eq!(ids.len() as u64, row.completion_tokens);
        }
    }
    assert_eq!(got, given + 1, "the waiting rows are in one frame");
    assert_eq!(received, ids(frames.iter().map(|frame| &frame.bytes)));
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_slow_reader_with_credit_gets_two_frames_ahead_and_the_rest_joined() {
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let (mut reader, mut credit, config) = sandbox.counting_tokenizer();
        let afterbay = Afterbay::run(&sandbox, &config);
        let frames = load(10, 10, wire);
        let count = frames.len() as u64;
        afterbay.event("CreditSeen");
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        // One frame at a time, because rows that wait for the handshake would be joined.
        let given = [0, 1].map(|frame| {
            sender.send(&frames[frame].bytes);
            reader.frame()
        });
        frames[2..].iter().for_each(|frame| sender.send(&frame.bytes));
        let metrics = afterbay.until_metrics("the reader has two frames and the others wait", |metrics| {
            metrics.sink("lag_frames") == 2 && metrics.stream("outbox_frames") == count - 2
        });
        assert_eq!((metrics.sink("credit_usable"), metrics.sink("taken_frame")), (1, 0));

        let mut received: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        assert_eq!(
            given,
            [&frames[0].bytes[..], &frames[1].bytes[..]],
            "frames that did not wait are unchanged"
        );
        let mut given = given.into_iter();
        let mut got = 0;
        while received.values().map(Vec::len).sum::<usize>() < 100 {
            let frame = given.next().unwrap_or_else(|| reader.frame());
            got += 1;
            for row in rows(&frame) {
                let ids = received.entry(row.rid).or_default();
                ids.extend(row.ids);
                assert_eq!(ids.len() as u64, row.completion_tokens);
            }
            credit.finished().unwrap();
        }
        assert_eq!(received, ids(frames.iter().map(|frame| &frame.bytes)));
        assert_eq!(got, 3, "two unchanged frames and one with all waiting rows");
        let metrics =
            afterbay.until_metrics("every frame is finished", |metrics| metrics.sink("taken_frame") == count);
        let joined = (metrics.sink("frames_composed_total"), metrics.sink("rows_joined_total"));
        assert_eq!(joined, (1, 10 * (count - 2) - 10));
        assert_eq!((metrics.sink("lag_bytes"), metrics.sink("frames_finished_total")), (0, 3));
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
    }
}

#[test]
fn a_change_of_a_readers_state_is_reported() {
    let sandbox = Sandbox::new();
    let (mut reader, mut credit, config) = sandbox.counting_tokenizer();
    let afterbay = Afterbay::run(&sandbox, &config);
    afterbay.event("CreditSeen");
    let frames = load(10, 10, Msgpack);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    for frame in &frames[..2] {
        sender.send(&frame.bytes);
        reader.frame();
    }
    frames[2..].iter().for_each(|frame| sender.send(&frame.bytes));
    let is = |state: &'static str| move |event: &Value| event["state"] == state;
    let behind = afterbay.event_where("SinkState", is("behind"));
    assert_eq!(behind["rows"], 10 * (frames.len() - 2), "{behind}");
    let signals: Value = serde_json::from_str(&afterbay.get("/v1/status").body).unwrap();
    let sink = &signals["streams"][0]["sinks"][0];
    let tokens =
        frames[2..].iter().flat_map(|frame| rows(&frame.bytes)).map(|row| row.ids.len()).sum::<usize>();
    assert_eq!((&sink["waiting_rows"], &sink["waiting_tokens"]), (&behind["rows"], &tokens.into()), "{sink}");
    assert_eq!(sink["state"], "behind");
    afterbay.event_where("SinkState", is("stalled"));
    (0..2).for_each(|_| credit.finished().unwrap());
    reader.frame();
    credit.finished().unwrap();
    afterbay.event_where("SinkState", is("keeping_up"));
    afterbay.until_metrics("the reader keeps up", |metrics| {
        let state = metrics.sink_by("state", "state", "keeping_up");
        (state, metrics.sink("waiting_rows"), metrics.sink("waiting_oldest_seconds")) == (1, 0, 0)
    });
    drop(reader);
    afterbay.event_where("SinkState", is("away"));
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_reader_that_leaves_with_the_scheduler_and_without_pending_frames_is_no_warning() {
    let level = |event: &Value| event["level"].as_str().unwrap().to_owned();
    let away = |event: &Value| event["state"] == "away";
    // Reader and scheduler leave in either order.
    for reader_first in [false, true] {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let afterbay = Afterbay::run(&sandbox, &sandbox.config());
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        sender.send(b"all there is");
        reader.frame();
        if reader_first {
            drop(reader);
            drop(sender);
        } else {
            drop(sender);
            afterbay.event("SenderClosed");
            drop(reader);
        }
        assert_eq!(level(&afterbay.event("SinkLost")), "INFO");
        assert_eq!(level(&afterbay.event_where("SinkState", away)), "INFO");
        // A frame that arrives without a reader makes the state a warning.
        Sender::connect(&sandbox.scheduler_side()).send(b"more");
        afterbay.event_where("SinkState", |event| away(event) && level(event) == "WARN");
        assert_eq!(afterbay.events("SinkLost").len(), 1);
        afterbay.kill();
    }
}

#[test]
fn a_reader_that_leaves_a_scheduler_or_frames_behind_is_a_warning() {
    for leaves_frames in [false, true] {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let mut credit = CreditWriter::open(&sandbox.credit(), ReaderKind::Detokenizer).unwrap();
        let afterbay = Afterbay::run(&sandbox, &sandbox.config().credit(&sandbox));
        afterbay.event("CreditSeen");
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        sender.send(&load(1, 2, Msgpack)[0].bytes);
        reader.frame();
        afterbay.until_metrics("the state of the connected reader is measured", |metrics| {
            metrics.sink("connected") == 1 && metrics.sink_by("state", "state", "keeping_up") == 1
        });
        if leaves_frames {
            // The frame is read but not finished.
            drop(sender);
            afterbay.event("SenderClosed");
        } else {
            credit.finished().unwrap();
            afterbay.until_metrics("the frame is finished", |metrics| metrics.sink("lag_frames") == 0);
        }
        drop(reader);
        assert_eq!(afterbay.event("SinkLost")["level"], "WARN");
        afterbay.event_where("SinkState", |event| event["state"] == "away" && event["level"] == "WARN");
        afterbay.kill();
    }
}
