//! Taps: copies for whoever looks on.

use std::time::Duration;

use afterbay_tests::afterbay::verify;
use afterbay_tests::frames::{WIRES, rows};
use afterbay_tests::{Afterbay, Reader, Sender, Stage, load};
use afterbay_wire::synth::SynthWire::Msgpack;

#[test]
fn a_tap_gets_a_copy_of_what_came_or_of_what_was_sent() {
    for wire in WIRES {
        let stage = Stage::new();
        let (mut reader, mut credit, config) = stage.counting_tokenizer();
        let (mut came, mut sent) = (Reader::bind(&stage.ipc("came")), Reader::bind(&stage.ipc("sent")));
        let config = config.more_sink("came", &stage.ipc("came"), "kind = \"tap\"");
        let config = config.more_sink("sent", &stage.ipc("sent"), "kind = \"tap\"\nof = \"sent\"");
        let afterbay = Afterbay::run(&stage, &config);
        let frames = load(10, 10, wire);
        let mut sender = Sender::connect(&stage.scheduler_side());
        // The reader has two ahead, and does not count: what waits is joined.
        for frame in &frames[..2] {
            sender.send(&frame.bytes);
            reader.frame();
        }
        frames[2..].iter().for_each(|frame| sender.send(&frame.bytes));
        for frame in &frames {
            assert_eq!(came.frame(), frame.bytes);
        }
        (0..2).for_each(|_| credit.finished().unwrap());
        let joined = reader.frame();
        assert_eq!([sent.frame(), sent.frame()], [&frames[0].bytes[..], &frames[1].bytes[..]]);
        assert_eq!(sent.frame(), joined);
        assert_eq!(rows(&joined).len(), 10);
        assert_eq!(came.next_within(Duration::from_millis(20)), None);
        credit.finished().unwrap();
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&stage).0, 0);
    }
}

#[test]
fn a_tap_that_does_not_read_or_is_away_holds_nothing_back_and_what_it_missed_is_named() {
    const FRAMES: u64 = 300;
    let stage = Stage::new();
    let mut reader = Reader::bind(&stage.reader_side());
    let mut stuck = Reader::bind(&stage.ipc("stuck"));
    let queue = "kind = \"tap\"\nqueue = { frames = 10, bytes = \"1MiB\" }";
    let config = stage.config().more_sink("stuck", &stage.ipc("stuck"), queue);
    let config = config.more_sink("away", &stage.ipc("away"), queue);
    let afterbay = Afterbay::run(&stage, &config);
    stuck.wait_connected();
    let mut sender = Sender::connect(&stage.scheduler_side());
    let frame = |number: u64| {
        let mut frame = vec![0; 20_000];
        frame[..8].copy_from_slice(&number.to_le_bytes());
        frame
    };
    for number in 0..FRAMES {
        sender.send(&frame(number));
        assert_eq!(reader.frame(), frame(number));
    }
    let dropping = afterbay.event_where("TapDropping", |event| event["tap"] == "stuck");
    let first = dropping["first"].as_u64().unwrap();
    // It has had those before, and takes copies again once it reads.
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
    // What its queue and its socket hold is kept for it.
    let kept = number - metrics.tap("away", "frames_dropped_total");
    assert!((10..=80).contains(&kept), "{kept} kept");
    afterbay.until_well();
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_tap_may_come_and_go_and_the_stream_stops_without_it() {
    let stage = Stage::new();
    let mut reader = Reader::bind(&stage.reader_side());
    let config = stage.config().more_sink("tap", &stage.ipc("tap"), "kind = \"tap\"");
    let afterbay = Afterbay::run(&stage, &config);
    let mut sender = Sender::connect(&stage.scheduler_side());
    let frames = load(5, 20, Msgpack);
    for life in frames.chunks(7) {
        let mut tap = Reader::bind(&stage.ipc("tap"));
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
