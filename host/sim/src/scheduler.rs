//! The simulated scheduler: a PUSH that connects, and sends a load or frames step by step.
//!
//! The `zeromq` crate takes frames without a bound and forgets what it holds when its peer goes, so what is in flight is
//! bounded here, and a connection that broke is told: which frames went with it cannot be known. So this end is for
//! readers that come and go behind Afterbay, not for Afterbay itself coming and going.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use afterbay_types::{Endpoint, EndpointError};
use serde::Serialize;
use thiserror::Error;
use tokio::runtime::Builder;
use zeromq::ZmqError;

use crate::Stop;
use crate::aborts::Aborts;
use crate::bounds::{MAX_CATCH_UP, STOP_NOTICED_WITHIN};
use crate::frames::{Encoding, Frame, FramesError, Writer};
use crate::link::{Link, NoLink};
use crate::load::Load;
use crate::progress::{Progress, Teller, nanoseconds};
use crate::record::Record;
use crate::steps::Steps;

/// What the simulated scheduler is to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the reader (or Afterbay) listens: `ipc://PATH` or `tcp://HOST:PORT`.
    pub connect: String,
    /// Where to take aborts from, which Afterbay binds as PUSH. Only a load has requests that can be aborted.
    pub aborts: Option<String>,
    /// What to send.
    pub source: Source,
    /// Steps in a second; 0: as fast as they are taken.
    pub steps_per_second: f64,
    /// How long to wait for somebody to listen.
    pub connect_timeout: Duration,
    /// How long to wait at the end until what was sent is taken.
    pub drain_timeout: Duration,
}

/// What is sent.
#[derive(Clone, Debug)]
pub enum Source {
    /// Requests.
    Load(Load, Encoding),
    /// Frames, one a step.
    Frames(Vec<Frame>),
}

/// What was sent.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Sent {
    /// Of what was handed over. Where a connection broke, some of it may not have arrived.
    #[serde(flatten)]
    pub record: Record,
    /// From being connected to the last frame being taken.
    #[serde(rename = "elapsed_ns", serialize_with = "nanoseconds")]
    pub elapsed: Duration,
    /// Of this, waiting for the peer to take frames. A real scheduler would not have waited.
    #[serde(rename = "blocked_ns", serialize_with = "nanoseconds")]
    pub blocked: Duration,
    /// Steps taken.
    pub steps: u64,
    /// Connections that broke; what was in flight then may be lost.
    pub broken: u32,
    /// Frames not taken: the peer went away for good, or did not read until the drain timeout.
    pub undelivered: u64,
    /// Told to stop before its end; requests that ran were aborted.
    pub stopped: bool,
}

