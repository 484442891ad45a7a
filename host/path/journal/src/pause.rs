//! Stops retention and erasures while another process may own the journal.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard};

use crate::mutex::lock;

/// Whether work on the files of a journal has to stand still.
pub(crate) struct Pause {
    /// Set before the lock is taken, so that long work ends.
    is_wanted: AtomicBool,
    is_paused: Mutex<bool>,
}

impl Pause {
    pub fn new(is_paused: bool) -> Pause {
        Pause { is_wanted: AtomicBool::new(is_paused), is_paused: Mutex::new(is_paused) }
    }

    /// Lets work be done until the guard is dropped. `None` during a pause.
    pub fn work(&self) -> Option<MutexGuard<'_, bool>> {
        Some(lock(&self.is_paused)).filter(|is_paused| !**is_paused)
    }

    /// Whether work that is under way has to end.
    pub fn is_wanted(&self) -> bool {
        self.is_wanted.load(SeqCst)
    }

    /// Begins a pause, after the work that is under way.
    pub fn begin(&self) {
        self.is_wanted.store(true, SeqCst);
        *lock(&self.is_paused) = true;
    }

    /// Ends the pause.
    pub fn end(&self) {
        *lock(&self.is_paused) = false;
        self.is_wanted.store(false, SeqCst);
    }
}
