//! The events that a test collects: all of them, in order, without the log's rate limit.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::Event;
use crate::event::Kind;

/// The most recorded events. Later events are not recorded.
pub const RECORDED_MAX: usize = 1 << 20;

/// Collects events. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Arc<(Mutex<Vec<Event>>, Condvar)>);

impl Recorder {
    pub(crate) fn push(&self, event: Event) {
        let mut events = self.lock();
        if events.len() < RECORDED_MAX {
            events.push(event);
        }
        self.0.1.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Event>> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every event so far.
    pub fn all(&self) -> Vec<Event> {
        self.lock().clone()
    }

    /// Every event of one kind so far: `recorder.of::<SenderConnected>()`.
    pub fn of<K: Kind>(&self) -> Vec<K> {
        self.lock().iter().filter_map(K::of).cloned().collect()
    }

    /// The first event of the kind for which `fits` is true, past or future. `None` if there is none before the timeout.
    pub fn wait_for<K: Kind>(&self, timeout: Duration, fits: impl Fn(&K) -> bool) -> Option<K> {
        let deadline = Instant::now() + timeout;
        let mut events = self.lock();
        loop {
            if let Some(found) = events.iter().filter_map(K::of).find(|event| fits(event)) {
                return Some(found.clone());
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            events = self.0.1.wait_timeout(events, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Forgets the recorded events.
    pub fn clear(&self) {
        self.lock().clear();
    }
}