/// Why it could not go on.
#[derive(Debug, Error)]
pub enum SchedulerError {
    /// The name.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// Nobody listened.
    #[error("endpoint {endpoint}: nobody listens there after {} s: {last}", waited.as_secs_f32())]
    NotConnected {
        /// The name.
        endpoint: String,
        /// For how long.
        waited: Duration,
        /// The last attempt's error.
        last: ZmqError,
    },
    /// The load.
    #[error(transparent)]
    Frames(#[from] FramesError),
    /// Told to stop before it was connected.
    #[error("stopped before it was connected")]
    Stopped,
    /// No runtime.
    #[error("simulated scheduler: {0}")]
    Runtime(#[from] std::io::Error),
}

impl Options {
    /// Sends `source` as fast as it is taken; waits 30 s for a listener and 30 s at the end.
    pub fn new(connect: impl Into<String>, source: Source) -> Options {
        Options {
            connect: connect.into(),
            aborts: None,
            source,
            steps_per_second: 0.0,
            connect_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(30),
        }
    }
}

/// Runs until everything is sent and taken by the peer's kernel buffers, or until it is stopped.
pub fn run(
    options: Options,
    stop: &Stop,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Sent, SchedulerError> {
    // A runtime of its own: see `Link::finish`.
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let Options { connect, aborts, source, steps_per_second, connect_timeout, drain_timeout } = options;
    connect.parse::<Endpoint>()?;
    aborts.as_deref().map(str::parse::<Endpoint>).transpose()?;
    if let Source::Load(load, _) = &source {
        load.check().map_err(FramesError::from)?;
    }
    runtime.block_on(async {
        let link = Link::connect(&connect, connect_timeout, stop).await.map_err(|no_link| match no_link {
            NoLink::Stopped => SchedulerError::Stopped,
            NoLink::Nobody(last) => {
                SchedulerError::NotConnected { endpoint: connect.clone(), waited: connect_timeout, last }
            }
        })?;
        let mut sender = Sender {
            connect,
            connect_timeout,
            drain_timeout,
            link: Some(link),
            stop,
            stopped_at: None,
            teller: Teller::new(progress),
            began: Instant::now(),
            firsts: HashMap::new(),
            open: 0,
            sent: Sent::default(),
        };
        match source {
            Source::Load(load, encoding) => {
                let aborts = aborts.map(Aborts::follow).transpose()?;
                sender.load(load, encoding, steps_per_second, aborts).await?;
            }
            Source::Frames(frames) => sender.frames(frames, steps_per_second).await,
        }
        Ok(sender.finish().await)
    })
}

struct Sender<'a> {
    connect: String,
    connect_timeout: Duration,
    drain_timeout: Duration,
    /// `None`: the peer went away and did not come back.
    link: Option<Link>,
    stop: &'a Stop,
    stopped_at: Option<Instant>,
    teller: Teller<'a>,
    began: Instant,
    /// When the first token of each live request was sent.
    firsts: HashMap<Box<str>, Instant>,
    open: u64,
    sent: Sent,
}

/// When the steps are due.
struct Pace {
    step_time: Duration,
    next: Instant,
}

impl Sender<'_> {
    async fn frames(&mut self, frames: Vec<Frame>, rate: f64) {
        let mut pace = Pace::new(rate, self.began);
        for frame in frames {
            pace.wait(self.stop).await;
            if self.is_stopped() {
                break;
            }
            self.send(frame, Instant::now()).await;
            self.sent.steps += 1;
        }
    }

    async fn load(
        &mut self,
        load: Load,
        encoding: Encoding,
        rate: f64,
        mut aborts: Option<Aborts>,
    ) -> Result<(), SchedulerError> {
        let mut pace = Pace::new(rate, self.began);
        let (mut steps, writer) = (Steps::new(load), Writer::new(encoding));
        let mut frames = Vec::new();
        while !steps.is_done() {
            while let Some(rid) = aborts.as_mut().and_then(Aborts::next) {
                steps.abort(&rid);
            }
            // Arrivals follow the steps where these have a pace, so that the same load gives the same batches.
            let now = pace.time(self.sent.steps).unwrap_or_else(|| self.began.elapsed());
            let step = if self.is_stopped() { steps.abort_all() } else { steps.next(now) };
            writer.step(step, &mut frames).map_err(FramesError::from)?;
            self.sent.steps += 1;
            self.open = steps.running() as u64;
            if frames.is_empty() && rate <= 0.0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            // Encoded ahead of its time, sent at it.
            pace.wait(self.stop).await;
            let due = Instant::now();
            for frame in frames.drain(..) {
                self.send(frame, due).await;
            }
        }
        Ok(())
    }

    /// Sends a frame as soon as there is room. Told to stop, it waits for that only so long.
    async fn send(&mut self, frame: Frame, due: Instant) {
        let waited = Instant::now();
        while self.link.as_ref().is_some_and(|link| !link.has_room()) {
            if self.is_stopped() && self.stopped_at.is_some_and(|at| at.elapsed() >= self.drain_timeout) {
                self.sent.undelivered += 1;
                return;
            }
            self.tell();
            if let Some(link) = &self.link {
                link.changed().await;
            }
        }
        self.sent.blocked += waited.elapsed();
        if !self.hand_over(&frame).await {
            self.sent.undelivered += 1;
            return;
        }
        frame.record(&mut self.sent.record);
        for rid in frame.started {
            self.firsts.insert(rid, due);
        }
        for ended in frame.ended {
            let first = self.firsts.remove(&ended.rid);
            self.sent.record.end(&ended.rid, ended.request(first));
        }
        self.tell();
        // The socket's own task writes, on this thread.
        tokio::task::yield_now().await;
    }

    /// Hands a frame to the connection, or to the next one where that is broken.
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

    async fn finish(mut self) -> Sent {
        let waited = Instant::now();
        if let Some(link) = self.link.take() {
            let end = link.finish(self.drain_timeout).await;
            self.sent.broken += u32::from(end.is_broken);
            self.sent.undelivered += end.undelivered;
        }
        self.sent.stopped = self.stopped_at.is_some();
        self.sent.blocked += waited.elapsed();
        self.sent.elapsed = self.began.elapsed();
        self.teller.end(Progress::of(&self.sent.record, self.open, self.sent.elapsed));
        self.sent
    }

    fn tell(&mut self) {
        let (record, open, began) = (&self.sent.record, self.open, self.began);
        let now = Instant::now();
        self.teller.tell(now, || Progress::of(record, open, now.saturating_duration_since(began)));
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

    /// When a step is in the load's own time; `None` without a pace.
    fn time(&self, step: u64) -> Option<Duration> {
        let step = u32::try_from(step).unwrap_or(u32::MAX);
        (!self.step_time.is_zero()).then(|| self.step_time.saturating_mul(step))
    }

    /// Waits for the next step, or until told to stop.
    async fn wait(&mut self, stop: &Stop) {
        while !stop.is_stopped() {
            let now = Instant::now();
            let left = self.next.saturating_duration_since(now);
            if left.is_zero() {
                let late_at_most = now.checked_sub(MAX_CATCH_UP).unwrap_or(now);
                self.next = self.next.max(late_at_most).checked_add(self.step_time).unwrap_or(now);
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
    fn steps_that_are_late_are_caught_up_with_only_so_far() {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut pace = Pace::new(1000.0, Instant::now());
            std::thread::sleep(Duration::from_millis(400));
            let began = Instant::now();
            // At once: what fits into the bound, one more, and what becomes due meanwhile.
            for _ in 0..MAX_CATCH_UP.as_millis() + 21 {
                pace.wait(&Stop::new()).await;
            }
            let least = Duration::from_millis(19);
            assert!(began.elapsed() >= least, "400 late steps are not all caught up with");
        });
    }
}
