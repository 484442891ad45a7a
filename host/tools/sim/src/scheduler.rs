//! The simulated scheduler: a PUSH that connects, and sends a load step by step.
//!
//! The `zeromq` crate accepts frames without a bound and drops what it holds when its peer disappears.
//! Therefore this module bounds the frames in flight and reports each broken connection; which frames were
//! lost with it is unknown. Use it with readers that restart behind Afterbay, not with restarts of Afterbay
//! itself.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use afterbay_types::Endpoint;
use serde::Serialize;
use tokio::runtime::Builder;

use crate::Stop;
use crate::aborts::Aborts;
use crate::bounds::{MAX_CATCH_UP, STOP_NOTICED_WITHIN};
use crate::frames::{Encoding, Frame, FrameWriter};
use crate::link::{Link, LinkEnd};
use crate::load::Load;
use crate::progress::{Progress, ProgressReporter, nanoseconds};
use crate::record::Record;
use crate::steps::Steps;

/// The options of the simulated scheduler.
#[derive(Clone, Debug)]
pub struct Options {
    /// The endpoint where the reader or Afterbay listens: `ipc://PATH` or `tcp://HOST:PORT`.
    pub connect: String,
    /// The endpoint of aborts, which Afterbay binds.
    pub aborts: Option<String>,
    /// The requests to send.
    pub load: Load,
    /// The encoding of their frames.
    pub encoding: Encoding,
    /// Steps per second; 0 sends as fast as the peer takes.
    pub steps_per_second: f64,
    /// The longest wait for a listener.
    pub connect_timeout: Duration,
    /// The longest wait at the end until the peer has taken all frames.
    pub drain_timeout: Duration,
}

/// The result of the simulated scheduler.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SchedulerReport {
    /// The record of the frames given to the connection. If a connection broke, some of them may not have
    /// arrived.
    #[serde(flatten)]
    pub record: Record,
    /// The time from connecting until the peer took the last frame.
    #[serde(rename = "elapsed_ns", serialize_with = "nanoseconds")]
    pub elapsed: Duration,
    /// The part of `elapsed` spent waiting for the peer. A real scheduler would not wait.
    #[serde(rename = "blocked_ns", serialize_with = "nanoseconds")]
    pub blocked: Duration,
    /// The number of steps.
    pub steps: u64,
    /// The number of connections that broke. Frames in flight then may be lost.
    pub broken: u32,
    /// The number of frames that the peer did not take: it disappeared for good or did not read until the
    /// drain timeout.
    pub undelivered: u64,
    /// Set if the scheduler was stopped before its end. It aborted its running requests.
    pub stopped: bool,
}

impl Options {
    /// Options that send a load as fast as the peer takes, with 30 s for each timeout.
    pub fn new(connect: impl Into<String>, load: Load, encoding: Encoding) -> Options {
        Options {
            connect: connect.into(),
            aborts: None,
            load,
            encoding,
            steps_per_second: 0.0,
            connect_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(30),
        }
    }
}

/// Runs until everything is sent and in the peer's kernel buffers, or until it is stopped.
///
/// # Errors
/// An endpoint or the load is invalid, or nobody listens.
pub fn run(
    options: Options,
    stop: &Stop,
    progress: &mut dyn FnMut(&Progress),
) -> anyhow::Result<SchedulerReport> {
    // `Link::finish` needs a separate runtime.
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let Options { connect, aborts, load, encoding, steps_per_second, connect_timeout, drain_timeout } =
        options;
    connect.parse::<Endpoint>()?;
    aborts.as_deref().map(str::parse::<Endpoint>).transpose()?;
    load.check()?;
    runtime.block_on(async {
        let link = Link::connect(&connect, connect_timeout, stop).await?;
        let mut sender = Sender {
            connect,
            connect_timeout,
            drain_timeout,
            link: Some(link),
            stop,
            stopped_at: None,
            reporter: ProgressReporter::new(progress),
            start: Instant::now(),
            firsts: HashMap::new(),
            open: 0,
            sent: SchedulerReport::default(),
        };
        let aborts = aborts.map(|endpoint| Aborts::follow(endpoint, encoding.wire)).transpose()?;
        sender.load(load, encoding, steps_per_second, aborts).await?;
        Ok(sender.finish().await)
    })
}

struct Sender<'a> {
    connect: String,
    connect_timeout: Duration,
    drain_timeout: Duration,
    /// `None` if the peer disappeared and did not come back.
    link: Option<Link>,
    stop: &'a Stop,
    stopped_at: Option<Instant>,
    reporter: ProgressReporter<'a>,
    start: Instant,
    /// The times at which the first tokens of live requests were sent.
    firsts: HashMap<Box<str>, Instant>,
    open: u64,
    sent: SchedulerReport,
}

/// The times at which steps are due.
struct Pace {
    step_time: Duration,
    next: Instant,
}

