//! The simulated reader: a PULL that binds, spends time on each row and checks every request. It can count
//! finished frames on a credit page, stall, and restart.
//!
//! A restart is as hard as a crash: between two frames the listener and all connections disappear, with
//! everything in the buffers of the kernel and of the `zeromq` crate. Only the check survives, because it
//! acts as the observer.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterbay_sockets::credit::{CreditWriter, CreditWriterError, ReaderKind};
use afterbay_types::parts;
use serde::Serialize;
use thiserror::Error;
use tokio::runtime::Builder;
use tokio::time::MissedTickBehavior;
use zeromq::ZmqMessage;

use crate::Stop;
use crate::bounds::STOP_NOTICED_WITHIN;
use crate::check::{Checker, Expect, Faults, Reading};
use crate::endpoint::remove;
use crate::inbox::{Backlog, BacklogGauge, Inbox, InboxError};
use crate::progress::{Progress, ProgressReporter, nanoseconds};
use crate::record::Record;
use crate::work::{Cost, Work};

/// The options of the simulated reader.
#[derive(Clone, Debug)]
pub struct Options {
    /// The endpoint to listen on: `ipc://PATH` or `tcp://HOST:PORT`.
    pub bind: String,
    /// The way in which rows are used.
    pub reading: Reading,
    /// The expected ids.
    pub expect: Expect,
    /// The time that a row takes.
    pub cost: Cost,
    /// The place where unhandled frames wait.
    pub inbox: Inbox,
    /// A stall, if any.
    pub stall: Option<Stall>,
    /// Restarts, if any.
    pub restarts: Option<Restarts>,
    /// The credit page that counts finished frames, if any.
    pub credit: Option<PathBuf>,
    /// The conditions that end the reader, besides a stop.
    pub until: Until,
}

/// A single pause in which the reader handles nothing. Frames that it has read from its socket wait in its
/// inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The time from the first frame to the pause.
    pub after: Duration,
    /// The length of the pause.
    pub lasts: Duration,
}

/// The restarts of the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restarts {
    /// The number of frames before each restart; at least one.
    pub every_frames: u64,
    /// The time that the reader is away.
    pub pause: Duration,
    /// The number of restarts; `None` for no limit.
    pub times: Option<u32>,
}

/// The conditions that end the reader. The first that is met counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Until {
    /// The number of ended requests.
    pub requests: Option<u64>,
    /// The number of received frames.
    pub frames: Option<u64>,
    /// The time without a frame, after the first frame.
    pub idle: Option<Duration>,
    /// The time that the reader continues after `requests` or `frames`, to catch unexpected frames.
    pub linger: Duration,
}

/// The result of the simulated reader.
#[derive(Clone, Debug, Serialize)]
pub struct ReaderReport {
    /// The record of the received frames.
    #[serde(flatten)]
    pub record: Record,
    /// The faults of the stream.
    pub faults: Faults,
    /// The number of requests that began and did not end.
    pub open: u64,
    /// The number of rows that a later row replaced before the reader used them ([`Reading::Overwriting`]).
    pub overwritten_rows: u64,
    /// The largest backlog of the inbox; all zero without one.
    pub backlog: Backlog,
    /// The time from the first frame to the last.
    #[serde(rename = "elapsed_ns", serialize_with = "nanoseconds")]
    pub elapsed: Duration,
    /// The number of restarts.
    pub restarts: u32,
    /// The number of connections that ended within a frame or were no ZMTP.
    pub broken: u32,
    /// Set if the reader was stopped before its end.
    pub stopped: bool,
}

