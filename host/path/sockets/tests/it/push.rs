//! PUSH against readers made by hand: the queue, the kernel's share, losses.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use crate::support::raw::{Raw, hello};
use crate::support::{Loop, both, describe, free_port, ipc, outgoing, path_of};
use afterbay_sockets::zmtp::{Conversation, Role};
use afterbay_sockets::{
    CreditOptions, Endpoint, LossReason, Pending, PullOptions, PushNotice, PushOptions, Unconfirmed,
};

fn listen(endpoint: &Endpoint) -> UnixListener {
    let _ = std::fs::remove_file(path_of(endpoint));
    UnixListener::bind(path_of(endpoint)).unwrap()
}

/// Accepts the connection and answers as a PULL.
fn accept(this: &mut Loop, listener: &UnixListener) -> UnixStream {
    listener.set_nonblocking(true).unwrap();
    let mut stream = None;
    this.until("a connection", |_| {
        stream = stream.take().or_else(|| listener.accept().ok());
        stream.is_some()
    });
    let (mut stream, _) = stream.unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.write_all(&hello(Role::Pull)).unwrap();
    this.until("connected", |this| this.push().is_connected());
    stream
}

fn raw(stream: UnixStream) -> Raw {
    Raw { stream: Box::new(stream), zmtp: Conversation::new(Role::Pull, 1 << 30) }
}

#[test]
fn our_push_and_our_pull_understand_each_other() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in both(&dir, "own") {
        let this = Loop::bind(&endpoint, PullOptions::default());
        let endpoint = this.endpoint();
        let mut this = this.also_connect(&endpoint, PushOptions::default());
        for i in 1..=2000 {
            this.send(outgoing(i, (i as usize * 37) % 3000));
        }
        this.send(outgoing(2001, 32 << 20));
        this.receive(2001);
        assert!(this.push().is_drained());
        for (i, message) in this.received.iter().enumerate() {
            let size = if i == 2000 { 32 << 20 } else { ((i + 1) * 37) % 3000 };
            assert_eq!(message.bytes.len(), size);
            describe(&message.bytes);
        }
    }
}

#[test]
fn a_full_queue_hands_the_frame_back() {
    let dir = tempfile::tempdir().unwrap();
    let options = PushOptions { max_queue_frames: 3, max_queue_bytes: 1000, ..PushOptions::default() };
    let mut this = Loop::connect(&ipc(&dir, "absent"), options);
    for i in 1..=3 {
        assert!(this.push().room());
        this.push().send(outgoing(i, 100)).unwrap();
    }
    assert!(!this.push().room());
    assert_eq!(this.push().send(outgoing(4, 100)), Err(outgoing(4, 100)));
    assert_eq!(this.push().pending(), Pending { frames: 3, bytes: 300 });
    let options = PushOptions { max_queue_frames: 3, max_queue_bytes: 1000, ..PushOptions::default() };
    let mut this = Loop::connect(&ipc(&dir, "absent"), options);
    this.push().send(outgoing(1, 999)).unwrap();
    this.push().send(outgoing(2, 100_000)).unwrap();
    assert!(!this.push().room(), "its bytes are past the bound by one frame");
    assert_eq!(this.push().send(outgoing(3, 0)), Err(outgoing(3, 0)));
}

#[test]
fn frames_leave_together_and_a_forgotten_flush_is_due_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "together");
    let listener = listen(&endpoint);
    let mut this = Loop::connect(&endpoint, PushOptions::default());
    let mut stream = accept(&mut this, &listener);
    let mut greeting = vec![0; hello(Role::Push).len()];
    stream.read_exact(&mut greeting).unwrap();
    assert_eq!(this.push().deadline(), None, "nothing to do");
    for i in 1..=100 {
        this.push().send(outgoing(i, 20)).unwrap();
    }
    stream.set_nonblocking(true).unwrap();
    let mut buffer = vec![0; 1 << 16];
    assert!(stream.read(&mut buffer).is_err(), "nothing left before the flush");
    assert!(this.push().deadline().unwrap() <= Instant::now());
    this.push().flush(Instant::now());
    assert_eq!(this.push().deadline(), None);
    assert_eq!(stream.read(&mut buffer).unwrap(), 100 * 22);
    assert_eq!(this.push().taken(), 100);
}