impl Sender<'_> {
    async fn load(
        &mut self,
        load: Load,
        encoding: Encoding,
        rate: f64,
        mut aborts: Option<Aborts>,
    ) -> anyhow::Result<()> {
        let mut pace = Pace::new(rate, self.start);
        let (mut steps, writer) = (Steps::new(load), FrameWriter::new(encoding));
        let mut frames = Vec::new();
        while !steps.is_done() {
            while let Some(rid) = aborts.as_mut().and_then(Aborts::next) {
                steps.abort(&rid);
            }
            // Arrivals follow the steps if there is a pace, so that the same load gives the same batches.
            let now = pace.time(self.sent.steps).unwrap_or_else(|| self.start.elapsed());
            let step = if self.is_stopped() { steps.abort_all() } else { steps.next(now) };
            writer.step(step, &mut frames)?;
            self.sent.steps += 1;
            self.open = steps.running() as u64;
            if frames.is_empty() && rate <= 0.0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            // The step is encoded in advance and sent when it is due.
            pace.wait(self.stop).await;
            let due = Instant::now();
            for frame in frames.drain(..) {
                self.send(frame, due).await;
            }
        }
        Ok(())
    }

    /// Sends a frame as soon as there is room. After a stop it waits at most the drain timeout.
    async fn send(&mut self, frame: Frame, due: Instant) {
        let wait_start = Instant::now();
        while self.link.as_ref().is_some_and(|link| !link.has_room()) {
            if self.is_stopped() && self.stopped_at.is_some_and(|at| at.elapsed() >= self.drain_timeout) {
                self.sent.undelivered += 1;
                return;
            }
            self.report_progress();
            if let Some(link) = &self.link {
                link.changed().await;
            }
        }
        self.sent.blocked += wait_start.elapsed();
        if !self.hand_over(&frame).await {
            self.sent.undelivered += 1;
            return;
        }
        frame.record(&mut self.sent.record);
        for rid in frame.started {
            self.firsts.insert(rid, due);
        }
        for (rid, mut request) in frame.ended {
            request.first = self.firsts.remove(&rid);
            self.sent.record.end(&rid, request);
        }
        self.report_progress();
        // The socket's own task writes, on this thread.
        tokio::task::yield_now().await;
    }

    /// Gives a frame to the connection. If the connection is broken, connects again.
    async fn hand_over(&mut self, frame: &Frame) -> bool {
        while let Some(link) = &mut self.link {
            if !link.is_broken() && link.send(&frame.bytes).await.is_ok() {
                return true;
            }
            self.sent.broken += 1;
            self.link = Link::connect(&self.connect, self.connect_timeout, self.stop).await.ok();
        }
        false
    }

    fn is_stopped(&mut self) -> bool {
        if self.stop.is_stopped() && self.stopped_at.is_none() {
            self.stopped_at = Some(Instant::now());
        }
        self.stopped_at.is_some()
    }

    async fn finish(mut self) -> SchedulerReport {
        let wait_start = Instant::now();
        if let Some(link) = self.link.take() {
            let LinkEnd { is_broken, undelivered } = link.finish(self.drain_timeout).await;
            self.sent.broken += u32::from(is_broken);
            self.sent.undelivered += undelivered;
        }
        self.sent.stopped = self.stopped_at.is_some();
        self.sent.blocked += wait_start.elapsed();
        self.sent.elapsed = self.start.elapsed();
        self.reporter.end(Progress::of(&self.sent.record, self.open, self.sent.elapsed));
        self.sent
    }

    fn report_progress(&mut self) {
        let (record, open, start) = (&self.sent.record, self.open, self.start);
        let now = Instant::now();
        self.reporter.report(now, || Progress::of(record, open, now.saturating_duration_since(start)));
    }
}

impl Pace {
    fn new(steps_per_second: f64, now: Instant) -> Pace {
        let step_time = if steps_per_second > 0.0 {
            Duration::try_from_secs_f64(1.0 / steps_per_second).unwrap_or(Duration::MAX)
        } else {
            Duration::ZERO
        };
        Pace { step_time, next: now }
    }

    /// The time of a step in the load's own time; `None` without a pace.
    fn time(&self, step: u64) -> Option<Duration> {
        let step = u32::try_from(step).unwrap_or(u32::MAX);
        (!self.step_time.is_zero()).then(|| self.step_time.saturating_mul(step))
    }

    /// Waits for the next step or a stop.
    async fn wait(&mut self, stop: &Stop) {
        while !stop.is_stopped() {
            let now = Instant::now();
            let left = self.next.saturating_duration_since(now);
            if left.is_zero() {
                let earliest = now.checked_sub(MAX_CATCH_UP).unwrap_or(now);
                self.next = self.next.max(earliest).checked_add(self.step_time).unwrap_or(now);
                return;
            }
            tokio::time::sleep(left.min(STOP_NOTICED_WITHIN)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_steps_are_made_up_for_only_within_the_bound() {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut pace = Pace::new(1000.0, Instant::now());
            std::thread::sleep(Duration::from_millis(400));
            let start = Instant::now();
            // These steps run at once: those within the bound, one more, and those that become due meanwhile.
            for _ in 0..MAX_CATCH_UP.as_millis() + 21 {
                pace.wait(&Stop::new()).await;
            }
            let least = Duration::from_millis(19);
            assert!(start.elapsed() >= least, "not all of 400 late steps are made up for");
        });
    }
}
