//! Connections to readers that outlive our process: it dies at any system call and drops everything but descriptors.
//!
//! The frames that were queued and are not in the memory are sent again, as the journal does it.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::support::counting_reader::CountingReader;
use crate::support::{Loop, describe, free_port, ipc, outgoing, path_of, settled, with_credit};
use afterbay_sockets::injected::{self, SocketCall};
use afterbay_sockets::zmtp::{Conversation, Role, ZmtpEvent};
use afterbay_sockets::{
    Endpoint, InheritedPush, KeepAs, LossReason, OutgoingFrame, PullOptions, PushNotice, PushOptions,
    Unconfirmed,
};
use afterbay_supervision::fdstore::{FdName, FdStore};

/// A source of numbers that a seed determines.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Our process and its successors, and a journal of the frames that any of them was given.
struct Processes {
    this: Loop,
    endpoint: Endpoint,
    options: PushOptions,
    store: FdStore,
    journal: Vec<OutgoingFrame>,
    deaths: usize,
    pushed: Vec<PushNotice>,
}

impl Processes {
    fn start(endpoint: &Endpoint, options: PushOptions) -> Processes {
        let store = FdStore::new();
        let keep = Some(KeepAs { store: store.clone(), name: FdName::sink("stream", "sink") });
        let options = PushOptions { keep, ..options };
        let this = Loop::connect(endpoint, options.clone());
        let (endpoint, pushed) = (endpoint.clone(), Vec::new());
        Processes { this, endpoint, options, store, journal: Vec::new(), deaths: 0, pushed }
    }

    fn send(&mut self, frame: OutgoingFrame) {
        self.journal.push(frame.clone());
        self.this.push().send(frame).unwrap();
    }

    /// Queues frames of random sizes until 8 wait, or until the journal has this many.
    fn fill(&mut self, frames: usize, random: &mut Random) {
        while self.journal.len() < frames && self.this.push().pending().frames < 8 {
            let sequence = 1 + self.journal.len() as u64;
            self.send(outgoing(sequence, size(random)));
        }
    }

    fn is_kept(&self) -> bool {
        !self.store.entries().unwrap().is_empty()
    }

    /// The process dies, and leaves these descriptors.
    fn die(&mut self) -> Vec<OwnedFd> {
        let (_, fds) = self.store.entries().unwrap().pop().expect("a connection is kept");
        self.pushed.append(&mut self.this.pushed);
        injected::set_dead(true);
        self.this = Loop::new();
        injected::set_dead(false);
        self.deaths += 1;
        fds
    }

    /// The next process continues the connection, and sends again what was not in the memory.
    fn adopt(&mut self, fds: Vec<OwnedFd>) {
        let inherited = InheritedPush::open(fds, &self.endpoint).unwrap();
        self.this = Loop::adopt(&self.endpoint, self.options.clone(), inherited);
        let last = self.this.push().last();
        for frame in self.journal.iter().filter(|frame| frame.sequence > last) {
            self.this.push().send(frame.clone()).unwrap();
        }
    }

    fn restart(&mut self) {
        let fds = self.die();
        self.adopt(fds);
    }

    /// One turn, with writes cut to random lengths. Dies at the call with this number, if the turn has so many.
    fn turn(&mut self, random: &mut Random, dies_at: u64) {
        let (store, seed, mut calls) = (self.store.clone(), random.below(u64::MAX).max(1), 0);
        let mut random = Random(seed);
        injected::set_hook(Some(Box::new(move |call| {
            calls += 1;
            // A connection that is not kept loses the queue, and only the journal knows what follows.
            if calls == dies_at && !store.entries().unwrap().is_empty() {
                std::panic::resume_unwind(Box::new("dead"));
            }
            match call {
                SocketCall::Write(_) if random.below(2) == 0 => 1 + random.below(5000) as usize,
                _ => usize::MAX,
            }
        })));
        let turn = catch_unwind(AssertUnwindSafe(|| self.this.turn(Duration::ZERO)));
        injected::set_hook(None);
        if turn.is_err() {
            self.restart();
        }
    }
}

