//! The status of the process for people who watch it: `/v1/status`, and the same once a second for every watcher of
//! `/v1/status/stream`.
//!
//! One task reads the counters once a second and keeps the last readings, of which rates and quantiles are the differences.
//! `reading` says what is read, `answer` has the form of the answer, `journal_space` looks at the journal's directory, `history`
//! keeps the figures of the last hour and day.

mod answer;
mod history;
mod journal_space;
mod reading;

use crate::follower::FollowerProcess;
use crate::plugins::{PluginView, Plugins};
use crate::refusal::Refusal;
use crate::requests::ends;
use crate::signals::Signals;
use crate::sinks::Sinks;
use afterbay_events::{Health, Metrics};
use afterbay_journal::JournalDirectory;
use answer::{Answer, Process};
use history::History;
pub(crate) use history::Step;
use journal_space::JournalSpace;
use reading::{Reading, Readings};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

/// A timer may be this early: the wall clock is not the timer's.
const EARLY_MAX: Duration = Duration::from_millis(100);
/// Readings between two looks at the journal's directory. A look lists every segment.
const JOURNAL_EVERY: u64 = 5;
/// Time for the streams to say how their plugins are. After that, the last known answer stands.
const PLUGINS_MAX: Duration = Duration::from_millis(500);
/// Most watchers of `/v1/status/stream`.
pub(crate) const WATCHERS_MAX: usize = 16;
/// Time between two looks at the watchers that are still there at the end.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The status of the process. Clones share it.
#[derive(Clone)]
pub(crate) struct Status(Arc<Inner>);

struct Inner {
    source: StatusSource,
    process: Process,
    state: Mutex<State>,
    /// One permit for each watcher that may still come.
    free: Arc<Semaphore>,
    watchers_max: usize,
}

/// The parts of the process that the status is read from.
pub(crate) struct StatusSource {
    pub(crate) metrics: Metrics,
    pub(crate) health: Health,
    pub(crate) signals: Signals,
    pub(crate) sinks: Sinks,
    pub(crate) plugins: Plugins,
    pub(crate) directory: Arc<JournalDirectory>,
    pub(crate) follower: FollowerProcess,
    /// `journal.retain.bytes`.
    pub(crate) retain_bytes: Option<u64>,
}

struct State {
    readings: Readings,
    history: History,
    /// The last answer of the streams about their plugins.
    plugins: Arc<Vec<PluginView>>,
    /// Sends each status to the watchers. `None` once the process ends.
    sender: Option<watch::Sender<Arc<str>>>,
}

/// One watcher of `/v1/status/stream`.
pub(crate) struct Watcher {
    /// The first status, until it was taken.
    first: Option<Arc<str>>,
    receiver: watch::Receiver<Arc<str>>,
    _permit: OwnedSemaphorePermit,
}

impl Status {
    /// A status without readings, until [`Status::run`] runs. `connections` are those that each admin address may have, `history` is
    /// that of the process before, as [`Status::history_text`] gives it.
    pub(crate) fn new(source: StatusSource, connections: usize, history: &str) -> Status {
        // Half of the connections stay for everything else.
        let watchers_max = WATCHERS_MAX.min(connections / 2).max(1);
        let state = State {
            readings: Readings::default(),
            history: History::of_text(history),
            plugins: Arc::default(),
            sender: Some(watch::Sender::new("".into())),
        };
        Status(Arc::new(Inner {
            source,
            process: Process { started: SystemTime::now(), begun: Instant::now() },
            state: Mutex::new(state),
            free: Arc::new(Semaphore::new(watchers_max)),
            watchers_max,
        }))
    }

