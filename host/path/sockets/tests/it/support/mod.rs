//! Shared by the socket tests: a poll loop, payloads that prove themselves, libzmq in a Python process.
#![allow(dead_code)]

pub mod counting_reader;
pub mod python;
pub mod raw;

use std::path::Path;
use std::time::{Duration, Instant};

use afterbay_sockets::{
    CreditOptions, Endpoint, InheritedPush, Lasting, Message, OutgoingFrame, Pull, PullNotice, PullOptions,
    Push, PushNotice, PushOptions, TokenRange, Unconfirmed,
};
use afterbay_supervision::fdstore::{FdStore, Inherited};
use afterbay_types::parts;
use bytes::Bytes;

/// The payload that `payload` of `peer.py` makes.
pub fn payload(sender: u64, sequence: u64, size: usize) -> Vec<u8> {
    if size < 16 {
        return vec![(sequence % 251) as u8; size];
    }
    let turn: Vec<u8> = (0..251).map(|i| ((sequence + i) % 251) as u8).collect();
    let mut bytes = [sender.to_le_bytes(), sequence.to_le_bytes()].concat();
    bytes.reserve_exact(size);
    while bytes.len() < size {
        bytes.extend_from_slice(&turn[..turn.len().min(size - bytes.len())]);
    }
    bytes
}

/// The payload as the frame of a message of one part, of two, or of three with an empty one, by its sequence.
pub fn in_parts(sequence: u64, payload: Vec<u8>) -> Bytes {
    let half = (sequence * 97 % 1000) as usize;
    let (half, payload) = (half.min(payload.len()), Bytes::from(payload));
    match sequence % 3 {
        0 => payload,
        1 => parts::join(&[payload.slice(..half), payload.slice(half..)]),
        _ => parts::join(&[payload.slice(..half), Bytes::new(), payload.slice(half..)]),
    }
}

/// Returns the sender, sequence and size, of all parts together. Panics if the payload is damaged.
pub fn describe(frame: &[u8]) -> (u64, u64, usize) {
    let bytes = parts::split(&Bytes::copy_from_slice(frame)).unwrap().concat();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let (sender, sequence) =
        if bytes.len() < 16 { (0, u64::from(*bytes.first().unwrap_or(&0))) } else { (word(0), word(8)) };
    assert!(bytes == payload(sender, sequence, bytes.len()), "message {sender}:{sequence} is damaged");
    (sender, sequence, bytes.len())
}

pub fn outgoing(sequence: u64, size: usize) -> OutgoingFrame {
    OutgoingFrame { sequence, bytes: Bytes::from(payload(7, sequence, size)), counted: true }
}

pub fn ipc(dir: &tempfile::TempDir, name: &str) -> Endpoint {
    Endpoint::ipc(dir.path().join(name)).unwrap()
}

pub fn path_of(endpoint: &Endpoint) -> &Path {
    match endpoint {
        Endpoint::Ipc(path) => path,
        Endpoint::Tcp { .. } => panic!("not ipc"),
    }
}

/// One endpoint of each transport.
pub fn both(dir: &tempfile::TempDir, name: &str) -> [Endpoint; 2] {
    [ipc(dir, name), "tcp://127.0.0.1:0".parse().unwrap()]
}

/// A tcp port that is free now and that the kernel does not assign by itself.
pub fn free_port() -> Endpoint {
    static NEXT: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(0);
    loop {
        let offset = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let port = 20_000 + (std::process::id() as u16 % 1000) * 10 + offset;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Endpoint::Tcp { host: "127.0.0.1".to_owned(), port };
        }
    }
}

const PULL_TOKENS: TokenRange = TokenRange { first: 10, count: 1 + 300 };
const PUSH_TOKENS: TokenRange = TokenRange { first: 1000, count: 1 };

/// One thread with one poll, like a stream.
pub struct Loop {
    poll: mio::Poll,
    events: mio::Events,
    pub pull: Option<Pull>,
    pub push: Option<Push>,
    pub received: Vec<Message>,
    pub pulled: Vec<PullNotice>,
    pub pushed: Vec<PushNotice>,
    /// Stop receiving at this number of messages.
    pub receive_max: usize,
}

impl Loop {
    pub fn new() -> Loop {
        Loop {
            poll: mio::Poll::new().unwrap(),
            events: mio::Events::with_capacity(256),
            pull: None,
            push: None,
            received: Vec::new(),
            pulled: Vec::new(),
            pushed: Vec::new(),
            receive_max: usize::MAX,
        }
    }

    pub fn bind(endpoint: &Endpoint, options: PullOptions) -> Loop {
        let mut this = Loop::new();
        this.pull = Some(Pull::bind(this.poll.registry(), PULL_TOKENS, endpoint, options, None).unwrap());
        this
    }

    /// A PULL of the stream "s" whose connections the store holds.
    pub fn bind_lasting(endpoint: &Endpoint, store: &FdStore) -> Loop {
        let mut this = Loop::new();
        let lasting = Lasting { store, stream: "s", inherited: &mut Inherited::default() };
        let (registry, options) = (this.poll.registry(), PullOptions::default());
        this.pull = Some(Pull::bind(registry, PULL_TOKENS, endpoint, options, Some(lasting)).unwrap());
        this
    }

