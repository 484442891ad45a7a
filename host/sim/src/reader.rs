//! The simulated reader: a PULL that binds, takes its time over each row, checks every request, may count what it has
//! finished on a credit page, and may go away and come back.
//!
//! A restart is as hard as a crash: the listener and all connections go at once, between two frames, with whatever the
//! kernel and the `zeromq` crate had buffered. Only the check lives on, as the one who watches.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use afterbay_sockets::credit::{CreditWriter, CreditWriterError};
use serde::Serialize;
use thiserror::Error;
use tokio::runtime::Builder;
use tokio::time::MissedTickBehavior;
use zeromq::{PullSocket, Socket, SocketRecv, ZmqError, ZmqMessage};

use crate::Stop;
use crate::bounds::STOP_NOTICED_WITHIN;
use crate::check::{Checker, Expect, Faults, Reading};
use crate::endpoint::{EndpointError, listen, remove};
use crate::progress::{Progress, Teller, nanoseconds};
use crate::record::Record;
use crate::work::{Cost, Work};

/// What the simulated reader is to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen: `ipc://PATH` or `tcp://HOST:PORT`.
    pub bind: String,
    /// How the stream is read.
    pub reading: Reading,
    /// What is known of its ids.
    pub expect: Expect,
    /// What a row costs.
    pub cost: Cost,
    /// Whether it goes away and comes back.
    pub restarts: Option<Restarts>,
    /// A credit page to count finished frames on.
    pub credit: Option<PathBuf>,
    /// When it ends, if not by being stopped.
    pub until: Until,
}

/// When the reader goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restarts {
    /// After so many frames, each time; at least one.
    pub every_frames: u64,
    /// For how long it is away.
    pub pause: Duration,
    /// How often; `None`: again and again.
    pub times: Option<u32>,
}

/// When the reader ends: at the first of these that comes true.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Until {
    /// So many requests have ended.
    pub requests: Option<u64>,
    /// So many frames have come.
    pub frames: Option<u64>,
    /// Nothing has come for so long, after something had.
    pub idle: Option<Duration>,
    /// How long it goes on reading after `requests` or `frames` has come true, for what should not come.
    pub linger: Duration,
}

/// What was received.
#[derive(Clone, Debug, Serialize)]
pub struct Received {
    /// Of what came.
    #[serde(flatten)]
    pub record: Record,
    /// What was wrong with it.
    pub faults: Faults,
    /// Requests that began and did not end.
    pub open: u64,
    /// From the first frame to the last.
    #[serde(rename = "elapsed_ns", serialize_with = "nanoseconds")]
    pub elapsed: Duration,
    /// How often it went away and came back.
    pub restarts: u32,
    /// Connections that ended in the middle of a frame, or that were no ZMTP.
    pub broken: u32,
    /// Told to stop before its end.
    pub stopped: bool,
}

