//! Reloads that were asked for: by the admin address, and by a change of the configuration's files.

use afterbay_runtime::Held;
use serde::Serialize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;
use tokio::sync::{mpsc, oneshot};

/// Reloads that were asked for and not begun; one answers them all, and a further one is refused.
const ASKED_MAX: usize = 16;

/// What became of a reload: what is otherwise, or every reason why nothing is.
pub(crate) type Outcome = Result<Vec<String>, Vec<String>>;

/// Asks for reloads. Clones share it.
#[derive(Clone)]
pub(crate) struct ReloadQueue {
    asked: mpsc::Sender<ReloadRequest>,
    last: Arc<Mutex<Option<Last>>>,
    /// What the files held that the last reload has read, once it is over; `None` before the first.
    read: Arc<Mutex<Option<Held>>>,
    /// The same from its beginning on.
    reading: Arc<Mutex<Option<Held>>>,
}

/// A reload that was asked for, and who waits for it.
pub(crate) struct ReloadRequest(Option<oneshot::Sender<Outcome>>);

impl ReloadRequest {
    /// Sends the outcome to whoever waits for it.
    pub(crate) fn answer(self, outcome: &Outcome) {
        // The send fails if nobody waits any more.
        self.0.map(|reply| reply.send(outcome.clone()));
    }
}

/// The last reload, for `/v1/plugins`.
#[derive(Clone, Debug)]
struct Last {
    at: SystemTime,
    outcome: Outcome,
}

/// The last reload, as it is shown.
#[derive(Debug, Serialize)]
pub(crate) struct LastView {
    ago_s: u64,
    changed: Vec<String>,
    /// Empty where it was brought into force.
    refused: Vec<String>,
}

impl ReloadQueue {
    pub(crate) fn new() -> (ReloadQueue, mpsc::Receiver<ReloadRequest>) {
        let (asked, receiver) = mpsc::channel(ASKED_MAX);
        let (last, read, reading) = Default::default();
        (ReloadQueue { asked, last, read, reading }, receiver)
    }

    /// A file has changed. Where so many wait already, one of them will see it.
    pub(crate) fn changed(&self) {
        drop(self.asked.try_send(ReloadRequest(None)));
    }

    /// The files were looked at. They are compared with what a reload has read last, where there was one: a file may have
    /// changed back to what it was at the look before, after a reload had read it in between.
    pub(crate) fn looked(&self, has_changed: bool) {
        let reading = lock(&self.reading).clone();
        if reading.map_or(has_changed, |held| !held.is_still()) {
            self.changed();
        }
    }

    /// Waits for the outcome; `None` where too many wait, or the streams end.
    pub(crate) async fn ask(&self) -> Option<Outcome> {
        let (reply, outcome) = oneshot::channel();
        self.asked.try_send(ReloadRequest(Some(reply))).ok()?;
        outcome.await.ok()
    }

    /// A reload begins, of files that hold this.
    pub(crate) fn begin(&self, held: Option<&Held>) {
        *lock(&self.reading) = held.cloned();
    }

    /// That reload is over: components that have changed on their own may be swapped from now on.
    pub(crate) fn end(&self, held: Option<Held>, outcome: &Outcome) {
        if outcome.as_ref().map_or(true, |changed| !changed.is_empty()) {
            *lock(&self.last) = Some(Last { at: SystemTime::now(), outcome: outcome.clone() });
        }
        *lock(&self.read) = held;
    }

    /// Whether the files have changed since: a reload of them is to come, or under way.
    pub(crate) fn is_due(&self) -> bool {
        let read = lock(&self.read).clone();
        read.is_some_and(|held| !held.is_still())
    }

    pub(crate) fn last(&self) -> Option<LastView> {
        lock(&self.last).as_ref().map(|last| LastView {
            ago_s: last.at.elapsed().unwrap_or_default().as_secs(),
            changed: last.outcome.clone().unwrap_or_default(),
            refused: last.outcome.clone().err().unwrap_or_default(),
        })
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
