//! A failing disk: each `on_error` policy acts, reports and recovers. A limit on the file size of the process stands in for the disk.

use std::time::Duration;

use afterbay_sockets::credit::{CreditWriter, ReaderKind};
use afterbay_tests::commands::{journal, verify};
use afterbay_tests::sandbox::STREAM;
use afterbay_tests::sync_gate::SyncGate;
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, load};
use afterbay_wire::synth::SynthWire::{Msgpack, Pickle};

/// The size of the current segment.
fn segment_bytes(sandbox: &Sandbox) -> u64 {
    let files = std::fs::read_dir(sandbox.journal().join(STREAM)).unwrap();
    let sizes = files.map(|entry| entry.unwrap().metadata().unwrap().len());
    sizes.max().unwrap()
}

#[test]
fn on_error_stop_receives_nothing_while_the_disk_fails_and_recovers_afterwards() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run_limitable(&sandbox, &sandbox.config().journal("on_error = \"stop\""));
    let frames = load(20, 50, Msgpack);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    for (index, frame) in frames.iter().enumerate() {
        if index == 10 || index == 30 {
            afterbay.until_metrics("the earlier frames are taken", |metrics| {
                metrics.sink("taken_frame") == index as u64
            });
            // The limit lies within the next write, so that the write is cut.
            let partly = if index == 10 { 0 } else { segment_bytes(&sandbox) + 100 };
            afterbay.limit_files(Some(partly));
            sender.send(&frame.bytes);
            let conditions = afterbay.until_ready(503);
            assert!(conditions.contains("journal") && conditions.contains("File too large"), "{conditions}");
            let metrics = afterbay
                .until_metrics("the stream stops receiving", |metrics| metrics.stream("receiving") == 0);
            assert_eq!(metrics.stream("journal_failing"), 1);
            assert_eq!(
                reader.next_within(Duration::from_millis(150)),
                None,
                "an unpersisted frame was forwarded"
            );
            assert_eq!(afterbay.get("/healthz").status, 200);
            afterbay.limit_files(None);
        } else {
            sender.send(&frame.bytes);
        }
        assert_eq!(reader.frame(), frame.bytes, "frame {index}");
        if index == 10 || index == 30 {
            afterbay.until_healthy();
        }
    }
    let failed = afterbay.event("JournalWriteFailed");
    assert_eq!(failed["on_error"], "stop", "{failed}");
    assert_eq!(afterbay.event("JournalHealed")["skipped_frames"], 0);
    let metrics = afterbay.metrics();
    assert_eq!(metrics.stream("journal_frames_skipped_total"), 0);
    assert_eq!((metrics.stream("journal_failing"), metrics.stream("receiving")), (0, 1));
    assert_eq!(afterbay.stop(), 0);
    let (code, report) = verify(&sandbox);
    assert_eq!((code, &report["frames"]), (0, &frames.len().into()), "{report}");
    assert_eq!(report["tokens"], 20 * 50);
}

#[test]
fn on_error_stop_sends_no_frame_whose_record_cannot_be_written() {
    let sandbox = Sandbox::new();
    // The limit also stops the memory of a new connection, so the reader connects before.
    let mut reader = Reader::bind(&sandbox.reader_side());
    let mut credit = CreditWriter::open(&sandbox.credit(), ReaderKind::Detokenizer).unwrap();
    let config = sandbox.config().credit(&sandbox).journal("on_error = \"stop\"");
    let afterbay = Afterbay::run_limitable(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let frames = load(20, 50, Msgpack);
    frames.iter().for_each(|frame| sender.send(&frame.bytes));
    let all = frames.len() as u64;
    afterbay.until_metrics("every frame is persisted", |metrics| metrics.stream("journal_frame") == all);
    let mut received = 0;
    while let Some(frame) = reader.next_within(Duration::from_millis(150)) {
        assert_eq!(frame, frames[received].bytes, "frame {received}");
        received += 1;
    }
    assert!(received > 0 && received < frames.len(), "{received} frames without a count");
    afterbay.limit_files(Some(0));
    (0..received).for_each(|_| credit.finished().unwrap());
    let conditions = afterbay.until_ready(503);
    assert!(conditions.contains("nothing is received or sent that cannot be recorded"), "{conditions}");
    assert_eq!(reader.next_within(Duration::from_millis(150)), None, "a frame was sent without its record");
    afterbay.limit_files(None);
    for frame in &frames[received..] {
        assert_eq!(reader.frame(), frame.bytes);
        credit.finished().unwrap();
    }
    afterbay.until_healthy();
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
}

#[test]
fn a_failing_disk_stops_the_scheduler_and_every_frame_is_delivered_afterwards() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run_limitable(&sandbox, &sandbox.config());
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    afterbay.limit_files(Some(0));
    let frames: Vec<Vec<u8>> = (0..60_u8).map(|number| vec![number; 100_000]).collect();
    let sends = std::thread::spawn({
        let frames = frames.clone();
        move || {
            frames.iter().for_each(|frame| sender.send(frame));
            sender
        }
    });
    afterbay.event("ReceivePaused");
    // The kernel's buffer and Afterbay hold some frames; the scheduler holds the rest.
    assert!(!sends.is_finished());
    assert_eq!(afterbay.metrics().stream("frames_received_total"), 1);
    afterbay.limit_files(None);
    for frame in &frames {
        assert!(reader.frame() == *frame);
    }
    sends.join().unwrap();
    assert_eq!(afterbay.stop(), 0);
    let (code, report) = verify(&sandbox);
    assert_eq!((code, &report["frames"]), (0, &60.into()), "{report}");
}

