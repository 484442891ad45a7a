//! Every frame is forwarded byte for byte, in order, and is journaled and counted.

use afterbay_sim::load::{Endings, Load};
use afterbay_tests::commands::{journal, verify};
use afterbay_tests::frames::{SynthRequest, WIRES, batch, frames_of};
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, fixtures};

#[test]
fn every_frame_of_the_real_sglang_is_forwarded_and_exported_byte_for_byte_in_order() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let fixtures = fixtures();
    assert!(fixtures.len() > 380, "only {} fixtures", fixtures.len());
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    for (_, frame) in &fixtures {
        sender.send(frame);
    }
    for (name, frame) in &fixtures {
        assert_eq!(reader.frame(), *frame, "{name}");
    }
    let metrics = afterbay.until_metrics("every frame is counted", |metrics| {
        metrics.stream("frames_forwarded_total") == fixtures.len() as u64
    });
    let bytes = fixtures.iter().map(|(_, frame)| frame.len() as u64).sum::<u64>();
    assert_eq!(metrics.stream("frames_received_total"), fixtures.len() as u64);
    assert_eq!(metrics.stream("bytes_received_total"), bytes);
    assert_eq!(metrics.stream("frames_rewritten_total"), 0);
    assert_eq!(metrics.barriers("not_understood"), 0);
    assert!(metrics.barriers("control") > 40 && metrics.barriers("idle") > 20);
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(reader.rest().len(), 0, "a frame was repeated");

    let raw = sandbox.path("raw");
    journal(&sandbox, &["export", "--raw", raw.to_str().unwrap()]).success();
    let mut kept: Vec<_> = std::fs::read_dir(&raw).unwrap().map(|entry| entry.unwrap().path()).collect();
    kept.sort();
    assert_eq!(kept.len(), fixtures.len());
    for (path, (name, frame)) in kept.iter().zip(&fixtures) {
        assert_eq!(std::fs::read(path).unwrap(), *frame, "{name}");
    }
}

#[test]
fn the_metrics_equal_the_sent_load() {
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let afterbay = Afterbay::run(&sandbox, &sandbox.config());
        let mut load = Load::new(40, 25);
        load.endings = Endings::MIXED;
        (load.idle_every, load.control_every, load.health_every) = (Some(5), Some(7), Some(6));
        let frames = frames_of(&load, wire);
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        frames.iter().for_each(|frame| sender.send(&frame.bytes));
        for frame in &frames {
            assert_eq!(reader.frame(), frame.bytes, "{wire:?}");
        }
        let count = frames.len() as u64;
        let metrics =
            afterbay.until_metrics("every frame is taken", |metrics| metrics.sink("taken_frame") == count);
        let health = |frame: &afterbay_sim::frames::Frame| match frame.kind {
            afterbay_sim::frames::FrameKind::Batch { health_checks } => u64::from(health_checks),
            _ => 0,
        };
        let health = frames.iter().map(health).sum::<u64>();
        // A health check is a request with one row of one token.
        let rows = frames.iter().map(|frame| u64::from(frame.rows)).sum::<u64>() + health;
        let tokens = frames.iter().map(|frame| frame.tokens).sum::<u64>() + health;
        for (name, expected) in [
            ("frames_received_total", count),
            ("frames_forwarded_total", count),
            ("frames_rewritten_total", 0),
            ("rows_received_total", rows),
            ("rows_forwarded_total", rows),
            ("tokens_received_total", tokens),
            ("tokens_forwarded_total", tokens),
            ("rows_dropped_total", 0),
            ("rows_swallowed_total", 0),
            ("requests_opened_total", 40 + health),
            ("requests_live", 0),
            ("request_gaps_total", 0),
            ("request_imbalances_total", 0),
            ("senders", 1),
            ("receiving", 1),
            ("outbox_frames", 0),
            ("journal_frame", count),
            ("journal_frames_skipped_total", 0),
            ("journal_failing", 0),
            ("frame_seconds_count", count),
            ("first_token_seconds_count", 40 + health),
        ] {
            assert_eq!(metrics.stream(name), expected, "{name}, {wire:?}");
        }
        assert_eq!(metrics.requests_ended(), 40 + health, "{wire:?}");
        for (name, expected) in [
            ("connected", 1),
            ("frames_written_total", count),
            ("queue_frames", 0),
            ("frames_resent_total", 0),
        ] {
            assert_eq!(metrics.sink(name), expected, "sink {name}, {wire:?}");
        }
        assert_eq!(metrics.events("SinkConnected"), 1, "{wire:?}");
        assert_eq!(metrics.sink("row_wait_seconds_count"), metrics.sink("rows_sent_total"));
        assert_eq!(afterbay.get("/healthz").status, 200);
        assert_eq!(afterbay.get("/readyz").status, 200);
        assert_eq!(afterbay.stop(), 0);
        let (code, report) = verify(&sandbox);
        assert_eq!((code, &report["clean"]), (0, &true.into()), "{report}");
        let figures = ["frames", "requests", "rows", "tokens"].map(|name| report[name].as_u64().unwrap());
        assert_eq!(figures, [count, 40 + health, rows, tokens], "{wire:?}");
    }
}