fn size(random: &mut Random) -> usize {
    match random.below(40) {
        0 => 4 << 20,
        1..5 => 100_000,
        5..20 => 1000 + random.below(20_000) as usize,
        _ => 16 + random.below(300) as usize,
    }
}

#[test]
fn over_deaths_at_any_call_a_reader_without_credit_gets_each_frame_once_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    for (endpoint, seed) in [(ipc(&dir, "reader"), 1), (free_port(), 2), (ipc(&dir, "other"), 3)] {
        let mut random = Random(seed);
        let mut reader = Loop::bind(&endpoint, PullOptions::default());
        let mut ours = Processes::start(&endpoint, PushOptions::default());
        let frames = 300;
        let mut turns = 0;
        while reader.received.len() < frames {
            ours.fill(frames, &mut random);
            let dies_at = random.below(6);
            ours.turn(&mut random, dies_at);
            if random.below(3) == 0 {
                reader.turn(Duration::ZERO);
            }
            turns += 1;
            assert!(turns < 200_000, "{} of {frames}, {} deaths", reader.received.len(), ours.deaths);
        }
        let got: Vec<u64> = reader.received.iter().map(|message| describe(&message.bytes).1).collect();
        assert_eq!(got, (1..=frames as u64).collect::<Vec<_>>(), "{endpoint}");
        assert!(ours.deaths > 20, "{} deaths", ours.deaths);
        let lost = ours.pushed.iter().any(|notice| matches!(notice, PushNotice::Lost { .. }));
        assert!(!lost && reader.closed().is_empty(), "{:?}", ours.pushed);
    }
}

#[test]
fn over_deaths_of_both_sides_a_counting_reader_finishes_each_frame_once_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    for (endpoint, seed) in [(ipc(&dir, "reader"), 7), (free_port(), 8)] {
        let _ = std::fs::remove_file(dir.path().join("tokenizer"));
        let mut random = Random(seed);
        let options = with_credit(&dir, |credit| {
            credit.max_window_frames = 20;
            credit.generation_wait = Duration::from_secs(10);
        });
        let mut reader = CountingReader::start(&dir, &endpoint);
        let mut ours = Processes::start(&endpoint, options);
        let (frames, mut finished, mut readers, mut turns) = (400, Vec::new(), 1, 0);
        while finished.len() + reader.finished.len() < frames {
            ours.fill(frames, &mut random);
            let dies_at = random.below(6);
            ours.turn(&mut random, dies_at);
            match random.below(4) {
                0 => reader.this.turn(Duration::ZERO),
                1 => reader.finish(random.below(4) as usize),
                _ => {}
            }
            // A reader is replaced only after the last one's count could be read: twice in a row would be uncertain.
            let is_seen =
                ours.is_kept() && ours.this.push().is_connected() && ours.this.push().finished().is_some();
            if is_seen && finished.len() + reader.finished.len() >= readers * 40 {
                ours.this.run(Duration::from_millis(5));
                finished.append(&mut reader.finished);
                drop(reader);
                // Our process dies, and finds the loss by a read.
                if random.below(2) == 0 {
                    ours.restart();
                }
                reader = CountingReader::start(&dir, &endpoint);
                readers += 1;
            }
            turns += 1;
            let push = ours.this.push();
            assert!(
                turns < 400_000,
                "{endpoint}: {} of {frames}, {} deaths, {:?}, {:?} pending, {:?} unfinished, connected: {}, {} received, {:?}, {:?}",
                finished.len() + reader.finished.len(),
                ours.deaths,
                push.credit(),
                push.pending(),
                push.unfinished(),
                push.is_connected(),
                reader.this.received.len(),
                reader.this.pulled,
                ours.this.pushed,
            );
        }
        finished.append(&mut reader.finished);
        assert_eq!(finished, (1..=frames as u64).collect::<Vec<_>>(), "{endpoint}");
        assert!(ours.deaths > 20 && readers > 5, "{} deaths, {readers} readers", ours.deaths);
        ours.pushed.append(&mut ours.this.pushed);
        let unconfirmed = ours
            .pushed
            .iter()
            .find(|notice| matches!(notice, PushNotice::Settled { unconfirmed: Some(_), .. }));
        assert!(unconfirmed.is_none(), "{unconfirmed:?}");
    }
}

