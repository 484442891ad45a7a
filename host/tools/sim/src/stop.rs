//! Stops a simulated scheduler or reader from another thread or a signal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A stop flag that all clones share. Both ends notice it within
/// [`STOP_NOTICED_WITHIN`](crate::bounds::STOP_NOTICED_WITHIN) and end cleanly, with the result so far.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// A flag that is not set.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Sets the flag.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether the flag is set.
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
