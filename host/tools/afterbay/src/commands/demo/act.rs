//! One act of the demo: the same load twice at the same time, directly and through Afterbay, each with its own scheduler and reader.

use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use afterbay_sim::Stop;
use afterbay_sim::check::Reading;
use afterbay_sim::compare::Comparison;
use afterbay_sim::frames::Encoding;
use afterbay_sim::load::Load;
use afterbay_sim::reader::{self, ReaderReport};
use afterbay_sim::scheduler::{self, SchedulerReport};
use anyhow::bail;
use serde::Serialize;

use super::live::{Live, SharedProgress};
use super::setup::{Afterbay, DemoDirs, end_where_stopped};

/// The scheduler's steps in a second, like a real one under load.
pub(super) const STEPS_PER_SECOND: f64 = 50.0;
/// The act ends when there has been no progress for this long.
const GRACE: Duration = Duration::from_secs(60);
/// How long the readers read on after the last expected token, to find tokens that should not follow.
const LINGER: Duration = Duration::from_millis(200);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The load and the reader of both sides.
pub(super) struct Act {
    /// The stream of the configuration.
    pub(super) stream: &'static str,
    pub(super) load: Load,
    pub(super) encoding: Encoding,
    pub(super) cost_per_row: Duration,
    pub(super) reading: Reading,
}

/// A pair of values: for the direct side, and for the side through Afterbay.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Both<T> {
    pub(super) direct: T,
    pub(super) afterbay: T,
}

/// A running scheduler and reader.
pub(super) struct Side {
    send: JoinHandle<anyhow::Result<SchedulerReport>>,
    read: JoinHandle<anyhow::Result<ReaderReport>>,
    sent: SharedProgress,
    received: SharedProgress,
    enough: Stop,
}

/// The results of a side's scheduler and reader.
#[derive(Serialize)]
pub(super) struct Ends {
    #[serde(rename = "in")]
    pub(super) sent: SchedulerReport,
    #[serde(rename = "out")]
    pub(super) received: ReaderReport,
    pub(super) comparison: Comparison,
}

impl Act {
    /// Runs until both readers have everything. They read on until [`Side::end`], because Afterbay may still send.
    pub(super) fn play(
        &self,
        dirs: &DemoDirs,
        afterbay: &mut Afterbay,
        stop: &Stop,
        quiet: bool,
    ) -> anyhow::Result<Both<Side>> {
        let direct = dirs.ipc(&format!("{}-direct", self.stream));
        let sides = Both {
            direct: self.side(direct.clone(), direct, None, stop)?,
            afterbay: self.side(
                dirs.scheduler(self.stream),
                dirs.reader(self.stream),
                Some(dirs.credit(self.stream)),
                stop,
            )?,
        };
        let mut live = Live::new(self.load.requests, quiet);
        let (mut deadline, mut progress) = (Instant::now() + GRACE, 0);
        loop {
            thread::sleep(LOOK_EVERY);
            end_where_stopped(stop)?;
            let now = sides.as_ref().map(|side| (side.sent.get(), side.received.get()));
            live.show(now);
            let tokens = [now.direct, now.afterbay].map(|(sent, received)| sent.tokens + received.tokens);
            let tokens = tokens.iter().sum();
            if tokens > progress {
                (progress, deadline) = (tokens, Instant::now() + GRACE);
            }
            if let Some(status) = afterbay.ended()? {
                bail!("afterbay run ended in the middle of the stream: {status}{}", afterbay.last_words());
            }
            if sides.direct.is_read() && sides.afterbay.is_read() || Instant::now() >= deadline {
                break;
            }
        }
        live.end();
        thread::sleep(LINGER);
        Ok(sides)
    }

    fn side(&self, to: String, at: String, credit: Option<PathBuf>, stop: &Stop) -> anyhow::Result<Side> {
        let mut scheduler = scheduler::Options::new(to, self.load.clone(), self.encoding);
        scheduler.steps_per_second = STEPS_PER_SECOND;
        let mut reader = reader::Options::new(at);
        reader.reading = self.reading;
        reader.is_unbounded = true;
        reader.cost_per_row = self.cost_per_row;
        reader.credit = credit;

        let (sent, received, enough) = (SharedProgress::default(), SharedProgress::default(), Stop::new());
        let (stopped, reported) = (enough.clone(), received.clone());
        let read =
            spawn("reader", move || reader::run(reader, &stopped, &mut |progress| reported.set(progress)))?;
        let (stopped, reported) = (stop.clone(), sent.clone());
        let send = spawn("scheduler", move || {
            scheduler::run(scheduler, &stopped, &mut |progress| reported.set(progress))
        })?;
        Ok(Side { send, read, sent, received, enough })
    }
}

impl Side {
    fn is_read(&self) -> bool {
        let all_sent = self.send.is_finished();
        all_sent && self.received.get().ended >= self.sent.get().ended || self.read.is_finished()
    }

    /// Ends the reader, and returns the results.
    pub(super) fn end(self) -> anyhow::Result<Ends> {
        self.enough.stop();
        let (sent, received) = (join(self.send)??, join(self.read)??);
        Ok(Ends { comparison: Comparison::of(&sent.record, &received.record), sent, received })
    }
}

impl Ends {
    /// Whether every token was received once, in order and unchanged.
    pub(super) fn is_exact(&self) -> bool {
        self.received.is_whole() && self.comparison.is_exact() && self.sent.undelivered == 0
    }
}

impl<T> Both<T> {
    pub(super) fn map<U>(self, mut f: impl FnMut(T) -> U) -> Both<U> {
        Both { direct: f(self.direct), afterbay: f(self.afterbay) }
    }

    pub(super) fn as_ref(&self) -> Both<&T> {
        Both { direct: &self.direct, afterbay: &self.afterbay }
    }
}

impl Both<Side> {
    /// Ends both.
    pub(super) fn end(self) -> anyhow::Result<Both<Ends>> {
        Ok(Both { direct: self.direct.end()?, afterbay: self.afterbay.end()? })
    }
}

fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> anyhow::Result<JoinHandle<T>> {
    Ok(thread::Builder::new().name(name.to_owned()).spawn(run)?)
}

fn join<T>(handle: JoinHandle<T>) -> anyhow::Result<T> {
    handle.join().map_err(|_| anyhow::anyhow!("a simulated end panicked"))
}
