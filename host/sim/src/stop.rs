//! How a simulated scheduler or reader is told to stop, from another thread or a signal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A stop that all its clones share. It is noticed within
/// [`STOP_NOTICED_WITHIN`](crate::bounds::STOP_NOTICED_WITHIN); what was running ends cleanly, with the result so far.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Not stopped.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Stops.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it was told to.
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
