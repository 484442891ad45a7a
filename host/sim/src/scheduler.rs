//! The simulated scheduler: a PUSH that connects, and sends a load or frames step by step.
//!
//! The `zeromq` crate takes frames without a bound and forgets what it holds when its peer goes, so what is in flight is
//! bounded here, and a connection that broke is told: which frames went with it cannot be known. So this end is for
//! readers that come and go behind Afterbay, not for Afterbay itself coming and going.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Serialize;
use thiserror::Error;
use tokio::runtime::{Builder, Handle};
use tokio::sync::Notify;
use zeromq::{PushSocket, Socket, SocketEvent, SocketOptions, SocketSend, ZmqError};

use crate::Stop;
use crate::bounds::{MAX_CATCH_UP, MAX_IN_FLIGHT_BYTES, MAX_IN_FLIGHT_FRAMES, STOP_NOTICED_WITHIN};
use crate::endpoint::{EndpointError, Place};
use crate::frames::{Encoding, Frame, FramesError, Writer};
use crate::load::Load;
use crate::progress::{Progress, Teller, nanoseconds};
use crate::record::Record;
use crate::steps::Steps;

/// What the simulated scheduler is to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the reader (or Afterbay) listens: `ipc://PATH` or `tcp://HOST:PORT`.
    pub connect: String,
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
#[derive(Clone, Debug, Serialize)]
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
    /// Frames not taken at the end, after the drain timeout.
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
    // A runtime of its own, so that at the end "no task is left" means that the socket has written everything.
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        if let Source::Load(load, _) = &options.source {
            load.check().map_err(FramesError::from)?;
        }
        let link = Link::connect(&options.connect, options.connect_timeout, stop).await?;
        let mut sender = Sender {
            connect: options.connect,
            connect_timeout: options.connect_timeout,
            link,
            stop,
            teller: Teller::new(progress),
            began: Instant::now(),
            firsts: HashMap::new(),
            open: 0,
            sent: Sent {
                record: Record::new(),
                elapsed: Duration::ZERO,
                blocked: Duration::ZERO,
                steps: 0,
                broken: 0,
                undelivered: 0,
                stopped: false,
            },
        };
        sender.source(options.source, options.steps_per_second, options.drain_timeout).await?;
        sender.finish(options.drain_timeout).await
    })
}

struct Sender<'a> {
    connect: String,
    connect_timeout: Duration,
    link: Link,
    stop: &'a Stop,
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

/// One connection.
struct Link {
    socket: PushSocket,
    is_broken: Box<dyn FnMut() -> bool>,
    flight: Arc<Flight>,
}

/// What the `zeromq` crate has and has not encoded yet.
#[derive(Default)]
struct Flight {
    frames: AtomicU64,
    bytes: AtomicU64,
    changed: Notify,
}

/// A frame in flight: the crate drops it when it has encoded it.
struct Flying {
    bytes: Bytes,
    flight: Arc<Flight>,
}

