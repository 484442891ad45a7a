//! The queue of requested reloads: requested over the admin address, or by a change of the configuration's files.

use crate::mutex::lock;
use afterbay_runtime::FileContents;
use serde::Serialize;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;
use tokio::sync::{mpsc, oneshot};

/// Requests that wait for a reload. One reload answers them all; a further request is refused.
const WAITING_MAX: usize = 16;

/// The outcome of a reload: each change in a few words, or every reason why nothing changed.
pub(crate) type Outcome = Result<Vec<String>, Vec<String>>;

/// Requests reloads and remembers the last one. Clones share the queue.
#[derive(Clone)]
pub(crate) struct ReloadQueue {
    requests: mpsc::Sender<ReloadRequest>,
    last: Arc<Mutex<Option<Last>>>,
    /// The contents of the files that the last finished reload read; `None` before the first.
    read: Arc<Mutex<Option<FileContents>>>,
    /// The contents of the files that the last begun reload reads.
    reading: Arc<Mutex<Option<FileContents>>>,
}

/// A request for a reload, and the channel of whoever waits for its outcome.
pub(crate) struct ReloadRequest(Option<oneshot::Sender<Outcome>>);

impl ReloadRequest {
    /// Sends the outcome to whoever waits.
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

/// The last reload, as `/v1/plugins` shows it.
#[derive(Debug, Serialize)]
pub(crate) struct LastView {
    ago_s: u64,
    changed: Vec<String>,
    /// Empty if the reload took effect.
    refused: Vec<String>,
}

impl ReloadQueue {
    pub(crate) fn new() -> (ReloadQueue, mpsc::Receiver<ReloadRequest>) {
        let (requests, receiver) = mpsc::channel(WAITING_MAX);
        let (last, read, reading) = Default::default();
        (ReloadQueue { requests, last, read, reading }, receiver)
    }

    /// Requests a reload because a file changed. If the queue is full, a waiting reload will read the change.
    pub(crate) fn changed(&self) {
        drop(self.requests.try_send(ReloadRequest(None)));
    }

    /// Requests a reload if the watched files changed. After a reload, the files are compared with what that reload read:
    /// a file may have changed back to its contents before the reload.
    pub(crate) fn checked(&self, has_changed: bool) {
        let reading = lock(&self.reading).clone();
        if reading.map_or(has_changed, |held| !held.is_still()) {
            self.changed();
        }
    }

    /// Requests a reload and waits for its outcome; `None` if the queue is full, or the streams end.
    pub(crate) async fn ask(&self) -> Option<Outcome> {
        let (reply, outcome) = oneshot::channel();
        self.requests.try_send(ReloadRequest(Some(reply))).ok()?;
        outcome.await.ok()
    }

    /// Records that a reload begins, and what its files contain.
    pub(crate) fn begin(&self, held: Option<&FileContents>) {
        *lock(&self.reading) = held.cloned();
    }

    /// Records the outcome of a reload. Changed component files may be swapped again.
    pub(crate) fn end(&self, held: Option<FileContents>, outcome: &Outcome) {
        let mut last = lock(&self.last);
        // A file that is correct again may change nothing, and ends the refusal.
        let was_refused = last.as_ref().is_some_and(|last| last.outcome.is_err());
        if was_refused || outcome.as_ref().map_or(true, |changed| !changed.is_empty()) {
            *last = Some(Last { at: SystemTime::now(), outcome: outcome.clone() });
        }
        *lock(&self.read) = held;
    }

    /// Whether the files have changed since the last reload, so that another one will come or is under way.
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