#[test]
fn a_reader_that_does_not_read_fills_the_queue_and_the_kernels_share_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "stalled");
    let listener = listen(&endpoint);
    let options = PushOptions { max_queue_frames: 50, ..PushOptions::default() };
    let mut this = Loop::connect(&endpoint, options);
    let stream = accept(&mut this, &listener);
    let mut sent = 0;
    // Writes until the kernel takes no more.
    let mut quiet = 0;
    while quiet < 5 {
        quiet += 1;
        while this.push().room() {
            sent += 1;
            this.push().send(outgoing(sent, 10_000)).unwrap();
            quiet = 0;
        }
        this.run(Duration::from_millis(20));
    }
    let taken = this.push().taken();
    assert_eq!((this.push().pending().frames, taken), (50, sent - 50));
    // Everything that the kernel took arrives, to the last byte.
    let got = raw(stream).receive(taken as usize);
    assert_eq!(describe(&got[taken as usize - 1]).1, taken);
}

#[test]
fn a_reset_names_the_frames_that_may_be_unread_and_an_orderly_end_none() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "reset");
    let listener = listen(&endpoint);
    let mut this = Loop::connect(&endpoint, PushOptions::default());
    let stream = accept(&mut this, &listener);
    for i in 1..=5 {
        this.send(outgoing(i, 100));
    }
    this.until("taken", |this| this.push().taken() == 5);
    drop(stream);
    this.until("lost", |this| this.pushed.iter().any(|notice| matches!(notice, PushNotice::Lost { .. })));
    let [
        PushNotice::Connected { .. },
        PushNotice::Lost { why, cut: None },
        PushNotice::Settled { resent: 0, unconfirmed },
    ] = &this.pushed[..3]
    else {
        panic!("{:?}", this.pushed)
    };
    assert_eq!(*why, LossReason::Reset);
    assert_eq!(*unconfirmed, Some(Unconfirmed { first: 1, last: 5, frames: 5 }));
    this.pushed.clear();
    let mut reader = raw(accept(&mut this, &listener));
    for i in 6..=8 {
        this.send(outgoing(i, 100));
    }
    this.until("taken", |this| this.push().taken() == 8);
    assert_eq!(reader.receive(3).len(), 3);
    drop(reader);
    this.until("lost", |this| this.pushed.len() >= 2);
    let [PushNotice::Connected { .. }, PushNotice::Lost { why, cut: None }] = &this.pushed[..] else {
        panic!("{:?}", this.pushed)
    };
    assert_eq!(*why, LossReason::Closed);
}

#[test]
fn a_cut_frame_is_sent_again_whole_and_the_next_frames_follow_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "cut");
    let listener = listen(&endpoint);
    let mut this = Loop::connect(&endpoint, PushOptions::default());
    let mut stream = accept(&mut this, &listener);
    this.send(outgoing(1, 100));
    this.send(outgoing(2, 8 << 20));
    this.send(outgoing(3, 100));
    for round in 0..5 {
        // The reader reads a part of the frame, and dies.
        let mut part = vec![0; 200_000 + round * 100_000];
        let mut reader = stream.try_clone().unwrap();
        let reading = std::thread::spawn(move || reader.read_exact(&mut part));
        this.until("read", |_| reading.is_finished());
        reading.join().unwrap().unwrap();
        drop(stream);
        this.until("lost", |this| {
            this.pushed.iter().any(|notice| matches!(notice, PushNotice::Lost { cut: Some(2), .. }))
        });
        this.pushed.clear();
        stream = accept(&mut this, &listener);
    }
    let reading = std::thread::spawn(move || raw(stream).receive(2));
    this.until("taken", |this| this.push().is_drained());
    let got = reading.join().unwrap();
    assert_eq!(got.iter().map(|got| describe(got)).collect::<Vec<_>>(), [(7, 2, 8 << 20), (7, 3, 100)]);
}

#[test]
fn a_reader_that_says_nothing_is_left_and_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "silent");
    let listener = listen(&endpoint);
    let options = PushOptions { handshake_timeout: Duration::from_millis(100), ..PushOptions::default() };
    let mut this = Loop::connect(&endpoint, options);
    let start = Instant::now();
    this.until("reported", |this| !this.pushed.is_empty());
    assert!(start.elapsed() >= Duration::from_millis(100));
    let [PushNotice::Waiting { why }] = &this.pushed[..] else { panic!("{:?}", this.pushed) };
    assert_eq!(why.to_string(), "handshake took longer than 100ms");
    drop(listener.accept().unwrap());
    accept(&mut this, &listener);
}

