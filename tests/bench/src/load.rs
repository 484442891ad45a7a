//! Drives a case: a sender's thread and a reader's, each with its own poll.

use crate::between::{Between, Running};
use crate::line::at;
use crate::traffic::Traffic;
use afterbay_sockets::{Endpoint, OutgoingFrame, Pull, PullOptions, Push, PushOptions, TokenRange};
use anyhow::{Context, ensure};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Frames that may be under way: enough to keep every stage busy, few enough that none waits long.
const IN_FLIGHT: u64 = 64;
/// Bytes likewise.
const IN_FLIGHT_BYTES: u64 = 16 << 20;
/// Frames sent before anything is measured.
const WARM_UP: u64 = 128;
/// How long anything may stand still.
const STALL: Duration = Duration::from_secs(20);
/// How long one of two cases is driven before the other.
const TURN: Duration = Duration::from_millis(100);

#[derive(Clone, Copy)]
pub(crate) struct Throughput {
    /// The proxy's own.
    pub(crate) cpu_ns_per_row: f64,
    pub(crate) rows_per_second: f64,
}

#[derive(Clone, Copy)]
pub(crate) struct Latency {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// As much as goes through, for that long.
pub(crate) fn throughput(case: &Between, traffic: &Traffic, time: Duration) -> anyhow::Result<Throughput> {
    Driven::start(case, traffic)?.drive_for(time)
}

/// Two cases that run beside each other, driven in turns of a tenth of a second, so long each: what the machine does meanwhile is
/// in both.
pub(crate) fn in_turns(
    cases: [&Between; 2],
    traffic: &Traffic,
    time: Duration,
) -> anyhow::Result<Vec<[Throughput; 2]>> {
    let [one, other] = cases;
    let (mut one, mut other) = (Driven::start(one, traffic)?, Driven::start(other, traffic)?);
    let turns = (time.as_nanos() / TURN.as_nanos()).max(1);
    (0..turns).map(|_| Ok([one.drive_for(TURN)?, other.drive_for(TURN)?])).collect()
}

/// A case that runs before a reader.
struct Stand {
    between: Running,
    _reader: Reader,
    /// What it keeps there goes with it.
    _dir: tempfile::TempDir,
}

impl Stand {
    /// `take` is given every frame.
    fn start(case: &Between, take: impl FnMut(bytes::Bytes) + Send + 'static) -> anyhow::Result<Stand> {
        let dir = tempfile::Builder::new().prefix("afb").tempdir_in(case.within())?;
        let endpoint = format!("ipc://{}/reader", dir.path().display());
        let reader = Reader::start(&endpoint, take)?;
        let between = case.start(dir.path(), &endpoint)?;
        Ok(Stand { between, _reader: reader, _dir: dir })
    }
}

/// A case that runs, warm, between a sender and a reader that counts.
struct Driven<'t> {
    traffic: &'t Traffic,
    sender: Sender,
    received: Arc<AtomicU64>,
    stand: Stand,
}

