//! Taps: copies of frames for observers.

use std::time::Duration;

use afterbay_tests::commands::verify;
use afterbay_tests::frames::{WIRES, rows};
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, load};
use afterbay_wire::synth::SynthWire::Msgpack;

#[test]
fn a_tap_gets_copies_of_received_or_of_sent_frames() {
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let (mut reader, mut credit, config) = sandbox.counting_tokenizer();
        let (mut received, mut sent) =
            (Reader::bind(&sandbox.ipc("received")), Reader::bind(&sandbox.ipc("sent")));
        let config = config.another_sink("received", &sandbox.ipc("received"), "kind = \"tap\"");
        let config = config.another_sink("sent", &sandbox.ipc("sent"), "kind = \"tap\"\nof = \"sent\"");
        let afterbay = Afterbay::run(&sandbox, &config);
        let frames = load(10, 10, wire);
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        // The reader has two ahead, and does not count: what waits is joined.
        for frame in &frames[..2] {
            sender.send(&frame.bytes);
            reader.frame();
        }
        frames[2..].iter().for_each(|frame| sender.send(&frame.bytes));
        for frame in &frames {
            assert_eq!(received.frame(), frame.bytes);
        }
        (0..2).for_each(|_| credit.finished().unwrap());
        let joined = reader.frame();
        assert_eq!([sent.frame(), sent.frame()], [&frames[0].bytes[..], &frames[1].bytes[..]]);
        assert_eq!(sent.frame(), joined);
        assert_eq!(rows(&joined).len(), 10);
        assert_eq!(received.next_within(Duration::from_millis(20)), None);
        credit.finished().unwrap();
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
    }
}

#[test]
fn a_stuck_or_absent_tap_delays_nothing_and_its_missed_frames_are_reported() {
    const FRAMES: u64 = 300;
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let mut stuck = Reader::bind(&sandbox.ipc("stuck"));
    let queue = "kind = \"tap\"\nqueue = { frames = 10, bytes = \"1MiB\" }";
    let config = sandbox.config().another_sink("stuck", &sandbox.ipc("stuck"), queue);
    let config = config.another_sink("away", &sandbox.ipc("away"), queue);
    let afterbay = Afterbay::run(&sandbox, &config);
    stuck.wait_connected();
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let frame = |number: u64| {
        let mut frame = vec![0; 20_000];
        frame[..8].copy_from_slice(&number.to_be_bytes());
        frame
    };
    for number in 0..FRAMES {
        sender.send(&frame(number));
        assert_eq!(reader.frame(), frame(number));
    }
    let dropping = afterbay.event_where("TapDropping", |event| event["tap"] == "stuck");
    let first = dropping["first"].as_u64().unwrap();
    // The stuck tap has all earlier frames, and gets new copies once it reads.
    for number in 0..first - 1 {
        assert_eq!(stuck.frame(), frame(number));
    }
    let mut number = FRAMES;
    let dropped = loop {
        sender.send(&frame(number));
        assert_eq!(reader.frame(), frame(number));
        number += 1;
        while stuck.next_within(Duration::from_millis(1)).is_some() {}
        if let Some(event) = afterbay.events("TapDropped").into_iter().find(|event| event["tap"] == "stuck") {
            break event;
        }
    };
    let figure = |field: &str| dropped[field].as_u64().unwrap();
    assert_eq!(figure("first"), first);
    assert_eq!(figure("last") - figure("first") + 1, figure("frames"));
    let metrics = afterbay.metrics();
    assert!(metrics.tap("stuck", "frames_dropped_total") >= figure("frames"));
    let away = (metrics.tap("away", "connected"), metrics.tap("away", "frames_written_total"));
    assert_eq!(away, (0, 0));
    // The queue and the socket of the absent tap hold copies for it.
    let kept = number - metrics.tap("away", "frames_dropped_total");
    assert!((10..=80).contains(&kept), "{kept} kept");
    afterbay.until_healthy();
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_tap_may_disconnect_and_the_stream_stops_without_it() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = sandbox.config().another_sink("tap", &sandbox.ipc("tap"), "kind = \"tap\"");
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let frames = load(5, 20, Msgpack);
    for life in frames.chunks(7) {
        let mut tap = Reader::bind(&sandbox.ipc("tap"));
        tap.wait_connected();
        for frame in life {
            sender.send(&frame.bytes);
            assert_eq!(reader.frame(), frame.bytes);
            assert_eq!(tap.frame(), frame.bytes);
        }
        drop(tap);
        afterbay.until_metrics("the tap is gone", |metrics| metrics.tap("tap", "connected") == 0);
    }
    assert_eq!(afterbay.stop(), 0);
}
