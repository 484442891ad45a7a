//! Taps that publish, to subscribers of libzmq (pyzmq).

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use afterbay_tests::afterbay::verify;
use afterbay_tests::{Afterbay, Reader, Sender, Stage, load};
use afterbay_wire::synth::SynthWire::Msgpack;

use crate::python::PythonPeer;

/// Has subscribed to everything; it counts with `before` that have.
#[track_caller]
fn subscriber(afterbay: &Afterbay, tap: &str, endpoint: &str, options: &str) -> PythonPeer {
    let before = afterbay.metrics().tap(tap, "subscribers");
    let mut peer = PythonPeer::start();
    peer.ask(&format!("sub a connect {endpoint} {options}"));
    peer.ask("subscribe a");
    afterbay.until_metrics("it has subscribed", |metrics| metrics.tap(tap, "subscribers") == before + 1);
    peer
}

/// As `payload` of `peer.py`.
fn numbered(number: u64, size: usize) -> Vec<u8> {
    let mut bytes = [7, number].map(u64::to_le_bytes).concat();
    bytes.extend((number % 251..).take(size - 16).map(|n| (n % 251) as u8));
    bytes
}

#[test]
fn every_subscriber_of_a_tap_gets_the_bytes_that_came_or_were_sent_in_order() {
    let stage = Stage::new();
    let (mut reader, mut credit, config) = stage.counting_tokenizer();
    let config = config.publisher("came", "tcp://127.0.0.1:0", "");
    let config = config.publisher("sent", &stage.ipc("sent"), "of = \"sent\"");
    let afterbay = Afterbay::run(&stage, &config);
    let listening = afterbay.event_where("TapListening", |event| event["tap"] == "came");
    let endpoint = listening["endpoint"].as_str().unwrap().to_owned();
    let mut came = [(); 2].map(|()| subscriber(&afterbay, "came", &endpoint, ""));
    let mut sent = subscriber(&afterbay, "sent", &stage.ipc("sent"), "");
    let frames = load(10, 10, Msgpack);
    let mut sender = Sender::connect(&stage.scheduler_side());
    // The reader has two ahead, and does not count: what waits is joined.
    for frame in &frames[..2] {
        sender.send(&frame.bytes);
        reader.frame();
    }
    frames[2..].iter().for_each(|frame| sender.send(&frame.bytes));
    for peer in &mut came {
        peer.send_command(&format!("bytes a {} 30000", frames.len()));
        let got = peer.received_bytes();
        assert!(frames.iter().map(|frame| &frame.bytes[..]).eq(got.iter().map(|got| &got[..])));
    }
    (0..2).for_each(|_| credit.finished().unwrap());
    let joined = reader.frame();
    sent.send_command("bytes a 3 30000");
    assert_eq!(sent.received_bytes(), [frames[0].bytes.to_vec(), frames[1].bytes.to_vec(), joined]);
    credit.finished().unwrap();
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&stage).0, 0);
}

