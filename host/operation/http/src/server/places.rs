//! The places of a listener's connections. While all are taken, connections that ask nothing lose theirs, so that a probe
//! always finds one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

/// Time that a connection has for its request while all places are taken. Clients send it with the connection.
const SILENT_MAX: Duration = Duration::from_millis(20);
/// Time that a probe has while all places are taken. A client may leave its answer unread.
const PROBE_MAX: Duration = Duration::from_secs(1);
/// Time between two looks for a connection to close.
const LOOK_EVERY: Duration = Duration::from_millis(5);

const SILENT: u8 = 0;
const PROBE: u8 = 1;
const OTHER: u8 = 2;

/// The places of one listener.
pub(super) struct Places {
    bound: usize,
    free: Arc<Semaphore>,
    /// The places that requests other than probes may have.
    others: Arc<Semaphore>,
    /// The connections, oldest first.
    taken: VecDeque<Taken>,
}

struct Taken {
    since: Instant,
    stage: Arc<AtomicU8>,
    task: AbortHandle,
}

/// The place of one connection, until it is dropped.
pub(super) struct Place {
    stage: Arc<AtomicU8>,
    others: Arc<Semaphore>,
    other: OnceLock<OwnedSemaphorePermit>,
    _free: OwnedSemaphorePermit,
}

impl Places {
    pub(super) fn new(bound: usize) -> Places {
        let others = bound.saturating_sub((bound / 4).max(1));
        let (free, others) = (Arc::new(Semaphore::new(bound)), Arc::new(Semaphore::new(others)));
        Places { bound, free, others, taken: VecDeque::new() }
    }

    /// Waits for a free place. Meanwhile, closes the oldest connection that asks nothing.
    pub(super) async fn next(&mut self) -> Place {
        loop {
            self.taken.retain(|taken| !taken.task.is_finished());
            let idle = self.taken.iter().position(Taken::is_idle).filter(|_| self.taken.len() >= self.bound);
            if let Some(idle) = idle.and_then(|at| self.taken.remove(at)) {
                idle.task.abort();
            }
            // The semaphore is never closed.
            if let Ok(Ok(free)) = timeout(LOOK_EVERY, self.free.clone().acquire_owned()).await {
                let (stage, others) = (Arc::default(), self.others.clone());
                return Place { stage, others, other: OnceLock::new(), _free: free };
            }
        }
    }

    /// Records the task of a connection. `stage` is that of its place.
    pub(super) fn taken(&mut self, stage: Arc<AtomicU8>, task: AbortHandle) {
        self.taken.push_back(Taken { since: Instant::now(), stage, task });
    }
}

impl Taken {
    fn is_idle(&self) -> bool {
        let time = self.since.elapsed();
        match self.stage.load(Ordering::Relaxed) {
            SILENT => time >= SILENT_MAX,
            PROBE => time >= PROBE_MAX,
            _ => false,
        }
    }
}

impl Place {
    pub(super) fn stage(&self) -> Arc<AtomicU8> {
        self.stage.clone()
    }

    /// Records that the connection's request has arrived. False if it must be refused: it is no probe, and other requests have
    /// all places that they may have.
    pub(super) fn request(&self, is_probe: bool) -> bool {
        self.stage.store(PROBE, Ordering::Relaxed);
        if is_probe {
            return true;
        }
        let Ok(other) = self.others.clone().try_acquire_owned() else { return false };
        self.stage.store(OTHER, Ordering::Relaxed);
        self.other.set(other).is_ok()
    }
}
