//! Conformance with libzmq, through pyzmq: both directions, ipc and tcp.

use std::time::Duration;

use crate::support::python::PythonPeer;
use crate::support::raw::Raw;
use crate::support::{Loop, both, free_port, in_parts, ipc, outgoing, payload};
use afterbay_sockets::{OutgoingFrame, PullNotice, PullOptions, PushNotice, PushOptions};

/// Sizes around every limit of the frame header and of our buffers.
const SIZES: [usize; 22] = [
    0,
    1,
    2,
    15,
    16,
    254,
    255,
    256,
    257,
    4095,
    4096,
    8191,
    8192,
    8193,
    16_383,
    16_384,
    65_535,
    65_536,
    65_537,
    100_000,
    1 << 20,
    16 << 20,
];

fn words(sizes: &[usize]) -> String {
    sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(" ")
}

#[test]
fn every_size_comes_from_libzmq_whole_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in both(&dir, "in") {
        let mut this = Loop::bind(&endpoint, PullOptions::default());
        let mut peer = PythonPeer::start();
        peer.ask(&format!("push a connect {}", this.endpoint()));
        let count = SIZES.len() * 3;
        peer.send_command(&format!("send a 0 0 {count} {}", words(&SIZES)));
        let got = this.described(count);
        peer.answer();
        for (i, (_, sequence, size)) in got.iter().enumerate() {
            assert_eq!(*size, SIZES[i % SIZES.len()], "{endpoint}");
            assert!(*size == 0 || *sequence == i as u64 % 251, "{endpoint}: {i}");
        }
    }
}

#[test]
fn every_size_goes_to_libzmq_whole_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in [ipc(&dir, "out"), free_port()] {
        let mut peer = PythonPeer::start();
        peer.ask(&format!("pull a bind {endpoint}"));
        let mut this = Loop::connect(&endpoint, PushOptions::default());
        let count = SIZES.len() * 3;
        peer.send_command(&format!("recv a {count} 30000"));
        for i in 0..count {
            this.send(outgoing(i as u64 + 1, SIZES[i % SIZES.len()]));
        }
        this.until("all taken", |this| this.push().is_drained());
        assert_eq!(this.push().taken(), count as u64);
        let got = peer.received();
        assert_eq!(got.len(), count);
        for (i, (_, sequence, size)) in got.iter().enumerate() {
            assert_eq!(*size, SIZES[i % SIZES.len()], "{endpoint}");
            let sent = i as u64 + 1;
            assert!(*size == 0 || *sequence == if *size < 16 { sent % 251 } else { sent }, "{endpoint}: {i}");
        }
    }
}

#[test]
fn a_reader_that_starts_late_gets_everything() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in [ipc(&dir, "late"), free_port()] {
        let mut this = Loop::connect(&endpoint, PushOptions::default());
        for i in 1..=100 {
            this.send(outgoing(i, 1000));
        }
        this.run(Duration::from_millis(300));
        assert!(matches!(this.pushed[..], [PushNotice::Waiting { .. }]), "reported once: {:?}", this.pushed);
        assert_eq!((this.push().taken(), this.push().pending().frames), (0, 100));
        let mut peer = PythonPeer::start();
        peer.ask(&format!("pull a bind {endpoint}"));
        peer.send_command("recv a 100 30000");
        this.until("all taken", |this| this.push().is_drained());
        assert_eq!(
            peer.received().iter().map(|got| got.1).collect::<Vec<_>>(),
            (1..=100).collect::<Vec<_>>()
        );
        assert!(matches!(this.pushed[..], [PushNotice::Waiting { .. }, PushNotice::Connected { .. }]));
    }
}

#[test]
fn sixty_four_senders_are_all_heard_in_turn() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in both(&dir, "many") {
        let mut this = Loop::bind(&endpoint, PullOptions::default());
        let mut peer = PythonPeer::start();
        for sender in 0..64 {
            peer.send_command(&format!("push s{sender} connect {}", this.endpoint()));
            peer.send_command(&format!("send s{sender} {sender} 0 100 {}", words(&[100, 3000, 20, 70_000])));
        }
        let got = this.described(64 * 100);
        for sender in 0..64 {
            let of = got.iter().filter(|got| got.0 == sender).map(|got| got.1).collect::<Vec<_>>();
            assert_eq!(of, (0..100).collect::<Vec<_>>(), "sender {sender} over {endpoint}");
        }
        let connected =
            this.pulled.iter().filter(|notice| matches!(notice, PullNotice::Connected { .. })).count();
        assert_eq!((connected, this.pull().peers()), (64, 64));
    }
}