/// A listener of a reader made by hand, and our process, which has begun to connect to it.
fn connecting(endpoint: &Endpoint) -> (UnixListener, Processes) {
    let listener = UnixListener::bind(path_of(endpoint)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut ours = Processes::start(endpoint, PushOptions::default());
    ours.this.turn(Duration::ZERO);
    (listener, ours)
}

/// Completes the handshake of a reader made by hand.
fn accept(ours: &mut Loop, listener: &UnixListener) -> UnixStream {
    let mut accepted = None;
    ours.until("accepted", |_| {
        accepted = listener.accept().ok();
        accepted.is_some()
    });
    let (mut stream, _) = accepted.unwrap();
    stream.set_nonblocking(true).unwrap();
    stream.write_all(&crate::support::raw::hello(Role::Pull)).unwrap();
    ours.until("connected", |this| this.push().is_connected());
    stream
}

fn drain(stream: &mut UnixStream) -> Vec<u8> {
    let (mut received, mut buffer) = (Vec::new(), vec![0; 1 << 20]);
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        received.extend_from_slice(&buffer[..read]);
    }
    received
}

#[test]
fn a_ping_that_a_dead_process_had_read_is_answered_between_two_frames() {
    const PING: &[u8] = b"\x04\x07\x04PING\0\0";
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "reader");
    // The calls of the turn that reads PING: after the read, before the write, after the write.
    for dies_at in 1..=4 {
        let _ = std::fs::remove_file(path_of(&endpoint));
        let (listener, mut ours) = connecting(&endpoint);
        let mut stream = accept(&mut ours.this, &listener);
        for sequence in 1..=3 {
            ours.send(outgoing(sequence, 400_000));
        }
        ours.this.turn(Duration::ZERO);
        stream.write_all(PING).unwrap();
        ours.turn(&mut Random(dies_at), dies_at);
        let mut received = Vec::new();
        for _ in 0..100 {
            ours.this.turn(Duration::ZERO);
            received.extend(drain(&mut stream));
        }
        let mut zmtp = Conversation::new(Role::Pull, 1 << 20);
        let (mut messages, mut pongs, mut input) = (Vec::new(), 0, &received[..]);
        while !input.is_empty() {
            let (used, event) = zmtp.feed(input).unwrap();
            input = &input[used..];
            match event {
                Some(ZmtpEvent::Message(bytes)) => messages.push(describe(&bytes).1),
                Some(ZmtpEvent::Command) => pongs += 1,
                _ => {}
            }
        }
        assert_eq!(messages, [1, 2, 3]);
        assert!(pongs >= 1, "no answer after a death at call {dies_at}");
    }
}

#[test]
fn a_reader_that_dies_while_nobody_runs_is_found_by_the_next_process() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "reader");
    // The cut frame is sent again. The reader has no credit page, so the frames that it may lack are named.
    let (listener, mut ours) = connecting(&endpoint);
    let stream = accept(&mut ours.this, &listener);
    for sequence in 1..=3 {
        ours.send(outgoing(sequence, 100_000));
    }
    ours.this.run(Duration::from_millis(20));
    let taken = ours.this.push().taken();
    assert!(taken < 3, "the third frame is cut");
    let fds = ours.die();
    drop(stream);
    ours.adopt(fds);
    assert_eq!(ours.this.push().taken(), taken);
    ours.this.until("lost", |this| {
        let cut = Some(taken + 1);
        this.pushed.iter().any(
            |notice| matches!(notice, PushNotice::Lost { why: LossReason::Reset, cut: of } if *of == cut),
        )
    });
    let unconfirmed = Some(Unconfirmed { first: 1, last: taken, frames: taken as usize });
    assert_eq!(settled(&ours.this), [(0, unconfirmed)]);
    let mut stream = accept(&mut ours.this, &listener);
    let mut received = Vec::new();
    ours.this.until("sent again", |this| {
        received.extend(drain(&mut stream));
        this.push().taken() == 3
    });
    received.extend(drain(&mut stream));
    let whole = crate::support::raw::message(&outgoing(taken + 1, 100_000).bytes);
    assert!(received.windows(whole.len()).any(|window| window == whole));
}