#[test]
fn on_error_forward_passes_unpersisted_frames_and_verify_names_them() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run_limitable(&sandbox, &sandbox.config().journal("on_error = \"forward\""));
    let frames = load(20, 50, Pickle);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    for (index, frame) in frames.iter().enumerate() {
        match index {
            10 => afterbay.limit_files(Some(0)),
            25 => {
                afterbay.until_degraded("journal:test");
                assert_eq!(afterbay.metrics().stream("journal_failing"), 1);
                afterbay.limit_files(None);
            }
            _ => {}
        }
        sender.send(&frame.bytes);
        assert_eq!(reader.frame(), frame.bytes, "frame {index}");
    }
    afterbay.until_healthy();
    let healed = afterbay.event("JournalHealed");
    assert_eq!(healed["skipped_frames"], 15, "{healed}");
    let metrics = afterbay.metrics();
    assert_eq!(metrics.stream("journal_frames_skipped_total"), 15);
    assert_eq!((metrics.stream("tokens_received_total"), metrics.stream("request_gaps_total")), (1000, 0));
    assert_eq!(afterbay.stop(), 0);
    let (code, report) = verify(&sandbox);
    assert_eq!((code, &report["frames"]), (0, &(frames.len() - 15).into()), "{report}");
    let notes = report["notes"].to_string();
    assert!(notes.contains("15 frames from 11 on"), "{notes}");
    let listed = journal(&sandbox, &["ls", "--json"]).json_lines();
    assert!(listed.iter().all(|request| request["tokens_received"] == 50), "{listed:?}");
}

#[test]
fn sync_always_forwards_only_what_is_durable() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let gate = SyncGate::new(&sandbox);
    let afterbay = Afterbay::run_gated(&sandbox, &sandbox.config().journal("sync = \"always\""), &gate);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let frames = load(10, 12, Msgpack);
    for (index, frame) in (1..).zip(&frames) {
        if index % 3 == 0 {
            gate.hold();
        }
        sender.send(&frame.bytes);
        if index % 3 == 0 {
            afterbay
                .until_metrics("the frame is persisted", |metrics| metrics.stream("journal_frame") == index);
            let early = reader.next_within(Duration::from_millis(50));
            assert_eq!(early, None, "frame {index} was forwarded and is not durable");
            gate.open();
        }
        assert_eq!(reader.frame(), frame.bytes, "frame {index}");
    }
    let last = frames.len() as u64;
    afterbay
        .until_metrics("every frame is durable", |metrics| metrics.stream("journal_durable_frame") == last);
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
}

#[test]
fn a_hanging_sync_delays_nothing_unless_sync_is_always() {
    for policy in ["none", "interval"] {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let gate = SyncGate::new(&sandbox);
        let config = sandbox.config().journal(&format!("sync = {policy:?}"));
        let afterbay = Afterbay::run_gated(&sandbox, &config, &gate);
        gate.hold();
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        for frame in load(10, 30, Msgpack) {
            sender.send(&frame.bytes);
            assert_eq!(reader.frame(), frame.bytes);
            // Longer than the sync interval, so that a sync has begun and hangs.
            std::thread::sleep(Duration::from_millis(3));
        }
        gate.open();
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
    }
}

#[test]
fn a_failing_sync_is_reported_and_recovers_with_every_frame_persisted() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let gate = SyncGate::new(&sandbox);
    let afterbay = Afterbay::run_gated(&sandbox, &sandbox.config().journal("sync = \"always\""), &gate);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let frames = load(10, 10, Msgpack);
    for (index, frame) in (1..).zip(&frames) {
        if index == 4 {
            gate.fail();
        }
        sender.send(&frame.bytes);
        if index == 4 {
            let failed = afterbay.event("JournalSyncFailed");
            assert_eq!(failed["durable_frame"], 3, "{failed}");
            let conditions = afterbay.until_ready(503);
            assert!(conditions.contains("journal"), "{conditions}");
            assert_eq!(reader.next_within(Duration::from_millis(50)), None, "the frame is not durable");
            gate.open();
        }
        assert_eq!(reader.frame(), frame.bytes, "frame {index}");
    }
    afterbay.until_healthy();
    assert_eq!(afterbay.stop(), 0);
    let (code, report) = verify(&sandbox);
    assert_eq!((code, &report["frames"]), (0, &frames.len().into()), "{report}");
}

#[test]
fn a_burst_under_sync_always_comes_out_whole_and_in_order() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &sandbox.config().journal("sync = \"always\""));
    let frames = load(100, 100, Msgpack);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    frames.iter().for_each(|frame| sender.send(&frame.bytes));
    for frame in &frames {
        assert_eq!(reader.frame(), frame.bytes);
    }
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).1["frames"], frames.len());
}