#[test]
fn a_subscriber_that_stalls_misses_what_is_named_and_hurts_neither_the_others_nor_the_stream() {
    const FRAMES: u64 = 100;
    const SIZE: usize = 20_000;
    let stage = Stage::new();
    let mut reader = Reader::bind(&stage.reader_side());
    let config = stage.config().publisher("tap", &stage.ipc("tap"), "queue = { frames = 10 }");
    let afterbay = Afterbay::run(&stage, &config);
    let mut stalled = subscriber(&afterbay, "tap", &stage.ipc("tap"), "RCVHWM=1");
    let mut other = subscriber(&afterbay, "tap", &stage.ipc("tap"), "");
    let mut sender = Sender::connect(&stage.scheduler_side());
    let mut number = 0;
    let mut send = |reader: &mut Reader, other: &mut PythonPeer| {
        number += 1;
        sender.send(&numbered(number, SIZE));
        assert_eq!(reader.frame(), numbered(number, SIZE));
        other.send_command("recv a 1 30000");
        assert_eq!(other.received(), [(7, number, SIZE)]);
        number
    };
    for _ in 0..FRAMES {
        send(&mut reader, &mut other);
    }
    let dropping = afterbay.event("SubscriberDropping");
    let first = dropping["first"].as_u64().unwrap();
    // It has those before, in order, and takes copies again once it reads.
    stalled.send_command(&format!("recv a {} 30000", first - 1));
    let got: Vec<u64> = stalled.received().iter().map(|got| got.1).collect();
    assert_eq!(got, (1..first).collect::<Vec<_>>());
    let next = send(&mut reader, &mut other);
    let dropped = afterbay.event("SubscriberDropped");
    let figure = |field: &str| dropped[field].as_u64().unwrap();
    assert_eq!((figure("first"), figure("last"), figure("frames")), (first, FRAMES, FRAMES + 1 - first));
    assert_eq!(dropped["subscriber"], dropping["subscriber"]);
    stalled.send_command("recv a 1 30000");
    assert_eq!(stalled.received(), [(7, next, SIZE)]);
    let metrics = afterbay.metrics();
    assert_eq!(metrics.tap("tap", "subscriber_frames_dropped_total"), figure("frames"));
    assert_eq!(metrics.tap("tap", "frames_dropped_total"), 0);
    afterbay.until_well();
    // One that goes gives its place back, and gets what comes once it is there again.
    other.kill();
    afterbay.until_metrics("it is gone", |metrics| metrics.tap("tap", "subscribers") == 1);
    let mut other = subscriber(&afterbay, "tap", &stage.ipc("tap"), "");
    send(&mut reader, &mut other);
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_subscriber_past_the_bound_and_one_of_garbage_are_told_and_one_frame_always_fits() {
    let stage = Stage::new();
    let mut reader = Reader::bind(&stage.reader_side());
    let lines = "max_subscribers = 2\nlisten_mode = \"0644\"\nqueue = { bytes = \"64KiB\" }";
    let config = stage.config().publisher("tap", &stage.ipc("tap"), lines);
    let afterbay = Afterbay::run(&stage, &config);
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(stage.path("tap")).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o644);
    let mut peer = subscriber(&afterbay, "tap", &stage.ipc("tap"), "");
    let mut garbage = UnixStream::connect(stage.path("tap")).unwrap();
    garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let closed = afterbay.event("SubscriberClosed");
    assert_eq!(closed["reason"], "garbage");
    assert!(closed["why"].as_str().unwrap().contains("not with a ZMTP signature"), "{closed}");
    let _second = UnixStream::connect(stage.path("tap")).unwrap();
    let mut third = UnixStream::connect(stage.path("tap")).unwrap();
    assert_eq!(third.read(&mut [0]).unwrap(), 0, "it is closed");
    let refused = afterbay.event("SubscriberRefused");
    assert!(refused["why"].as_str().unwrap().starts_with("2 peers are connected, the limit"), "{refused}");
    let mut sender = Sender::connect(&stage.scheduler_side());
    let frame = numbered(1, 1 << 20);
    sender.send(&frame);
    assert_eq!(reader.frame(), frame);
    peer.send_command("recv a 1 30000");
    assert_eq!(peer.received(), [(7, 1, 1 << 20)]);
    assert_eq!(afterbay.stop(), 0);
    assert!(!stage.path("tap").exists(), "its name is given back");
}

#[test]
fn when_sglang_is_started_anew_a_tap_publishes_on_under_its_name_and_its_subscribers_come_again() {
    let stage = Stage::new();
    let file = stage.path("rendezvous.json");
    let meet = |instance: &str, written: u64| {
        let met = serde_json::json!({
            "format": 1, "pid": std::process::id(), "written_unix_ns": written, "sglang": "0.5.23",
            "mode": "normal", "ipc_format": "msgpack", "ingress": stage.scheduler_side(),
            "down": stage.reader_side(), "down_kind": "detokenizer", "instance_id": instance, "dp_rank": 0,
        });
        let new = stage.path("rendezvous.new");
        std::fs::write(&new, met.to_string()).unwrap();
        std::fs::rename(new, &file).unwrap();
    };
    meet("a", 1);
    let mut reader = Reader::bind(&stage.reader_side());
    let config = stage.config().publisher("tap", &stage.ipc("tap"), "");
    // One that is away has more than its socket holds.
    let config = config.more_sink("away", &stage.ipc("away"), "kind = \"tap\"");
    let afterbay = Afterbay::run_with(&stage, &config, &["--rendezvous", file.to_str().unwrap()]);
    let mut peer = subscriber(&afterbay, "tap", &stage.ipc("tap"), "");
    let mut sender = Sender::connect(&stage.scheduler_side());
    for number in 0..100 {
        sender.send(&numbered(number, 100));
        assert_eq!(reader.frame(), numbered(number, 100));
    }
    peer.send_command("recv a 100 30000");
    assert_eq!(peer.received().len(), 100);
    meet("b", 2);
    afterbay_tests::until("it publishes again", || afterbay.events("TapListening").len() == 2);
    // libzmq subscribes again by itself, while it is in a call.
    peer.send_command("recv a 1 30000");
    afterbay.until_metrics("it has come again", |metrics| metrics.tap("tap", "subscribers") == 1);
    let mut sender = Sender::connect(&stage.scheduler_side());
    sender.send(&numbered(100, 100));
    assert_eq!((reader.frame(), peer.received()), (numbered(100, 100), vec![(7, 100, 100)]));
    assert_eq!(afterbay.stop(), 0);
}