/// Why it could not go on.
#[derive(Debug, Error)]
pub enum ReaderError {
    /// The name.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The socket.
    #[error("endpoint {endpoint}: {source}")]
    Bind {
        /// The name.
        endpoint: String,
        /// Why.
        source: ZmqError,
    },
    /// The credit page.
    #[error(transparent)]
    Credit(#[from] CreditWriterError),
    /// No runtime.
    #[error("simulated reader: {0}")]
    Runtime(#[from] std::io::Error),
}

impl Options {
    /// Listens at `bind`, reads deltas of a simulated scheduler at no cost, until it is stopped.
    pub fn new(bind: impl Into<String>) -> Options {
        Options {
            bind: bind.into(),
            reading: Reading::Deltas,
            expect: Expect::Simulated,
            cost: Cost::default(),
            restarts: None,
            credit: None,
            until: Until::default(),
        }
    }
}

impl Received {
    /// Whether every request that began ended, with all of its tokens, each once and in order.
    pub fn is_whole(&self) -> bool {
        self.faults.is_none() && self.open == 0
    }
}

/// Reads until it is stopped or [`Until`] says so.
pub fn run(
    options: Options,
    stop: &Stop,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Received, ReaderError> {
    let mut reader = Reader {
        checker: Checker::new(options.reading, options.expect),
        work: Work::new(options.cost),
        stop,
        teller: Teller::new(progress),
        until: options.until,
        first: None,
        last: None,
        ends_at: None,
        restarts: 0,
        broken: 0,
    };
    loop {
        let credit = options.credit.as_deref().map(CreditWriter::open).transpose()?;
        let more = options.restarts.filter(|it| it.times.is_none_or(|times| reader.restarts < times));
        // A life is a runtime: when it is dropped everything of the socket is gone, as with a process.
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let end = runtime.block_on(reader.live(&options.bind, credit, more.map(|it| it.every_frames)))?;
        drop(runtime);
        match (end, more) {
            (End::Restart, Some(restarts)) => {
                reader.restarts += 1;
                reader.sleep(restarts.pause);
            }
            (End::Restart | End::Done, _) => break,
        }
    }
    remove(&options.bind);
    Ok(reader.finish())
}

struct Reader<'a> {
    checker: Checker,
    work: Work,
    stop: &'a Stop,
    teller: Teller<'a>,
    until: Until,
    first: Option<Instant>,
    last: Option<Instant>,
    /// Everything wanted has come; it lingers until here.
    ends_at: Option<Instant>,
    restarts: u32,
    broken: u32,
}

enum End {
    Restart,
    Done,
}

impl Reader<'_> {
    /// From being bound to going away.
    async fn live(
        &mut self,
        endpoint: &str,
        mut credit: Option<CreditWriter>,
        frames: Option<u64>,
    ) -> Result<End, ReaderError> {
        let bind = |source| ReaderError::Bind { endpoint: endpoint.to_owned(), source };
        let mut socket = PullSocket::new();
        socket.bind_listener(listen(endpoint)?).await.map_err(bind)?;
        let mut tick = tokio::time::interval(STOP_NOTICED_WITHIN);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut frames_left = frames.map(|frames| frames.max(1));
        loop {
            let message = tokio::select! {
                biased;
                _ = tick.tick() => None,
                message = socket.recv() => Some(message),
            };
            match message {
                None if self.is_done() => return Ok(End::Done),
                None => {}
                // A connection's end, not the socket's.
                Some(Err(_)) => self.broken += 1,
                Some(Ok(message)) => {
                    if self.message(message)
                        && let Some(credit) = &mut credit
                    {
                        credit.finished()?;
                    }
                    if let Some(left) = &mut frames_left {
                        *left -= 1;
                        if *left == 0 {
                            return Ok(End::Restart);
                        }
                    }
                }
            }
        }
    }

    /// Takes a message in; says whether the reader counts it.
    fn message(&mut self, message: ZmqMessage) -> bool {
        let now = Instant::now();
        self.first.get_or_insert(now);
        let mut parts = message.into_vecdeque();
        let counted = match (parts.pop_front(), parts.len()) {
            (Some(frame), 0) => self.checker.frame(frame, &mut |tokens| self.work.row(tokens)).counted,
            (_, more) => {
                self.checker.refuse(&format!("a message of {} parts", more + 1));
                false
            }
        };
        let (record, now) = (self.checker.record(), Instant::now());
        self.last = Some(now);
        let enough = self.until.requests.is_some_and(|requests| record.requests >= requests)
            || self.until.frames.is_some_and(|frames| record.frames >= frames);
        if enough && self.ends_at.is_none() {
            self.ends_at = Some(now + self.until.linger);
        }
        self.tell(now);
        counted
    }

    fn is_done(&mut self) -> bool {
        let now = Instant::now();
        self.tell(now);
        let idle =
            |since: Instant| self.until.idle.is_some_and(|idle| now.saturating_duration_since(since) >= idle);
        self.stop.is_stopped() || self.ends_at.is_some_and(|at| now >= at) || self.last.is_some_and(idle)
    }

    fn sleep(&self, pause: Duration) {
        let began = Instant::now();
        while !self.stop.is_stopped() {
            let left = pause.saturating_sub(began.elapsed());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(STOP_NOTICED_WITHIN));
        }
    }

    fn tell(&mut self, now: Instant) {
        let (checker, first) = (&self.checker, self.first);
        self.teller.tell(now, || {
            let elapsed = first.map(|first| now.saturating_duration_since(first)).unwrap_or_default();
            Progress::of(checker.record(), checker.open(), elapsed)
        });
    }

    fn finish(mut self) -> Received {
        let elapsed = self.first.zip(self.last).map(|(first, last)| last - first).unwrap_or_default();
        let open = self.checker.open();
        self.teller.end(Progress::of(self.checker.record(), open, elapsed));
        let (record, faults) = self.checker.finish();
        let stopped = self.stop.is_stopped();
        Received { record, faults, open, elapsed, restarts: self.restarts, broken: self.broken, stopped }
    }
}
