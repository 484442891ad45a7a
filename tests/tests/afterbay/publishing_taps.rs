//! Taps that publish to libzmq subscribers (pyzmq).

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use afterbay_tests::commands::verify;
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, load};
use afterbay_wire::synth::SynthWire::Msgpack;

use crate::python::PythonPeer;

/// Starts a subscriber of all frames and waits until the tap counts it.
#[track_caller]
fn subscriber(afterbay: &Afterbay, tap: &str, endpoint: &str, options: &str) -> PythonPeer {
    let before = afterbay.metrics().tap(tap, "subscribers");
    let mut peer = PythonPeer::start();
    peer.ask(&format!("sub a connect {endpoint} {options}"));
    peer.ask("subscribe a");
    afterbay.until_metrics("the subscriber has subscribed", |metrics| {
        metrics.tap(tap, "subscribers") == before + 1
    });
    peer
}

/// The same bytes as `payload` in `peer.py`.
fn numbered(number: u64, size: usize) -> Vec<u8> {
    let mut bytes = [7, number].map(u64::to_le_bytes).concat();
    bytes.extend((number % 251..).take(size - 16).map(|n| (n % 251) as u8));
    bytes
}

#[test]
fn every_subscriber_of_a_tap_gets_the_received_or_sent_frames_in_order() {
    let sandbox = Sandbox::new();
    let (mut reader, mut credit, config) = sandbox.counting_tokenizer();
    let config = config.publishing_tap("received", "tcp://127.0.0.1:0", "");
    let config = config.publishing_tap("sent", &sandbox.ipc("sent"), "of = \"sent\"");
    let afterbay = Afterbay::run(&sandbox, &config);
    let listening = afterbay.event_where("TapListening", |event| event["tap"] == "received");
    let endpoint = listening["endpoint"].as_str().unwrap().to_owned();
    let mut received = [(); 2].map(|()| subscriber(&afterbay, "received", &endpoint, ""));
    let mut sent = subscriber(&afterbay, "sent", &sandbox.ipc("sent"), "");
    let frames = load(10, 10, Msgpack);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    // The reader has two unfinished frames, so later rows wait and are joined.
    for frame in &frames[..2] {
        sender.send(&frame.bytes);
        reader.frame();
    }
    frames[2..].iter().for_each(|frame| sender.send(&frame.bytes));
    for peer in &mut received {
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
    assert_eq!(verify(&sandbox).0, 0);
}

#[test]
fn a_stalled_subscriber_misses_only_reported_frames_and_delays_nobody_else() {
    const FRAMES: u64 = 100;
    const SIZE: usize = 20_000;
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = sandbox.config().publishing_tap("tap", &sandbox.ipc("tap"), "queue = { frames = 10 }");
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut stalled = subscriber(&afterbay, "tap", &sandbox.ipc("tap"), "RCVHWM=1");
    let mut other = subscriber(&afterbay, "tap", &sandbox.ipc("tap"), "");
    let mut sender = Sender::connect(&sandbox.scheduler_side());
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
    // The stalled subscriber has all earlier frames in order, and gets new ones once it reads.
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
    afterbay.until_healthy();
    // A subscriber that disconnects frees its place, and gets new frames after it reconnects.
    other.kill();
    afterbay.until_metrics("the subscriber is gone", |metrics| metrics.tap("tap", "subscribers") == 1);
    let mut other = subscriber(&afterbay, "tap", &sandbox.ipc("tap"), "");
    send(&mut reader, &mut other);
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn an_extra_or_invalid_subscriber_is_reported_and_one_frame_always_fits() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let lines = "max_subscribers = 2\nlisten_mode = \"0644\"\nqueue = { bytes = \"64KiB\" }";
    let config = sandbox.config().publishing_tap("tap", &sandbox.ipc("tap"), lines);
    let afterbay = Afterbay::run(&sandbox, &config);
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(sandbox.path("tap")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o644);
    let mut peer = subscriber(&afterbay, "tap", &sandbox.ipc("tap"), "");
    let mut garbage = UnixStream::connect(sandbox.path("tap")).unwrap();
    garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let closed = afterbay.event("SubscriberClosed");
    assert_eq!(closed["reason"], "garbage");
    assert!(closed["why"].as_str().unwrap().contains("not with a ZMTP signature"), "{closed}");
    let _second = UnixStream::connect(sandbox.path("tap")).unwrap();
    let mut third = UnixStream::connect(sandbox.path("tap")).unwrap();
    assert_eq!(third.read(&mut [0]).unwrap(), 0, "the connection is closed");
    let refused = afterbay.event("SubscriberRefused");
    assert!(refused["why"].as_str().unwrap().starts_with("2 peers are connected, the limit"), "{refused}");
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let frame = numbered(1, 1 << 20);
    sender.send(&frame);
    assert_eq!(reader.frame(), frame);
    peer.send_command("recv a 1 30000");
    assert_eq!(peer.received(), [(7, 1, 1 << 20)]);
    assert_eq!(afterbay.stop(), 0);
    assert!(!sandbox.path("tap").exists(), "the socket file is removed");
}

#[test]
fn after_a_restart_of_sglang_a_tap_keeps_its_address_and_its_subscribers_reconnect() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("rendezvous.json");
    let meet = |instance: &str, written: u64| {
        let met = serde_json::json!({
            "format": 1, "engine": "sglang", "leg": "tokens", "pid": std::process::id(), "written_unix_ns": written,
            "sglang": "0.5.23", "mode": "normal", "ipc_format": "msgpack", "ingress": sandbox.scheduler_side(),
            "down": sandbox.reader_side(), "down_kind": "detokenizer", "instance_id": instance, "dp_rank": 0,
        });
        let new = sandbox.path("rendezvous.new");
        std::fs::write(&new, met.to_string()).unwrap();
        std::fs::rename(new, &file).unwrap();
    };
    meet("a", 1);
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = sandbox.config().publishing_tap("tap", &sandbox.ipc("tap"), "");
    // The absent tap has more copies than its socket holds.
    let config = config.another_sink("away", &sandbox.ipc("away"), "kind = \"tap\"");
    let afterbay = Afterbay::run_with(&sandbox, &config, &["--rendezvous", file.to_str().unwrap()]);
    let mut peer = subscriber(&afterbay, "tap", &sandbox.ipc("tap"), "");
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    for number in 0..100 {
        sender.send(&numbered(number, 100));
        assert_eq!(reader.frame(), numbered(number, 100));
    }
    peer.send_command("recv a 100 30000");
    assert_eq!(peer.received().len(), 100);
    meet("b", 2);
    afterbay_tests::until("the tap publishes again", || afterbay.events("TapListening").len() == 2);
    // libzmq resubscribes by itself during a call.
    peer.send_command("recv a 1 30000");
    afterbay
        .until_metrics("the subscriber has reconnected", |metrics| metrics.tap("tap", "subscribers") == 1);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    sender.send(&numbered(100, 100));
    assert_eq!((reader.frame(), peer.received()), (numbered(100, 100), vec![(7, 100, 100)]));
    assert_eq!(afterbay.stop(), 0);
}