#[test]
fn unknown_frames_pass_in_their_place_and_are_counted_and_journaled() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let mut request = SynthRequest::new("r");
    let [msgpack, pickle] = WIRES;
    let whole = batch(msgpack, vec![request.row(&[1, 2])]);
    let frames: Vec<Vec<u8>> = vec![
        whole.to_vec(),
        whole[..whole.len() - 3].to_vec(),
        b"no message of SGLang's".to_vec(),
        Vec::new(),
        batch(pickle, vec![request.row(&[3])]).to_vec(),
        // An unknown message type in both encodings.
        [&[0x91, 0xb3][..], b"OutputOfTheYear3000"].concat(),
        b"\x80\x05\x95\x1e\0\0\0\0\0\0\0\x8c\x04mill\x94\x8c\x0eOutputOfMillet\x94\x93\x94)\x81\x94."
            .to_vec(),
        [&[0xdd, 0xff, 0xff, 0xff, 0xff][..], &[0; 40]].concat(),
        batch(msgpack, vec![request.last(&[4])]).to_vec(),
    ];
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    frames.iter().for_each(|frame| sender.send(frame));
    for (index, frame) in frames.iter().enumerate() {
        assert_eq!(reader.frame(), *frame, "frame {index}");
    }
    let event = afterbay.event("FrameNotUnderstood");
    assert_eq!(event["frame"], 2, "{event}");
    let metrics =
        afterbay.until_metrics("every frame is counted", |metrics| metrics.sink("taken_frame") == 9);
    assert_eq!((metrics.barriers("not_understood"), metrics.barriers("control")), (4, 2));
    assert_eq!(metrics.events("FrameNotUnderstood"), 4);
    assert_eq!(metrics.stream("tokens_received_total"), 4);
    assert_eq!(afterbay.stop(), 0);

    let exported = journal(&sandbox, &["export"]).json_lines();
    let passages: Vec<_> = exported.iter().map(|line| line["passage"].as_str().unwrap()).collect();
    let (rows, unknown, control) = ("unchanged", "not understood", "barrier");
    assert_eq!(passages, [rows, unknown, unknown, unknown, rows, control, control, unknown, rows]);
    assert_eq!(verify(&sandbox).0, 0);
}

#[test]
fn frames_are_forwarded_over_tcp() {
    let sandbox = Sandbox::new();
    let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (scheduler_side, reader_side) = (format!("tcp://{}", free()), format!("tcp://{}", free()));
    let mut reader = Reader::bind(&reader_side);
    let config = sandbox.config().listen(&scheduler_side).connect(&reader_side);
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&scheduler_side);
    for size in [0, 1, 255, 256, 65_536, 3 << 20] {
        let frame: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
        sender.send(&frame);
        assert!(reader.frame() == frame, "{size} bytes");
    }
    assert_eq!(afterbay.stop(), 0);
}