#[test]
fn messages_of_several_parts_come_from_libzmq_and_go_to_libzmq_with_the_same_parts() {
    let dir = tempfile::tempdir().unwrap();
    let sizes = [3000, 16, 70_000, 100, 1 << 20];
    for (endpoint, to) in both(&dir, "parts").into_iter().zip([ipc(&dir, "out"), free_port()]) {
        let mut peer = PythonPeer::start();
        peer.ask(&format!("pull out bind {to}"));
        let mut this =
            Loop::bind(&endpoint, PullOptions::default()).also_connect(&to, PushOptions::default());
        peer.ask(&format!("push in connect {}", this.endpoint()));
        peer.send_command(&format!("parts in 1 0 30 {}", words(&sizes)));
        this.receive(30);
        peer.answer();
        peer.send_command("count_parts out 30 30000");
        for (sequence, message) in (1..).zip(this.received.clone()) {
            let of = sequence - 1;
            assert_eq!(message.bytes, in_parts(of, payload(1, of, sizes[of as usize % sizes.len()])));
            this.send(OutgoingFrame { sequence, bytes: message.bytes, counted: true });
        }
        this.until("all taken", |this| this.push().is_drained());
        let parts = peer.received();
        assert_eq!(parts, (0..30).map(|of| (1, of, of as usize % 3 + 1)).collect::<Vec<_>>());
    }
}

#[test]
fn a_sender_that_ends_between_two_parts_loses_only_the_incomplete_message() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in both(&dir, "parts-cut") {
        let mut this = Loop::bind(&endpoint, PullOptions::default());
        let (mut ends, mut other) = (Raw::push(&this.endpoint()), Raw::push(&this.endpoint()));
        ends.send(&in_parts(1, payload(1, 1, 3000)));
        ends.write(&[1, 3, b'o', b'n', b'e']);
        this.receive(1);
        drop(ends);
        this.until("reported", |this| this.closed() == ["cut a message after 1 parts"]);
        other.send(&in_parts(2, payload(2, 2, 3000)));
        assert_eq!(this.described(2), [(1, 1, 3000), (2, 2, 3000)]);
    }
}

#[test]
fn a_sender_that_dies_after_its_last_batch_loses_none_of_it() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in both(&dir, "dies") {
        let mut this = Loop::bind(&endpoint, PullOptions::default());
        let mut peer = PythonPeer::start();
        peer.ask(&format!("push a connect {}", this.endpoint()));
        this.until("connected", |this| !this.pulled.is_empty());
        this.pull().pause();
        // While we do not read, the kernel takes about 48 KB of libzmq's pieces of 8 KB.
        peer.ask("send a 1 0 30 1000");
        this.run(Duration::from_millis(300));
        peer.kill();
        this.run(Duration::from_millis(100));
        assert!(this.received.is_empty(), "paused");
        this.pull().resume();
        let got = this.described(30);
        assert_eq!(got.iter().map(|got| got.1).collect::<Vec<_>>(), (0..30).collect::<Vec<_>>());
        this.until("reported", |this| this.closed() == ["left"]);
    }
}

#[test]
fn a_sender_killed_in_the_middle_of_a_frame_is_reported_and_others_continue() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in both(&dir, "cut") {
        let mut this = Loop::bind(&endpoint, PullOptions::default());
        let (mut victim, mut other) = (PythonPeer::start(), PythonPeer::start());
        victim.ask(&format!("push a connect {}", this.endpoint()));
        other.ask(&format!("push a connect {}", this.endpoint()));
        victim.ask("send a 1 0 2 1000");
        this.receive(2);
        this.pull().pause();
        // The kernel does not take 32 MB, so the process is killed with the frame partly sent.
        victim.ask("send a 1 2 1 33554432");
        this.run(Duration::from_millis(300));
        victim.kill();
        this.pull().resume();
        other.send_command("send a 2 0 100 5000");
        this.until("the other's", |this| this.received.len() == 102);
        this.until("reported", |this| !this.closed().is_empty());
        let reason = this.closed().remove(0);
        let had: usize = reason.split_whitespace().nth(4).unwrap().parse().unwrap();
        assert!(
            reason.ends_with(" bytes of 33554432") && reason.starts_with("cut a message after "),
            "{reason}"
        );
        assert!(had > 0 && had < 33_554_432);
    }
}