    /// Reads once a second, at whole seconds, and sends the status to the watchers, if there are any.
    pub(crate) async fn run(self) {
        let mut space = Arc::new(JournalSpace::new(Instant::now()));
        for number in 0_u64.. {
            let second = if number == 0 { 0 } else { next_second().await };
            if number.is_multiple_of(JOURNAL_EVERY) {
                space = self.look_at_journal(space.clone()).await.unwrap_or(space);
            }
            let reading = match number {
                0 => Reading::zero(space.clone()),
                _ => Reading::take(&self.0.source.signals, &self.0.source.metrics, space.clone()),
            };
            let is_watched = {
                let mut state = self.lock();
                state.readings.push(reading);
                if number > 0 {
                    let values = answer::values(&self.0.source, &state.readings);
                    state.history.push(second, values);
                }
                state.sender.as_ref().is_some_and(|sender| sender.receiver_count() > 0)
            };
            if is_watched {
                let status = self.json().await.into();
                if let Some(sender) = &self.lock().sender {
                    sender.send_replace(status);
                }
            }
        }
    }

    /// Lists the segments on another thread, because a disk can be slow. `None` at the end of the runtime.
    async fn look_at_journal(&self, before: Arc<JournalSpace>) -> Option<Arc<JournalSpace>> {
        let directory = self.0.source.directory.clone();
        let look = move || Arc::new(before.look(&directory, Instant::now()));
        tokio::task::spawn_blocking(look).await.ok()
    }

    /// The status now, as JSON.
    pub(crate) async fn json(&self) -> String {
        let source = &self.0.source;
        let answered = timeout(PLUGINS_MAX, source.plugins.list(&source.metrics)).await;
        let mut state = self.lock();
        let are_stale = match answered {
            Ok(Ok(mut plugins)) => {
                // One answer for all, and some may not read the rids of requests.
                plugins.iter_mut().for_each(PluginView::hide_contents);
                state.plugins = Arc::new(plugins);
                false
            }
            Ok(Err(_)) | Err(_) => true,
        };
        let plugins = (state.plugins.as_slice(), are_stale);
        let answer = Answer::new(source, &self.0.process, &state.readings, state.history.end(), plugins);
        // The answer has no map whose keys are not text, so that it can always be written.
        serde_json::to_string(&answer).unwrap_or_default()
    }

    /// The last `count` points of each figure, or of one figure of each stream, as JSON.
    pub(crate) fn history(&self, step: Step, count: usize, figure: Option<&str>) -> String {
        serde_json::to_string(&self.lock().history.view(step, count, figure)).unwrap_or_default()
    }

    /// The history, for the next process.
    pub(crate) fn history_text(&self) -> String {
        self.lock().history.to_text()
    }

    /// Adds a watcher.
    pub(crate) async fn watch(&self) -> Result<Watcher, Refusal> {
        let max = self.0.watchers_max;
        let permit = self.0.free.clone().try_acquire_owned().map_err(|_| {
            let why = format!(
                "the status has {max} watchers, at most {max} are served: close one, or ask for /v1/status"
            );
            Refusal::unavailable("watchers", why)
        })?;
        let receiver = self.lock().sender.as_ref().map(watch::Sender::subscribe).ok_or_else(|| ends(()))?;
        let first = Some(self.json().await.into());
        Ok(Watcher { first, receiver, _permit: permit })
    }

    /// Ends every watcher's events, and waits until their connections have the end, at most `within`.
    pub(crate) async fn end(&self, within: Duration) {
        self.lock().sender = None;
        let gone = async {
            while self.0.free.available_permits() < self.0.watchers_max {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        // A watcher that is cut connects again, as at any end of a process.
        let _gone = timeout(within, gone).await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics with a half-written value.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watcher {
    /// The next status; `None` once the process ends. A watcher that was slow gets the newest one.
    pub(crate) async fn next(&mut self) -> Option<Arc<str>> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        self.receiver.changed().await.ok()?;
        Some(self.receiver.borrow_and_update().clone())
    }
}

/// Waits for the next whole second of the wall clock. Returns the second that it is then, in Unix time.
async fn next_second() -> u64 {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let next = Duration::from_secs((now() + EARLY_MAX).as_secs() + 1);
    tokio::time::sleep(next.saturating_sub(now())).await;
    (now() + EARLY_MAX).as_secs()
}
