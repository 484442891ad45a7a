//! The request to the threads of a process to end.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Says to threads that they are to end. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<(Mutex<bool>, Condvar)>);

impl Stop {
    /// Asks all threads to end.
    pub fn request(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }

    /// Whether the threads are to end.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.within(Duration::ZERO)
    }

    /// Waits for this time. Returns early, and true, once the threads are to end.
    pub fn within(&self, time: Duration) -> bool {
        let is_requested = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.0.1.wait_timeout_while(is_requested, time, |is_requested| !*is_requested);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}
