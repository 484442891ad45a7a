//! The copy of the journal in NATS, as `[replicate]` says: it starts and stops with the process, and at a reload that changes it.

use crate::journal_follower::JournalFollower;
use afterbay_config as config;
use afterbay_events::{Events, Health, Metrics};
use afterbay_journal::JournalDirectory;
use afterbay_replicate::ReplicateError;
use std::sync::Arc;
use std::time::Duration;

/// Time at a stop to publish what the journal has.
const STOP_MAX: Duration = Duration::from_secs(2);

/// The copy of a process's journal.
pub(crate) struct Replica {
    directory: Arc<JournalDirectory>,
    metrics: Metrics,
    events: Events,
    health: Health,
    follower: JournalFollower<config::Replicate>,
}

impl Replica {
    pub(crate) fn new(
        directory: &Arc<JournalDirectory>,
        metrics: &Metrics,
        events: &Events,
        health: &Health,
    ) -> Replica {
        let (directory, metrics) = (directory.clone(), metrics.clone());
        let (events, health) = (events.clone(), health.clone());
        Replica { directory, metrics, events, health, follower: JournalFollower::new(STOP_MAX) }
    }

    /// Follows the configuration.
    ///
    /// # Errors
    /// The credentials cannot be read. The copy before continues.
    pub(crate) fn follow(&self, config: &config::Config) -> Result<(), ReplicateError> {
        self.follower.follow(config.replicate.as_ref(), |replicate| {
            let (directory, counters) = (self.directory.clone(), self.metrics.replicate());
            let events = (self.events.clone(), self.health.clone());
            afterbay_replicate::start(replicate, directory, counters, events)
        })
    }

    /// Publishes what the journal has, for at most 2 seconds, and stops.
    pub(crate) fn stop(&self) {
        self.follower.stop();
    }
}