#[test]
fn the_memory_of_the_last_connection_is_forgotten_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "reader");
    let (listener, mut ours) = connecting(&endpoint);
    assert!(!ours.is_kept(), "a connection is kept only after its handshake");
    let stream = accept(&mut ours.this, &listener);
    assert!(ours.is_kept());
    drop(stream);
    ours.this.until("lost", |this| !this.push().is_connected());
    assert!(!ours.is_kept());
    let _stream = accept(&mut ours.this, &listener);
    assert!(ours.is_kept());
    drop(std::mem::replace(&mut ours.this, Loop::new()));
    assert!(!ours.is_kept());
}

#[test]
fn a_process_that_only_prepares_leaves_the_connection_to_the_earlier_one() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "reader");
    let mut reader = CountingReader::start(&dir, &endpoint);
    let mut ours = Processes::start(&endpoint, with_credit(&dir, |_| ()));
    let both = |ours: &mut Processes, reader: &mut CountingReader, finished: usize| {
        ours.this.until("finished", |this| {
            reader.this.turn(Duration::ZERO);
            reader.finish(3);
            reader.finished.len() == finished && this.push().is_drained() && this.push().is_connected()
        });
    };
    both(&mut ours, &mut reader, 0);
    let mut sequence = 0;
    for round in 0..5 {
        for size in [100, 100_000, 20] {
            sequence += 1;
            ours.send(outgoing(sequence, size));
        }
        ours.this.turn(Duration::ZERO);
        let (_, fds) = ours.store.entries().unwrap().pop().unwrap();
        let options = PushOptions { keep: None, ..ours.options.clone() };
        let mut other = Loop::adopt(&endpoint, options, InheritedPush::open(fds, &endpoint).unwrap());
        assert_eq!((other.push().taken(), other.push().last()), (round * 3, sequence));
        drop(other);
        both(&mut ours, &mut reader, sequence as usize);
    }
    assert_eq!(reader.finished, (1..=sequence).collect::<Vec<_>>());
}

#[test]
fn descriptors_of_another_reader_or_of_no_connection_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "reader");
    let mut reader = Loop::bind(&endpoint, PullOptions::default());
    let mut ours = Processes::start(&endpoint, PushOptions::default());
    ours.this.until("connected", |this| {
        reader.turn(Duration::ZERO);
        this.push().is_connected()
    });
    let fds = || ours.store.entries().unwrap().pop().unwrap().1;
    let why = |fds, endpoint: &Endpoint| InheritedPush::open(fds, endpoint).unwrap_err().to_string();
    let other = why(fds(), &ipc(&dir, "other"));
    assert!(other.starts_with("the connection is to ipc:///") && other.ends_with("/other"), "{other}");
    let one = why(fds().split_off(1), &endpoint);
    assert_eq!(one, "the memory contradicts itself: 1 descriptors, expected a socket and its memory");
    let memory_twice = fds().into_iter().skip(1).chain(fds().into_iter().skip(1)).collect();
    assert!(why(memory_twice, &endpoint).ends_with("the first descriptor is no connection"));
    let socket_twice = fds().into_iter().take(1).chain(fds().into_iter().take(1)).collect();
    assert_eq!(why(socket_twice, &endpoint), "the descriptor is no sealed memory");
    assert!(InheritedPush::open(fds(), &endpoint).is_ok());
}
