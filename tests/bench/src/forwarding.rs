//! Throughput and latency of a case: a sender and a reader drive a proxy between them.

use crate::figures::percentile_ms;
use crate::peers::{Reader, STALL, Sender};
use crate::proxy::{ProxyCase, RunningProxy};
use afterbay_cost::traffic::Traffic;
use anyhow::Context;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// The most frames in flight: enough to keep every stage busy, few enough that none waits long.
const IN_FLIGHT: u64 = 64;
/// The most bytes in flight.
const IN_FLIGHT_BYTES: u64 = 16 << 20;
/// The number of frames sent before a measurement begins.
const WARM_UP: u64 = 128;
/// The time for which [`in_turns`] drives one case before the other.
const TURN: Duration = Duration::from_millis(100);

#[derive(Clone, Copy)]
pub(crate) struct Throughput {
    /// CPU time of the proxy's process alone.
    pub(crate) cpu_ns_per_row: f64,
    pub(crate) rows_per_second: f64,
}

#[derive(Clone, Copy)]
pub(crate) struct Latency {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// The largest throughput of a case, measured for `time`.
pub(crate) fn throughput(case: &ProxyCase, traffic: &Traffic, time: Duration) -> anyhow::Result<Throughput> {
    LoadedCase::start(case, traffic)?.drive_for(time)
}

/// The throughput of two cases that run side by side and are driven in turns of [`TURN`], each for `time` in total. Changes in the
/// machine's speed affect both.
pub(crate) fn in_turns(
    cases: [&ProxyCase; 2],
    traffic: &Traffic,
    time: Duration,
) -> anyhow::Result<Vec<[Throughput; 2]>> {
    let [one, other] = cases;
    let (mut one, mut other) = (LoadedCase::start(one, traffic)?, LoadedCase::start(other, traffic)?);
    let turns = (time.as_nanos() / TURN.as_nanos()).max(1);
    (0..turns).map(|_| Ok([one.drive_for(TURN)?, other.drive_for(TURN)?])).collect()
}

/// A running case and its reader.
struct Setup {
    proxy: RunningProxy,
    _reader: Reader,
    /// The case's directory, removed when this is dropped.
    _dir: tempfile::TempDir,
}

impl Setup {
    /// Starts both; the reader passes every frame to `take`.
    fn start(case: &ProxyCase, take: impl FnMut(bytes::Bytes) + Send + 'static) -> anyhow::Result<Setup> {
        let dir = tempfile::Builder::new().prefix("afb").tempdir_in(case.within())?;
        let endpoint = format!("ipc://{}/reader", dir.path().display());
        let reader = Reader::start(&endpoint, take)?;
        let proxy = case.start(dir.path(), &endpoint)?;
        Ok(Setup { proxy, _reader: reader, _dir: dir })
    }
}

/// A running and warm case between a sender and a counting reader.
struct LoadedCase<'t> {
    traffic: &'t Traffic,
    sender: Sender,
    received: Arc<AtomicU64>,
    setup: Setup,
}

impl<'t> LoadedCase<'t> {
    fn start(case: &ProxyCase, traffic: &'t Traffic) -> anyhow::Result<LoadedCase<'t>> {
        let received = Arc::new(AtomicU64::new(0));
        let arrived = received.clone();
        let setup = Setup::start(case, move |_| {
            arrived.fetch_add(1, Ordering::Release);
        })?;
        let sender = Sender::connect(&setup.proxy.ingress)?;
        let mut driven = LoadedCase { traffic, sender, received, setup };
        driven.drive(|sent| sent >= WARM_UP)?;
        Ok(driven)
    }

    fn drive_for(&mut self, time: Duration) -> anyhow::Result<Throughput> {
        let (begun, cpu) = (Instant::now(), self.setup.proxy.cpu()?);
        let frames = self.drive(|_| begun.elapsed() >= time)?;
        let (elapsed, cpu) = (begun.elapsed(), self.setup.proxy.cpu()?.saturating_sub(cpu));
        let rows = (frames * self.traffic.rows_per_frame) as f64;
        Ok(Throughput {
            cpu_ns_per_row: cpu.as_nanos() as f64 / rows,
            rows_per_second: rows / elapsed.as_secs_f64(),
        })
    }

    /// Sends until `until` holds for the number of frames sent, then waits until all have arrived. Returns that number.
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
        self.setup.proxy.explain(sent)?;
        Ok(self.sender.sent - from)
    }
}

/// The time from a frame's send to its receipt, with one frame in flight.
pub(crate) fn latency(case: &ProxyCase, traffic: &Traffic, time: Duration) -> anyhow::Result<Latency> {
    let (arrived, arrivals) = mpsc::channel();
    let setup = Setup::start(case, move |_| {
        // The receiver is dropped only at the end.
        let _sent = arrived.send(Instant::now());
    })?;
    let measured = one_by_one(&setup.proxy, traffic, &arrivals, time);
    setup.proxy.explain(measured)
}

fn one_by_one(
    proxy: &RunningProxy,
    traffic: &Traffic,
    arrivals: &mpsc::Receiver<Instant>,
    time: Duration,
) -> anyhow::Result<Latency> {
    let mut sender = Sender::connect(&proxy.ingress)?;
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
        // Like a scheduler between two steps: the proxy gets time for its work after a send.
        std::thread::sleep(Duration::from_micros(200));
    }
    waits.sort_unstable();
    Ok(Latency { p50_us: percentile_ms(&waits, 0.5) * 1e3, p99_us: percentile_ms(&waits, 0.99) * 1e3 })
}