    pub fn connect(endpoint: &Endpoint, options: PushOptions) -> Loop {
        let mut this = Loop::new();
        this.push = Some(
            Push::connect(this.poll.registry(), PUSH_TOKENS, endpoint, options, Instant::now()).unwrap(),
        );
        this
    }

    /// Continues the connection of an earlier process.
    pub fn adopt(endpoint: &Endpoint, options: PushOptions, inherited: InheritedPush) -> Loop {
        let mut this = Loop::new();
        let (registry, now) = (this.poll.registry(), Instant::now());
        this.push = Some(Push::adopt(registry, PUSH_TOKENS, endpoint, options, inherited, now).unwrap());
        this
    }

    pub fn also_connect(mut self, endpoint: &Endpoint, options: PushOptions) -> Loop {
        self.push = Loop::connect_with(&self.poll, endpoint, options);
        self
    }

    fn connect_with(poll: &mio::Poll, endpoint: &Endpoint, options: PushOptions) -> Option<Push> {
        Some(Push::connect(poll.registry(), PUSH_TOKENS, endpoint, options, Instant::now()).unwrap())
    }

    pub fn endpoint(&self) -> Endpoint {
        self.pull.as_ref().unwrap().endpoint().clone()
    }

    pub fn push(&mut self) -> &mut Push {
        self.push.as_mut().unwrap()
    }

    pub fn pull(&mut self) -> &mut Pull {
        self.pull.as_mut().unwrap()
    }

    /// Waits for events at most this long, handles them, and flushes.
    pub fn turn(&mut self, at_most: Duration) {
        self.turn_without_flush(at_most);
        if let Some(push) = &mut self.push {
            push.flush(Instant::now());
        }
    }

    /// Waits for events at most this long, and handles them.
    pub fn turn_without_flush(&mut self, at_most: Duration) {
        let now = Instant::now();
        let due = |deadline: Option<Instant>| deadline.map(|at| at.saturating_duration_since(now));
        let more =
            self.pull.as_ref().is_some_and(|pull| pull.has_more() && self.received.len() < self.receive_max);
        let timeout = [
            Some(if more { Duration::ZERO } else { at_most }),
            due(self.pull.as_ref().and_then(Pull::deadline)),
            due(self.push.as_ref().and_then(Push::deadline)),
        ];
        self.poll.poll(&mut self.events, timeout.into_iter().flatten().min()).unwrap();
        let now = Instant::now();
        for event in self.events.iter() {
            if let Some(pull) = self.pull.as_mut().filter(|pull| pull.owns(event.token())) {
                pull.ready(event, now);
            } else if let Some(push) = self.push.as_mut().filter(|push| push.owns(event.token())) {
                push.ready(event, now);
            }
        }
        if let Some(pull) = &mut self.pull {
            pull.tick(now);
            while self.received.len() < self.receive_max
                && let Some(message) = pull.receive()
            {
                self.received.push(message);
            }
            self.pulled.extend(std::iter::from_fn(|| pull.next_notice()));
        }
        if let Some(push) = &mut self.push {
            push.tick(now);
            self.pushed.extend(std::iter::from_fn(|| push.next_notice()));
        }
    }

    /// Runs the loop until `done`; panics after 30 seconds.
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Loop) -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !done(self) {
            assert!(
                Instant::now() < end,
                "{what}: not in 60 s; {} received, {:?}, {:?}, {:?}",
                self.received.len(),
                self.pulled,
                self.pushed,
                self.push.as_ref().map(|push| (
                    push.pending(),
                    push.unfinished(),
                    push.taken(),
                    push.credit()
                )),
            );
            self.turn(Duration::from_millis(10));
        }
    }

    /// Runs the loop for this long.
    pub fn run(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.turn(end.saturating_duration_since(Instant::now()).min(Duration::from_millis(10)));
        }
    }

    pub fn receive(&mut self, count: usize) {
        self.until(&format!("{count} messages"), |this| this.received.len() >= count);
        assert_eq!(self.received.len(), count);
    }

    /// The next `count` messages, in the notation of `describe`.
    pub fn described(&mut self, count: usize) -> Vec<(u64, u64, usize)> {
        self.receive(count);
        self.received.drain(..).map(|message| describe(&message.bytes)).collect()
    }

    /// Sends a frame, after waiting for room.
    pub fn send(&mut self, frame: OutgoingFrame) {
        self.until("room", |this| this.push().room());
        self.push().send(frame).unwrap();
    }

    pub fn closed(&self) -> Vec<String> {
        self.pulled
            .iter()
            .filter_map(|notice| match notice {
                PullNotice::Closed { why, .. } => Some(why.to_string()),
                _ => None,
            })
            .collect()
    }
}

/// Options for a page in the directory, with waits that suit a test.
pub fn with_credit(dir: &tempfile::TempDir, change: impl FnOnce(&mut CreditOptions)) -> PushOptions {
    let mut credit = CreditOptions::new(dir.path().join("tokenizer"));
    credit.generation_wait = Duration::from_millis(500);
    change(&mut credit);
    PushOptions { credit: Some(credit), ..PushOptions::default() }
}

/// The frames that the kernel had when connections ended: sent again, or unconfirmed.
pub fn settled(this: &Loop) -> Vec<(usize, Option<Unconfirmed>)> {
    this.pushed
        .iter()
        .filter_map(|notice| match notice {
            PushNotice::Settled { resent, unconfirmed } => Some((*resent, unconfirmed.clone())),
            _ => None,
        })
        .collect()
}