/// The errors of the simulated reader.
#[derive(Debug, Error)]
pub enum ReaderError {
    /// The inbox could not open.
    #[error(transparent)]
    Inbox(#[from] InboxError),
    /// The credit page could not be written.
    #[error(transparent)]
    Credit(#[from] CreditWriterError),
    /// The runtime could not start.
    #[error("simulated reader: {0}")]
    Runtime(#[from] std::io::Error),
}

impl Options {
    /// Options that listen at `bind` and read deltas of a simulated scheduler at no cost, until a stop.
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

impl ReaderReport {
    /// Whether every request that began also ended, with all tokens exactly once and in order.
    pub fn is_whole(&self) -> bool {
        self.faults.is_none() && self.open == 0
    }
}

/// Reads until a stop or a condition of [`Until`].
pub fn run(
    options: Options,
    stop: &Stop,
    progress: &mut dyn FnMut(&Progress),
) -> Result<ReaderReport, ReaderError> {
    let mut reader = Reader {
        checker: Checker::new(options.reading, options.expect),
        work: Work::new(options.cost),
        stall: options.stall,
        gauge: Arc::default(),
        stop,
        reporter: ProgressReporter::new(progress),
        until: options.until,
        first: None,
        last: None,
        ends_at: None,
        restarts: 0,
        broken: 0,
    };
    loop {
        // The reader takes ids, like a tokenizer with --skip-tokenizer-init.
        let open = |page: &Path| CreditWriter::open(page, ReaderKind::Tokenizer);
        let credit = options.credit.as_deref().map(open).transpose()?;
        let next_restart =
            options.restarts.filter(|restarts| restarts.times.is_none_or(|times| reader.restarts < times));
        // Each session has its own runtime. Dropping the runtime removes everything of the socket, like the
        // end of a process.
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let frames = next_restart.map(|restarts| restarts.every_frames);
        let end = runtime.block_on(reader.session(&options, credit, frames))?;
        drop(runtime);
        match (end, next_restart) {
            (SessionEnd::Restart, Some(restarts)) => {
                reader.restarts += 1;
                reader.sleep(restarts.pause);
            }
            (SessionEnd::Restart | SessionEnd::Done, _) => break,
        }
    }
    remove(&options.bind);
    Ok(reader.finish())
}

struct Reader<'a> {
    checker: Checker,
    work: Work,
    /// A stall that is still to come.
    stall: Option<Stall>,
    gauge: Arc<BacklogGauge>,
    stop: &'a Stop,
    reporter: ProgressReporter<'a>,
    until: Until,
    first: Option<Instant>,
    last: Option<Instant>,
    /// The end of the lingering, once `requests` or `frames` is met.
    ends_at: Option<Instant>,
    restarts: u32,
    broken: u32,
}

enum SessionEnd {
    Restart,
    Done,
}

impl Reader<'_> {
    /// Runs one session, from binding the socket to a restart or the end.
    async fn session(
        &mut self,
        options: &Options,
        mut credit: Option<CreditWriter>,
        frames: Option<u64>,
    ) -> Result<SessionEnd, ReaderError> {
        let mut inbox = options.inbox.open(&options.bind, &self.gauge).await?;
        // The unhandled frames among those found together.
        let mut found = 0;
        let mut tick = tokio::time::interval(STOP_NOTICED_WITHIN);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut frames_left = frames.map(|frames| frames.max(1));
        loop {
            let arrived = tokio::select! {
                biased;
                _ = tick.tick() => None,
                arrived = inbox.next() => arrived,
            };
            let Some(mut arrived) = arrived else {
                if self.is_done() {
                    return Ok(SessionEnd::Done);
                }
                continue;
            };
            if found == 0 {
                found = 1 + inbox.waiting();
            }
            found -= 1;
            match arrived.message.take() {
                // A connection ended, not the socket.
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
                            return Ok(SessionEnd::Restart);
                        }
                    }
                }
            }
        }
    }

    /// Handles a message. `is_last` marks the last of those found together. Returns whether the reader counts
    /// it.
    fn message(&mut self, message: ZmqMessage, is_last: bool) -> bool {
        let now = Instant::now();
        self.first.get_or_insert(now);
        let frame = parts::join(&message.into_vec());
        let counted = self.checker.frame(frame, &mut |tokens| self.work.row(tokens)).counted;
        let now = Instant::now();
        if is_last {
            self.checker.use_found_rows(now);
        }
        let record = self.checker.record();
        self.last = Some(now);
        let is_enough = self.until.requests.is_some_and(|requests| record.requests >= requests)
            || self.until.frames.is_some_and(|frames| record.frames >= frames);
        if is_enough && self.ends_at.is_none() {
            self.ends_at = Some(now + self.until.linger);
        }
        self.report_progress(now);
        counted
    }

    fn is_done(&mut self) -> bool {
        let now = Instant::now();
        self.report_progress(now);
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
        let start = Instant::now();
        while !self.stop.is_stopped() {
            let left = pause.saturating_sub(start.elapsed());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(STOP_NOTICED_WITHIN));
        }
    }

    fn report_progress(&mut self, now: Instant) {
        let (checker, first) = (&self.checker, self.first);
        self.reporter.report(now, || {
            let elapsed = first.map(|first| now.saturating_duration_since(first)).unwrap_or_default();
            Progress::of(checker.record(), checker.open(), elapsed)
        });
    }

    fn finish(mut self) -> ReaderReport {
        self.checker.use_found_rows(self.last.unwrap_or_else(Instant::now));
        let elapsed = self.first.zip(self.last).map(|(first, last)| last - first).unwrap_or_default();
        let overwritten_rows = self.checker.overwritten();
        let open = self.checker.open();
        self.reporter.end(Progress::of(self.checker.record(), open, elapsed));
        let (record, faults) = self.checker.finish();
        let stopped = self.stop.is_stopped();
        ReaderReport {
            record,
            faults,
            open,
            overwritten_rows,
            backlog: self.gauge.peak(),
            elapsed,
            restarts: self.restarts,
            broken: self.broken,
            stopped,
        }
    }
}