impl Sender<'_> {
    async fn source(&mut self, source: Source, rate: f64, drain: Duration) -> Result<(), SchedulerError> {
        let mut pace = Pace::new(rate, self.began);
        let (load, encoding) = match source {
            Source::Load(load, encoding) => (load, encoding),
            Source::Frames(frames) => {
                for frame in frames {
                    if !pace.wait(self.stop).await || !self.send(frame, Instant::now(), None).await? {
                        self.sent.stopped = true;
                        break;
                    }
                    self.sent.steps += 1;
                }
                return Ok(());
            }
        };
        let (mut steps, writer) = (Steps::new(load), Writer::new(encoding));
        let mut frames = Vec::new();
        while !steps.is_done() {
            // Arrivals follow the steps where these have a pace, so that the same load gives the same batches.
            let now = pace.time(self.sent.steps).unwrap_or_else(|| self.began.elapsed());
            writer.step(steps.next(now), &mut frames).map_err(FramesError::from)?;
            self.sent.steps += 1;
            self.open = steps.running() as u64;
            if frames.is_empty() && rate <= 0.0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            // Encoded ahead of its time, sent at it. What is stopped here was generated, so it is still sent.
            let mut stopped = !pace.wait(self.stop).await;
            let due = Instant::now();
            for frame in frames.drain(..) {
                let deadline = stopped.then(|| due + drain);
                stopped |= !self.send(frame, due, deadline).await?;
            }
            if stopped {
                self.sent.stopped = true;
                writer.step(steps.abort_all(), &mut frames).map_err(FramesError::from)?;
                for frame in frames.drain(..) {
                    let deadline = Some(Instant::now() + drain);
                    self.send(frame, Instant::now(), deadline).await?;
                }
            }
        }
        self.open = 0;
        Ok(())
    }

    /// Sends a frame as soon as there is room. `false`: told to stop; without a deadline, the frame is sent all the
    /// same, with one it is given up there.
    async fn send(
        &mut self,
        frame: Frame,
        due: Instant,
        mut deadline: Option<Instant>,
    ) -> Result<bool, SchedulerError> {
        let waited = Instant::now();
        let mut go_on = true;
        while !self.link.flight.has_room() {
            if self.stop.is_stopped() {
                go_on = false;
                deadline = deadline.or(Some(Instant::now() + Duration::from_secs(1)));
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                self.sent.undelivered += 1;
                return Ok(false);
            }
            self.tell();
            // Either way it is looked at again.
            let _timed_out =
                tokio::time::timeout(STOP_NOTICED_WITHIN, self.link.flight.changed.notified()).await;
        }
        self.sent.blocked += waited.elapsed();
        if (self.link.is_broken)() || self.link.send(&frame.bytes).await.is_err() {
            self.sent.broken += 1;
            self.link = Link::connect(&self.connect, self.connect_timeout, self.stop).await?;
            let sent = self.link.send(&frame.bytes).await;
            sent.map_err(|last| self.not_connected(last))?;
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
        Ok(go_on && !self.stop.is_stopped())
    }

    /// Waits until everything is written.
    async fn finish(mut self, timeout: Duration) -> Result<Sent, SchedulerError> {
        let (waited, deadline) = (Instant::now(), Instant::now() + timeout);
        let flight = Arc::clone(&self.link.flight);
        let is_broken = (self.link.is_broken)();
        drop(self.link);
        while Handle::current().metrics().num_alive_tasks() > 0 {
            if Instant::now() >= deadline {
                self.sent.undelivered += flight.frames.load(Ordering::Acquire).max(1);
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.sent.broken += u32::from(is_broken);
        self.sent.blocked += waited.elapsed();
        self.sent.elapsed = self.began.elapsed();
        self.teller.end(Progress::of(&self.sent.record, self.open, self.sent.elapsed));
        Ok(self.sent)
    }

    fn tell(&mut self) {
        let (record, open, began) = (&self.sent.record, self.open, self.began);
        let now = Instant::now();
        self.teller.tell(now, || Progress::of(record, open, now.saturating_duration_since(began)));
    }

    fn not_connected(&self, last: ZmqError) -> SchedulerError {
        SchedulerError::NotConnected { endpoint: self.connect.clone(), waited: self.connect_timeout, last }
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

    /// Waits for the next step; `false`: told to stop.
    async fn wait(&mut self, stop: &Stop) -> bool {
        loop {
            if stop.is_stopped() {
                return false;
            }
            let now = Instant::now();
            let left = self.next.saturating_duration_since(now);
            if left.is_zero() {
                let late_at_most = now.checked_sub(MAX_CATCH_UP).unwrap_or(now);
                self.next = self.next.max(late_at_most).checked_add(self.step_time).unwrap_or(now);
                return true;
            }
            tokio::time::sleep(left.min(STOP_NOTICED_WITHIN)).await;
        }
    }
}

impl Link {
    async fn connect(endpoint: &str, timeout: Duration, stop: &Stop) -> Result<Link, SchedulerError> {
        Place::of(endpoint)?;
        let deadline = Instant::now() + timeout;
        loop {
            let mut options = SocketOptions::default();
            // The crate's own waiting doubles up to half a minute, and cannot be stopped.
            options.connect_timeout(Duration::from_millis(100));
            let mut socket = PushSocket::with_options(options);
            let mut events = socket.monitor();
            match socket.connect(endpoint).await {
                Ok(()) => {
                    let is_broken = Box::new(move || {
                        while let Ok(event) = events.try_recv() {
                            if matches!(event, SocketEvent::Disconnected(_)) {
                                return true;
                            }
                        }
                        false
                    });
                    return Ok(Link { socket, is_broken, flight: Arc::default() });
                }
                Err(_) if stop.is_stopped() => return Err(SchedulerError::Stopped),
                Err(last) if Instant::now() >= deadline => {
                    let endpoint = endpoint.to_owned();
                    return Err(SchedulerError::NotConnected { endpoint, waited: timeout, last });
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    async fn send(&mut self, bytes: &Bytes) -> Result<(), ZmqError> {
        self.flight.frames.fetch_add(1, Ordering::AcqRel);
        self.flight.bytes.fetch_add(bytes.len() as u64, Ordering::AcqRel);
        let flying = Flying { bytes: bytes.clone(), flight: Arc::clone(&self.flight) };
        self.socket.send(Bytes::from_owner(flying).into()).await
    }
}

impl Flight {
    fn has_room(&self) -> bool {
        let frames = self.frames.load(Ordering::Acquire);
        frames == 0
            || frames < MAX_IN_FLIGHT_FRAMES && self.bytes.load(Ordering::Acquire) < MAX_IN_FLIGHT_BYTES
    }
}

impl AsRef<[u8]> for Flying {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Flying {
    fn drop(&mut self) {
        self.flight.frames.fetch_sub(1, Ordering::AcqRel);
        self.flight.bytes.fetch_sub(self.bytes.len() as u64, Ordering::AcqRel);
        self.flight.changed.notify_one();
    }
}
