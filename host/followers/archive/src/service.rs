//! The archive's thread: looks for segments that have ended, and tries again after a failure.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use afterbay_config as config;
use afterbay_events::event::{ArchiveFailed, ArchiveRecovered};
use afterbay_events::{ArchiveCounters, Events, Health};
use afterbay_journal::reader::JournalReader;
use afterbay_journal::{Follower, FollowerThread, HoldBack, JournalDirectory};
use afterbay_wire::Layouts;

use crate::failure::{ArchiveError, Failure};
use crate::location;
use crate::objects::Objects;
use crate::stream::{Context, StreamArchive, lag_time};

/// The archive as a follower of the journal.
pub const FOLLOWER: Follower = Follower { name: "archive", needs_ended_segments: true };

/// Time between two looks for segments that have ended.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Time until the first repetition after a failure. It doubles with each further failure, and half of it is random.
const RETRY_LEAST: Duration = Duration::from_secs(1);
/// Longest time between two repetitions.
const RETRY_MOST: Duration = Duration::from_secs(60);
/// The key of the condition.
const HEALTH: &str = "archive";
/// Directory in the journal's directory for files that are not uploaded yet.
const SCRATCH: &str = ".archive";

/// Gives the layouts of a stream's msgpack frames. `None`: the stream is about to start, and is archived then.
pub type StreamLayouts = Box<dyn Fn(&str) -> Option<Layouts> + Send + Sync>;

/// Starts to archive all streams of this journal, from the first segment that is not in the archive. The thread holds `turn` while
/// it runs, so that it waits for an earlier one. At a stop it archives the segments that have ended; the next start goes on.
///
/// # Errors
/// The environment lacks a variable for the client of the object store, or a thread cannot be started.
pub fn start(
    archive: &config::Archive,
    directory: Arc<JournalDirectory>,
    layouts: StreamLayouts,
    counters: Arc<ArchiveCounters>,
    (events, health): (Events, Health),
    turn: Arc<Mutex<()>>,
) -> Result<FollowerThread, ArchiveError> {
    let (store, prefix) = location::open(&archive.url)?;
    let objects = Objects::new(store, prefix);
    let mut archiver = Archiver::new(&archive.url, objects, directory, layouts, counters, (events, health));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| ArchiveError(format!("no runtime: {error}")))?;
    let thread = FollowerThread::spawn("archive", move |stopped| {
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        while !stopped.within(runtime.block_on(archiver.pass(now_unix_ns(), false))) {}
        runtime.block_on(archiver.pass(now_unix_ns(), true));
        archiver.health.clear(HEALTH);
    });
    thread.map_err(|error| ArchiveError(format!("no thread: {error}")))
}

/// The work of the thread.
pub(crate) struct Archiver {
    url: String,
    objects: Objects,
    directory: Arc<JournalDirectory>,
    hold: HoldBack,
    layouts: StreamLayouts,
    counters: Arc<ArchiveCounters>,
    events: Events,
    health: Health,
    streams: BTreeMap<String, StreamArchive>,
    /// The failure that lasts: its begin, and the number of attempts.
    failing: Option<(Instant, u32)>,
}

impl Archiver {
    pub(crate) fn new(
        url: &str,
        objects: Objects,
        directory: Arc<JournalDirectory>,
        layouts: StreamLayouts,
        counters: Arc<ArchiveCounters>,
        (events, health): (Events, Health),
    ) -> Archiver {
        let hold = directory.hold_back(FOLLOWER);
        Archiver {
            url: url.to_owned(),
            objects,
            directory,
            hold,
            layouts,
            counters,
            events,
            health,
            streams: BTreeMap::new(),
            failing: None,
        }
    }

    /// Archives what has ended, and returns the time until the next look. `is_last`: waits for nothing, so that all segments that
    /// have ended are in the archive afterwards.
    pub(crate) async fn pass(&mut self, now_unix_ns: u64, is_last: bool) -> Duration {
        match self.archive(now_unix_ns, is_last).await {
            Ok(()) => {
                self.counters.failing.set(0);
                self.health.clear(HEALTH);
                if let Some((since, _)) = self.failing.take() {
                    let failing_s = since.elapsed().as_secs();
                    self.events.publish(ArchiveRecovered { url: self.url.clone(), failing_s });
                }
                LOOK_EVERY
            }
            // The other process archives.
            Err(Failure::HandedOver) => LOOK_EVERY,
            Err(failure) => {
                self.counters.failures.add(1);
                self.counters.failing.set(1);
                let text = format!("{} is not archived: {}", self.url, failure.why());
                self.health.degraded(HEALTH, text, SystemTime::now());
                if self.failing.is_none() {
                    self.events.publish(ArchiveFailed { url: self.url.clone(), why: failure.why() });
                }
                let (since, attempts) = self.failing.unwrap_or((Instant::now(), 0));
                self.failing = Some((since, attempts.saturating_add(1)));
                retry_after(attempts)
            }
        }
    }

    async fn archive(&mut self, now_unix_ns: u64, is_last: bool) -> Result<(), Failure> {
        if self.directory.is_paused() {
            return Err(Failure::HandedOver);
        }
        let instance = self.directory.instance()?;
        let journal = JournalReader::open(self.directory.path())?;
        let directory = self.directory.clone();
        let context = Context {
            url: &self.url,
            journal: &journal,
            objects: &self.objects,
            hold: &self.hold,
            counters: &self.counters,
            events: &self.events,
            instance: &instance,
            layouts: &*self.layouts,
            is_handed_over: &move || directory.is_paused(),
            now_unix_ns,
            is_last,
            open_streams: &self.directory.open_streams(),
            abandon_after: self.directory.abandon_after(),
        };
        let scratch: PathBuf = journal.dir().join(SCRATCH);
        let mut failed = None;
        for name in journal.streams()? {
            let dir = scratch.join(&name);
            let stream = self.streams.entry(name).or_insert_with_key(|name| StreamArchive::new(name, dir));
            if let Err(failure) = stream.advance(&context).await {
                let is_of_store = failure.is_of_store();
                failed = failed.or(Some(failure));
                // The other streams would wait for the same.
                if is_of_store {
                    break;
                }
            }
        }
        let lags = self.streams.values().map(StreamArchive::lag);
        self.counters.lag_segments.set(lags.clone().map(|lag| lag.segments).sum());
        self.counters.lag_seconds.set(lag_time(lags, now_unix_ns));
        failed.map_or(Ok(()), Err)
    }
}

/// The time until the repetition after this many earlier ones.
fn retry_after(attempts: u32) -> Duration {
    let most = RETRY_LEAST.saturating_mul(1 << attempts.min(6)).min(RETRY_MOST);
    let random = RandomState::new().build_hasher().finish() as u32;
    most / 2 + (most / 2).mul_f64(f64::from(random) / f64::from(u32::MAX))
}

fn now_unix_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

#[cfg(test)]
mod tests;
