//! The tap, with libzmq subscribers (pyzmq).

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};

use afterbay_tests::sandbox::STREAM;
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, load};
use afterbay_wire::synth::SynthWire::Msgpack;

use crate::python::PythonPeer;

/// A scheduler that sends numbered frames, and the reader that gets each at once.
struct Ends {
    sender: Sender,
    reader: Reader,
    number: u64,
}

impl Ends {
    fn new(sandbox: &Sandbox) -> Ends {
        let reader = Reader::bind(&sandbox.reader_side());
        Ends { sender: Sender::connect(&sandbox.scheduler_side()), reader, number: 0 }
    }

    /// Sends the next frame of this size, which the reader receives.
    fn send(&mut self, size: usize) -> u64 {
        self.number += 1;
        self.sender.send(&numbered(self.number, size));
        assert_eq!(self.reader.frame(), numbered(self.number, size));
        self.number
    }

    /// Starts a subscriber. It has received the last frame.
    #[track_caller]
    fn subscriber(&mut self, endpoint: &str, options: &str) -> PythonPeer {
        let mut peer = PythonPeer::start();
        peer.ask(&format!("sub a connect {endpoint} {options}"));
        peer.ask("subscribe a");
        self.until_received(&mut peer);
        peer
    }

    /// Sends frames until the subscriber gets them.
    #[track_caller]
    fn until_received(&mut self, peer: &mut PythonPeer) {
        for _ in 0..1000 {
            let last = self.send(100);
            let mut got = numbers(peer, 1, 300);
            while !got.is_empty() && got != [last] {
                got = numbers(peer, 1, 30_000);
            }
            if !got.is_empty() {
                return;
            }
        }
        panic!("the subscriber receives nothing");
    }
}

/// The same bytes as `payload` in `peer.py`.
fn numbered(number: u64, size: usize) -> Vec<u8> {
    let mut bytes = [7, number].map(u64::to_le_bytes).concat();
    bytes.extend((number % 251..).take(size - 16).map(|n| (n % 251) as u8));
    bytes
}

/// The numbers of the frames that the subscriber receives in this time.
fn numbers(peer: &mut PythonPeer, count: u64, timeout_ms: u32) -> Vec<u64> {
    peer.send_command(&format!("recv a {count} {timeout_ms}"));
    peer.received().iter().map(|(_, number, _)| *number).collect()
}

#[test]
fn every_subscriber_gets_each_received_frame_with_its_stream_and_its_number() {
    let sandbox = Sandbox::new();
    let (mut reader, mut credit, config) = sandbox.counting_tokenizer();
    let afterbay = Afterbay::run(&sandbox, &config.tap("tcp://127.0.0.1:0", ""));
    let endpoint = afterbay.event("TapListening")["endpoint"].as_str().unwrap().to_owned();
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let frames = load(10, 10, Msgpack);
    let mut peers = [STREAM, "other"].map(|topic| {
        let mut peer = PythonPeer::start();
        peer.ask(&format!("sub a connect {endpoint}"));
        let hex: String = topic.bytes().map(|byte| format!("{byte:02x}")).collect();
        peer.ask(&format!("subscribe a {hex}"));
        peer
    });
    let mut number = 0_u64;
    // Repeats a frame that has no row until the subscription has arrived.
    loop {
        sender.send(b"\x90");
        number += 1;
        assert_eq!(reader.frame(), b"\x90");
        credit.finished().unwrap();
        peers[0].send_command("bytes a 100 300");
        if peers[0].received_parts().last().is_some_and(|parts| parts[1] == number.to_be_bytes()) {
            break;
        }
    }
    // The reader has two unfinished frames, so later rows wait and are joined for it.
    frames.iter().for_each(|frame| sender.send(&frame.bytes));
    peers[0].send_command(&format!("bytes a {} 30000", frames.len()));
    let wanted = (number + 1..).zip(&frames).map(|(number, frame)| {
        vec![STREAM.as_bytes().to_vec(), number.to_be_bytes().to_vec(), frame.bytes.to_vec()]
    });
    assert_eq!(peers[0].received_parts(), wanted.collect::<Vec<_>>());
    peers[1].send_command("bytes a 1 100");
    assert!(peers[1].received_parts().is_empty(), "another stream was asked for");
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_stalled_subscriber_is_disconnected_with_a_count_and_others_miss_no_frame() {
    const SIZE: usize = 1 << 20;
    let sandbox = Sandbox::new();
    let afterbay = Afterbay::run(&sandbox, &sandbox.config().tap(&sandbox.ipc("tap"), ""));
    let mut ends = Ends::new(&sandbox);
    afterbay.event("TapListening");
    let mut other = ends.subscriber(&sandbox.ipc("tap"), "");
    let first = ends.number + 1;
    let mut stalled = ends.subscriber(&sandbox.ipc("tap"), "RCVHWM=1");
    // More than the tap, the subscriber and the kernel hold.
    (0..70).for_each(|_| _ = ends.send(SIZE));
    let dropped = afterbay.event("TapDropped");
    let frames = dropped["frames"].as_u64().unwrap();
    assert!(dropped["bytes"].as_u64().unwrap() > 32 << 20, "{dropped}");
    let sent: Vec<u64> = (first..=ends.number).collect();
    assert_eq!(numbers(&mut other, sent.len() as u64, 30_000), sent);
    ends.until_received(&mut stalled);
    afterbay.until_metrics("the dropped frames are counted", |metrics| {
        metrics.tap("frames_dropped_total") >= frames
    });
    afterbay.until_healthy();
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_taken_endpoint_and_a_peer_that_is_no_subscriber_disturb_no_stream_and_no_subscriber() {
    let sandbox = Sandbox::new();
    let taken = UnixListener::bind(sandbox.path("tap")).unwrap();
    let config = sandbox.config().tap(&sandbox.ipc("tap"), "listen_mode = \"0644\"");
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut ends = Ends::new(&sandbox);
    let failed = afterbay.event_where("FollowerFailed", |event| event["follower"] == "tap");
    assert!(failed["why"].as_str().unwrap().contains("has a listener that is alive"), "{failed}");
    ends.send(100);
    drop(taken);
    afterbay.event("TapListening");
    let mode = std::fs::metadata(sandbox.path("tap")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    let mut garbage = UnixStream::connect(sandbox.path("tap")).unwrap();
    garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut peer = ends.subscriber(&sandbox.ipc("tap"), "");
    // A frame that is bigger than what the tap holds waits alone.
    let big = ends.send(65 << 20);
    assert_eq!(numbers(&mut peer, 1, 30_000), [big]);
    assert_eq!(afterbay.stop(), 0);
    assert!(!sandbox.path("tap").exists(), "the socket file is removed");
}