#[test]
fn a_reader_that_sends_garbage_or_a_message_is_left_with_the_reason_and_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "garbage");
    let listener = listen(&endpoint);
    let mut this = Loop::connect(&endpoint, PushOptions::default());
    let mut stream = accept(&mut this, &listener);
    stream.write_all(&[0, 1, 0]).unwrap();
    this.until("lost", |this| {
        this.pushed.iter().any(|notice| {
            matches!(notice, PushNotice::Lost { why, .. } if why.to_string() == "message from a PULL peer, which never sends one")
        })
    });
    this.pushed.clear();
    let mut stream = accept(&mut this, &listener);
    stream.write_all(&[0xff; 10]).unwrap();
    this.until("lost", |this| {
        this.pushed.iter().any(|notice| matches!(notice, PushNotice::Lost { why, .. } if why.to_string() == "frame begins with flags 0xff"))
    });
    accept(&mut this, &listener);
}

#[test]
fn attempts_are_spaced_out_and_reported_once() {
    let options = PushOptions {
        backoff_min: Duration::from_millis(20),
        backoff_max: Duration::from_millis(200),
        ..PushOptions::default()
    };
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "flapping");
    let listener = listen(&endpoint);
    listener.set_nonblocking(true).unwrap();
    let mut this = Loop::connect(&endpoint, options.clone());
    let mut attempts = 0;
    let end = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < end {
        this.turn(Duration::from_millis(5));
        attempts += usize::from(listener.accept().is_ok());
    }
    // The waits are 20, 40, 80, 160, then 200 ms each, shortened by up to half.
    assert!((6..=18).contains(&attempts), "{attempts} attempts");
    assert!(
        matches!(&this.pushed[..], [PushNotice::Waiting { why: LossReason::Reset }]),
        "{:?}",
        this.pushed
    );
    let mut this = Loop::connect(&free_port(), options);
    this.run(Duration::from_millis(500));
    assert!(
        matches!(&this.pushed[..], [PushNotice::Waiting { why: LossReason::NoListener }]),
        "{:?}",
        this.pushed
    );
}

#[test]
fn every_address_of_a_name_is_tried() {
    // localhost is usually ::1 too, where no process listens.
    let bound = Loop::bind(&"tcp://127.0.0.1:0".parse().unwrap(), PullOptions::default());
    let Endpoint::Tcp { port, .. } = bound.endpoint() else { panic!() };
    let endpoint = Endpoint::Tcp { host: "localhost".to_owned(), port };
    let mut this = bound.also_connect(&endpoint, PushOptions::default());
    this.send(outgoing(1, 100));
    this.receive(1);
    let mut this = Loop::connect(&"tcp://no.such.host.invalid:1".parse().unwrap(), PushOptions::default());
    this.until("reported", |this| !this.pushed.is_empty());
    assert!(
        matches!(&this.pushed[..], [PushNotice::Waiting { why: LossReason::NoAddress(_) }]),
        "{:?}",
        this.pushed
    );
}

#[test]
fn the_send_buffer_bounds_what_the_kernel_takes() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "buffer");
    let listener = listen(&endpoint);
    let taken = |send_buffer_bytes| {
        let mut this = Loop::connect(&endpoint, PushOptions { send_buffer_bytes, ..PushOptions::default() });
        let _stream = accept(&mut this, &listener);
        for i in 1..=1000 {
            this.push().send(outgoing(i, 1000)).unwrap();
        }
        this.run(Duration::from_millis(50));
        this.push().taken()
    };
    let (small, large) = (taken(Some(16 << 10)), taken(Some(1 << 20)));
    assert!(small < 60 && large > 200, "{small} {large}");
}

#[test]
fn an_idle_socket_sleeps() {
    let dir = tempfile::tempdir().unwrap();
    let bound = Loop::bind(&ipc(&dir, "idle"), PullOptions::default());
    let endpoint = bound.endpoint();
    let options = PushOptions {
        credit: Some(CreditOptions::new(dir.path().join("tokenizer"))),
        ..PushOptions::default()
    };
    let mut this = bound.also_connect(&endpoint, options);
    this.send(outgoing(1, 100));
    this.receive(1);
    this.run(Duration::from_millis(100));
    let (end, mut turns) = (Instant::now() + Duration::from_millis(500), 0);
    while Instant::now() < end {
        this.turn(Duration::from_millis(500));
        turns += 1;
    }
    // The socket checks every 50 ms whether the page exists.
    assert!(turns <= 12, "{turns} turns in 500 ms");
    this.push = None;
    assert_eq!(this.pull().deadline(), None);
}
