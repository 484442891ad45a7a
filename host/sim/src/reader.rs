//! The simulated reader: a PULL that binds, takes its time over each row, checks every request, may count what it has
//! finished on a credit page, may stall, and may go away and come back.
//!
//! A restart is as hard as a crash: the listener and all connections go at once, between two frames, with whatever the
//! kernel and the `zeromq` crate had buffered. Only the check lives on, as the one who watches.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterbay_sockets::credit::{CreditWriter, CreditWriterError, ReaderKind};
use serde::Serialize;
use thiserror::Error;
use tokio::runtime::Builder;
use tokio::time::MissedTickBehavior;
use zeromq::{ZmqError, ZmqMessage};

use crate::Stop;
use crate::bounds::STOP_NOTICED_WITHIN;
use crate::check::{Checker, Expect, Faults, Reading};
use crate::endpoint::{ListenError, remove};
use crate::inbox::{Backlog, Gauge, Inbox};
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
    /// Where frames wait that are not handled.
    pub inbox: Inbox,
    /// Whether it stalls.
    pub stall: Option<Stall>,
    /// Whether it goes away and comes back.
    pub restarts: Option<Restarts>,
    /// A credit page to count finished frames on.
    pub credit: Option<PathBuf>,
    /// When it ends, if not by being stopped.
    pub until: Until,
}

/// When the reader handles nothing for a time, once; what it has read off its socket then waits in its inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// So long after the first frame came.
    pub after: Duration,
    /// For how long.
    pub lasts: Duration,
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
    /// Rows that a later one took the place of before anybody looked ([`Reading::Overwriting`]).
    pub overwritten_rows: u64,
    /// What waited in its inbox at the most; all zero without one.
    pub backlog: Backlog,
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
    /// The socket cannot listen on the endpoint.
    #[error(transparent)]
    Listen(#[from] ListenError),
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
            inbox: Inbox::Frames(0),
            stall: None,
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
        stall: options.stall,
        gauge: Arc::default(),
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
        // It reads ids, as a tokenizer does with --skip-tokenizer-init.
        let open = |page: &Path| CreditWriter::open_as(page, ReaderKind::Tokenizer);
        let credit = options.credit.as_deref().map(open).transpose()?;
        let more = options.restarts.filter(|it| it.times.is_none_or(|times| reader.restarts < times));
        // A life is a runtime: when it is dropped everything of the socket is gone, as with a process.
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let end = runtime.block_on(reader.live(&options, credit, more.map(|it| it.every_frames)))?;
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
    /// To come.
    stall: Option<Stall>,
    gauge: Arc<Gauge>,
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
        options: &Options,
        mut credit: Option<CreditWriter>,
        frames: Option<u64>,
    ) -> Result<End, ReaderError> {
        let mut door = options.inbox.open(&options.bind, &self.gauge).await?;
        // Frames of those that it found when it woke up.
        let mut found = 0;
        let mut tick = tokio::time::interval(STOP_NOTICED_WITHIN);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut frames_left = frames.map(|frames| frames.max(1));
        loop {
            let arrived = tokio::select! {
                biased;
                _ = tick.tick() => None,
                arrived = door.next() => arrived,
            };
            let Some(mut arrived) = arrived else {
                if self.is_done() {
                    return Ok(End::Done);
                }
                continue;
            };
            if found == 0 {
                found = 1 + door.waiting();
            }
            found -= 1;
            match arrived.message.take() {
                // A connection's end, not the socket's.
                None => self.broken += 1,
                Some(message) => {
                    self.stall();
                    if self.message(message, found == 0)
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

    /// Takes a message in, the last that it found or not; says whether the reader counts it.
    fn message(&mut self, message: ZmqMessage, is_last: bool) -> bool {
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
        let now = Instant::now();
        if is_last {
            self.checker.rest(now);
        }
        let record = self.checker.record();
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

    fn stall(&mut self) {
        let passed = self.first.map(|first| first.elapsed());
        if let Some(stall) = self.stall.take_if(|stall| passed.is_some_and(|passed| passed >= stall.after)) {
            self.sleep(stall.lasts);
        }
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
        self.checker.rest(self.last.unwrap_or_else(Instant::now));
        let elapsed = self.first.zip(self.last).map(|(first, last)| last - first).unwrap_or_default();
        let overwritten_rows = self.checker.overwritten();
        let open = self.checker.open();
        self.teller.end(Progress::of(self.checker.record(), open, elapsed));
        let (record, faults) = self.checker.finish();
        let stopped = self.stop.is_stopped();
        Received {
            record,
            faults,
            open,
            overwritten_rows,
            backlog: self.gauge.most(),
            elapsed,
            restarts: self.restarts,
            broken: self.broken,
            stopped,
        }
    }
}