impl<'t> Driven<'t> {
    fn start(case: &Between, traffic: &'t Traffic) -> anyhow::Result<Driven<'t>> {
        let received = Arc::new(AtomicU64::new(0));
        let arrived = received.clone();
        let stand = Stand::start(case, move |_| {
            arrived.fetch_add(1, Ordering::Release);
        })?;
        let sender = Sender::connect(&stand.between.ingress)?;
        let mut driven = Driven { traffic, sender, received, stand };
        driven.drive(|sent| sent >= WARM_UP)?;
        Ok(driven)
    }

    fn drive_for(&mut self, time: Duration) -> anyhow::Result<Throughput> {
        let (begun, cpu) = (Instant::now(), self.stand.between.cpu()?);
        let frames = self.drive(|_| begun.elapsed() >= time)?;
        let (elapsed, cpu) = (begun.elapsed(), self.stand.between.cpu()?.saturating_sub(cpu));
        let rows = (frames * self.traffic.rows_per_frame) as f64;
        Ok(Throughput {
            cpu_ns_per_row: cpu.as_nanos() as f64 / rows,
            rows_per_second: rows / elapsed.as_secs_f64(),
        })
    }

    /// Sends until that is so of how many were sent, and all of them have arrived.
    fn drive(&mut self, until: impl Fn(u64) -> bool) -> anyhow::Result<u64> {
        let bytes = self.traffic.frames.iter().map(|frame| frame.len() as u64).max().unwrap_or(1);
        let window = IN_FLIGHT.min(IN_FLIGHT_BYTES / bytes).max(2);
        let from = self.sender.sent;
        let mut send = || {
            while !until(self.sender.sent - from) {
                self.sender.wait_for(&self.received, window)?;
                self.sender.send(self.traffic.frame(self.sender.sent))?;
            }
            self.sender.wait_for(&self.received, 1)
        };
        let sent = send();
        self.stand.between.explain(sent)?;
        Ok(self.sender.sent - from)
    }
}

/// One frame at a time, from its send to its receipt.
pub(crate) fn latency(case: &Between, traffic: &Traffic, time: Duration) -> anyhow::Result<Latency> {
    let (arrived, arrivals) = mpsc::channel();
    let stand = Stand::start(case, move |_| {
        // The other end is gone only at the end.
        let _told = arrived.send(Instant::now());
    })?;
    let measured = one_by_one(&stand.between, traffic, &arrivals, time);
    stand.between.explain(measured)
}

fn one_by_one(
    between: &Running,
    traffic: &Traffic,
    arrivals: &mpsc::Receiver<Instant>,
    time: Duration,
) -> anyhow::Result<Latency> {
    let mut sender = Sender::connect(&between.ingress)?;
    let mut waits = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < time || sender.sent < 2 * WARM_UP {
        let frame = traffic.frame(sender.sent);
        let sent = Instant::now();
        sender.send(frame)?;
        sender.settle()?;
        let arrived: Instant = arrivals.recv_timeout(STALL).context("a frame did not arrive")?;
        if sender.sent > WARM_UP {
            waits.push(arrived.saturating_duration_since(sent));
        }
        // A scheduler's steps have time between them; so has whatever a proxy does after it has sent.
        std::thread::sleep(Duration::from_micros(200));
    }
    waits.sort_unstable();
    Ok(Latency { p50_us: at(&waits, 0.5) * 1e3, p99_us: at(&waits, 0.99) * 1e3 })
}

/// A PULL on a thread of its own.
pub(crate) struct Reader {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Reader {
    /// Binds it; `take` is given every frame.
    pub(crate) fn start(
        endpoint: &str,
        mut take: impl FnMut(bytes::Bytes) + Send + 'static,
    ) -> anyhow::Result<Reader> {
        let mut poll = mio::Poll::new()?;
        let options = PullOptions::default();
        let tokens = TokenRange { first: 0, count: 1 + options.max_peers };
        let mut pull = Pull::bind(poll.registry(), tokens, &endpoint.parse::<Endpoint>()?, options)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut events = mio::Events::with_capacity(16);
            while !stopped.load(Ordering::Relaxed) {
                let wait = if pull.has_more() { Duration::ZERO } else { Duration::from_millis(50) };
                if poll.poll(&mut events, Some(wait)).is_err() {
                    continue;
                }
                let now = Instant::now();
                events.iter().for_each(|event| pull.ready(event, now));
                while let Some(message) = pull.receive() {
                    take(message.bytes);
                }
            }
        });
        Ok(Reader { stop, thread: Some(thread) })
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A reader that panicked has failed the run already.
            let _joined = thread.join();
        }
    }
}

/// A PUSH that is driven by hand.
pub(crate) struct Sender {
    poll: mio::Poll,
    events: mio::Events,
    push: Push,
    /// Frames so far.
    pub(crate) sent: u64,
}

impl Sender {
    pub(crate) fn connect(endpoint: &str) -> anyhow::Result<Sender> {
        let poll = mio::Poll::new()?;
        let tokens = TokenRange { first: 0, count: 1 };
        let endpoint: Endpoint = endpoint.parse()?;
        let push = Push::connect(poll.registry(), tokens, &endpoint, PushOptions::default(), Instant::now())?;
        let mut sender = Sender { poll, events: mio::Events::with_capacity(16), push, sent: 0 };
        let begun = Instant::now();
        while !sender.push.is_connected() {
            ensure!(begun.elapsed() < STALL, "nobody listens on {endpoint}");
            sender.turn(Duration::from_millis(10))?;
        }
        Ok(sender)
    }

    fn turn(&mut self, wait: Duration) -> anyhow::Result<()> {
        self.poll.poll(&mut self.events, Some(wait))?;
        let now = Instant::now();
        for event in &self.events {
            self.push.ready(event, now);
        }
        self.push.tick(now);
        Ok(())
    }

    pub(crate) fn send(&mut self, bytes: bytes::Bytes) -> anyhow::Result<()> {
        self.sent += 1;
        let frame = OutgoingFrame { sequence: self.sent, bytes, counted: false };
        ensure!(self.push.send(frame).is_ok(), "the sender's queue is full");
        self.push.flush(Instant::now());
        Ok(())
    }

    /// Until the kernel has everything.
    pub(crate) fn settle(&mut self) -> anyhow::Result<()> {
        while !self.push.is_drained() {
            self.turn(Duration::from_millis(1))?;
        }
        Ok(())
    }

    /// Until fewer than so many are under way.
    pub(crate) fn wait_for(&mut self, received: &AtomicU64, window: u64) -> anyhow::Result<()> {
        let begun = Instant::now();
        while self.sent - received.load(Ordering::Acquire) >= window {
            self.turn(Duration::from_micros(100))?;
            ensure!(begun.elapsed() < STALL, "frame {} did not arrive", received.load(Ordering::Acquire) + 1);
        }
        Ok(())
    }
}
