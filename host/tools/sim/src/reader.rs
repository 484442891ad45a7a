//! The simulated reader: a PULL that binds, spends time on each row and checks every request. It can count
//! finished frames on a credit page.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterbay_sockets::credit::{CreditWriter, ReaderKind};
use afterbay_types::parts;
use serde::Serialize;
use tokio::runtime::Builder;
use tokio::sync::Semaphore;
use tokio::time::MissedTickBehavior;
use zeromq::ZmqMessage;

use crate::Stop;
use crate::bounds::STOP_NOTICED_WITHIN;
use crate::check::{Checker, Expect, Faults, Reading};
use crate::endpoint::remove;
use crate::inbox::{Backlog, BacklogGauge, Inbox};
use crate::progress::{Progress, ProgressReporter, nanoseconds};
use crate::record::Record;
use crate::work::Work;

/// The options of the simulated reader.
#[derive(Clone, Debug)]
pub struct Options {
    /// The endpoint to listen on: `ipc://PATH` or `tcp://HOST:PORT`.
    pub bind: String,
    /// The way in which rows are used.
    pub reading: Reading,
    /// The expected ids.
    pub expect: Expect,
    /// The time that a row takes: a chunk of a request's output.
    pub cost_per_row: Duration,
    /// Whether all unhandled frames wait in the reader, like in libzmq without high-water marks, as SGLang uses it. Otherwise
    /// one does, and the others wait on its socket.
    pub is_unbounded: bool,
    /// The credit page that counts finished frames, if any.
    pub credit: Option<PathBuf>,
    /// The conditions that end the reader, besides a stop.
    pub until: Until,
}

/// The conditions that end the reader. The first that is met counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Until {
    /// The number of ended requests.
    pub requests: Option<u64>,
    /// The time without a frame, after the first frame.
    pub idle: Option<Duration>,
    /// The time that the reader continues after `requests`, to catch unexpected frames.
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
    /// The largest backlog of the inbox.
    pub backlog: Backlog,
    /// The time from the first frame to the last.
    #[serde(rename = "elapsed_ns", serialize_with = "nanoseconds")]
    pub elapsed: Duration,
    /// The number of connections that ended within a frame or were no ZMTP.
    pub broken: u32,
    /// Set if the reader was stopped before its end.
    pub stopped: bool,
}

impl Options {
    /// Options that listen at `bind` and read deltas of a simulated scheduler at no cost, until a stop.
    pub fn new(bind: impl Into<String>) -> Options {
        Options {
            bind: bind.into(),
            reading: Reading::Deltas,
            expect: Expect::Simulated,
            cost_per_row: Duration::ZERO,
            is_unbounded: false,
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
///
/// # Errors
/// The reader cannot listen, or its credit page cannot be written.
pub fn run(
    options: Options,
    stop: &Stop,
    progress: &mut dyn FnMut(&Progress),
) -> anyhow::Result<ReaderReport> {
    let mut reader = Reader {
        checker: Checker::new(options.reading, options.expect),
        work: Work::new(options.cost_per_row),
        gauge: Arc::default(),
        stop,
        reporter: ProgressReporter::new(progress),
        until: options.until,
        first: None,
        last: None,
        ends_at: None,
        broken: 0,
    };
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(reader.read(&options))?;
    // Closes the socket.
    drop(runtime);
    remove(&options.bind);
    Ok(reader.finish())
}

struct Reader<'a> {
    checker: Checker,
    work: Work,
    gauge: Arc<BacklogGauge>,
    stop: &'a Stop,
    reporter: ProgressReporter<'a>,
    until: Until,
    first: Option<Instant>,
    last: Option<Instant>,
    /// The end of the lingering, once `requests` is met.
    ends_at: Option<Instant>,
    broken: u32,
}

impl Reader<'_> {
    /// Binds the socket, and reads to the end.
    async fn read(&mut self, options: &Options) -> anyhow::Result<()> {
        // The reader takes ids, like a tokenizer with --skip-tokenizer-init.
        let credit = options.credit.as_deref();
        let mut credit = credit.map(|page| CreditWriter::open(page, ReaderKind::Tokenizer)).transpose()?;
        let frames_max = if options.is_unbounded { Semaphore::MAX_PERMITS } else { 1 };
        let mut inbox = Inbox::open(&options.bind, frames_max, &self.gauge).await?;
        // The unhandled frames among those found together.
        let mut found = 0;
        let mut tick = tokio::time::interval(STOP_NOTICED_WITHIN);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let arrived = tokio::select! {
                biased;
                _ = tick.tick() => None,
                arrived = inbox.next() => arrived,
            };
            let Some(mut arrived) = arrived else {
                if self.is_done() {
                    return Ok(());
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
                    if self.message(message, found == 0)
                        && let Some(credit) = &mut credit
                    {
                        credit.finished()?;
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
        let counted = self.checker.frame(frame, &mut || self.work.row());
        let now = Instant::now();
        if is_last {
            self.checker.use_found_rows(now);
        }
        let record = self.checker.record();
        self.last = Some(now);
        let is_enough = self.until.requests.is_some_and(|requests| record.requests >= requests);
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
            broken: self.broken,
            stopped,
        }
    }
}
