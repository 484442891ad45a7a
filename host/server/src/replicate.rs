//! The copy of the journal in NATS, as `[replicate]` says: it starts and stops with the process, and at a reload that changes it.

use afterbay_config as config;
use afterbay_events::{Events, Metrics};
use afterbay_journal::JournalDirectory;
use afterbay_replicate::{Replicate, ReplicateError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time at a stop to publish what the journal has.
const STOP_MAX: Duration = Duration::from_secs(2);

/// The copy of a process's journal.
pub(crate) struct Replica {
    directory: Arc<JournalDirectory>,
    metrics: Metrics,
    events: Events,
    /// The thread, and the configuration that it runs with.
    running: Mutex<Option<(config::Replicate, Replicate)>>,
}

impl Replica {
    pub(crate) fn new(directory: &Arc<JournalDirectory>, metrics: &Metrics, events: &Events) -> Replica {
        let (directory, metrics, events) = (directory.clone(), metrics.clone(), events.clone());
        Replica { directory, metrics, events, running: Mutex::default() }
    }

    /// Follows the configuration.
    ///
    /// # Errors
    /// The credentials cannot be read. The copy before continues.
    pub(crate) fn follow(&self, config: &config::Config) -> Result<(), ReplicateError> {
        // No code panics with a half-written value.
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.as_ref().map(|(replicate, _)| replicate) == config.replicate.as_ref() {
            return Ok(());
        }
        let start = |replicate: &config::Replicate| {
            let (directory, counters) = (self.directory.clone(), self.metrics.replicate());
            let started = Replicate::start(replicate, directory, counters, self.events.clone())?;
            Ok((replicate.clone(), started))
        };
        let next = config.replicate.as_ref().map(start).transpose()?;
        if let Some((_, before)) = std::mem::replace(&mut *running, next) {
            // The next one continues behind what NATS has.
            drop(std::thread::spawn(move || before.stop(STOP_MAX)));
        }
        Ok(())
    }

    /// Publishes what the journal has, for at most 2 seconds, and stops.
    pub(crate) fn stop(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((_, replicate)) = running {
            replicate.stop(STOP_MAX);
        }
    }
}