#[test]
fn a_reader_killed_in_the_middle_of_a_frame_gets_it_again_whole() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in [ipc(&dir, "again"), free_port()] {
        let mut peer = PythonPeer::start();
        peer.ask(&format!("pull a bind {endpoint}"));
        let mut this = Loop::connect(&endpoint, PushOptions::default());
        this.send(outgoing(1, 1000));
        this.until("the first", |this| this.push().taken() == 1);
        assert_eq!(peer.ask("recv a 1 30000"), "7:1:1000");
        // libzmq reads everything it gets. Stopped, it lets the kernel's buffers fill.
        let pid = peer.ask("pid");
        let signal = |signal: &str| {
            assert!(std::process::Command::new("kill").args([signal, &pid]).status().unwrap().success())
        };
        signal("-STOP");
        this.send(outgoing(2, 16 << 20));
        this.send(outgoing(3, 10));
        this.run(Duration::from_millis(300));
        assert_eq!((this.push().taken(), this.push().pending().frames), (1, 2));
        peer.kill();
        this.until("reported", |this| {
            this.pushed.iter().any(|notice| matches!(notice, PushNotice::Lost { cut: Some(2), .. }))
        });
        let mut peer = PythonPeer::start();
        peer.ask(&format!("pull a bind {endpoint}"));
        peer.send_command("recv a 2 30000");
        this.until("all taken", |this| this.push().is_drained());
        assert_eq!(peer.received(), [(7, 2, 16 << 20), (0, 3, 10)], "{endpoint}");
    }
}

#[test]
fn heartbeats_of_a_sender_are_answered() {
    let dir = tempfile::tempdir().unwrap();
    let mut this = Loop::bind(&ipc(&dir, "beats"), PullOptions::default());
    let mut peer = PythonPeer::start();
    let beats = "HEARTBEAT_IVL=50 HEARTBEAT_TIMEOUT=1500 HEARTBEAT_TTL=2000";
    peer.ask(&format!("push a connect {} {beats}", this.endpoint()));
    this.until("connected", |this| !this.pulled.is_empty());
    this.run(Duration::from_millis(3000));
    peer.ask("send a 1 0 1 1000");
    this.receive(1);
    assert_eq!(this.pulled.len(), 1, "it stayed connected: {:?}", this.pulled);
}

#[test]
fn heartbeats_of_a_reader_are_answered() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "beats");
    let mut peer = PythonPeer::start();
    peer.ask(&format!("pull a bind {endpoint} HEARTBEAT_IVL=50 HEARTBEAT_TIMEOUT=1500 HEARTBEAT_TTL=2000"));
    let mut this = Loop::connect(&endpoint, PushOptions::default());
    this.until("connected", |this| this.push().is_connected());
    this.run(Duration::from_millis(3000));
    this.send(outgoing(1, 1000));
    this.until("taken", |this| this.push().is_drained());
    assert_eq!(peer.ask("recv a 1 30000"), "7:1:1000");
    assert_eq!(this.pushed.len(), 1, "it stayed connected: {:?}", this.pushed);
}

#[test]
fn a_reader_of_the_wrong_type_is_refused_with_the_reason_and_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "wrong");
    let mut peer = PythonPeer::start();
    peer.ask(&format!("push a bind {endpoint}"));
    let mut this = Loop::connect(&endpoint, PushOptions::default());
    this.send(outgoing(1, 1000));
    this.until("reported", |this| !this.pushed.is_empty());
    this.run(Duration::from_millis(500));
    let [PushNotice::Waiting { why }] = &this.pushed[..] else { panic!("{:?}", this.pushed) };
    assert_eq!(why.to_string(), "peer is a \"PUSH\" socket, a PUSH takes only a PULL");
    peer.ask("close a");
    peer.ask(&format!("pull a bind {endpoint}"));
    peer.send_command("recv a 1 30000");
    this.until("taken", |this| this.push().is_drained());
    assert_eq!(peer.received(), [(7, 1, 1000)]);
}

#[test]
fn a_sender_of_the_wrong_type_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let mut this = Loop::bind(&ipc(&dir, "wrong"), PullOptions::default());
    let mut peer = PythonPeer::start();
    peer.ask(&format!("pull a connect {}", this.endpoint()));
    this.until("reported", |this| !this.closed().is_empty());
    assert_eq!(this.closed()[0], "peer is a \"PULL\" socket, a PULL takes only a PUSH");
}

#[test]
fn a_restarted_pull_continues_with_the_senders_queue() {
    // A PUSH of libzmq queues while its peer is away, and delivers when the peer is back.
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "restart");
    let mut this = Loop::bind(&endpoint, PullOptions::default());
    let mut peer = PythonPeer::start();
    peer.ask(&format!("push a connect {endpoint} RECONNECT_IVL=10"));
    peer.ask("send a 1 0 100 1000");
    assert_eq!(this.described(100).len(), 100);
    drop(this);
    peer.ask("sleep 100");
    peer.ask("send a 1 100 1000 1000");
    let mut this = Loop::bind(&endpoint, PullOptions::default());
    let got = this.described(1000);
    assert_eq!(got.iter().map(|got| got.1).collect::<Vec<_>>(), (100..1100).collect::<Vec<_>>());
}
