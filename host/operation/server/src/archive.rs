//! The archive of requests, as `[archive]` says: it starts and stops with the process, and at a reload that changes it.

use crate::journal_follower::JournalFollower;
use crate::mutex::lock;
use crate::requests::Requests;
use afterbay_archive::ArchiveError;
use afterbay_config as config;
use afterbay_events::{Events, Health, Metrics};
use afterbay_journal::{FollowerThread, JournalDirectory};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Time at a stop to archive the segments that have ended. The next start archives the rest.
const STOP_MAX: Duration = Duration::from_secs(5);

/// The archive of a process.
pub(crate) struct RequestArchive {
    directory: Arc<JournalDirectory>,
    requests: Requests,
    metrics: Metrics,
    events: Events,
    health: Health,
    /// The streams of the configuration.
    streams: Arc<Mutex<Vec<String>>>,
    /// Held by the thread that archives: a new one waits for the one before.
    turn: Arc<Mutex<()>>,
    follower: JournalFollower<config::Archive>,
}

impl RequestArchive {
    pub(crate) fn new(
        directory: &Arc<JournalDirectory>,
        requests: &Requests,
        metrics: &Metrics,
        events: &Events,
        health: &Health,
    ) -> RequestArchive {
        let (directory, requests) = (directory.clone(), requests.clone());
        let (metrics, events) = (metrics.clone(), events.clone());
        RequestArchive {
            directory,
            requests,
            metrics,
            events,
            health: health.clone(),
            streams: Arc::default(),
            turn: Arc::default(),
            follower: JournalFollower::new(STOP_MAX),
        }
    }

    /// Follows the configuration.
    ///
    /// # Errors
    /// The client of the object store cannot be made. The archive before continues.
    pub(crate) fn follow(&self, config: &config::Config) -> Result<(), ArchiveError> {
        *lock(&self.streams) = config.streams.iter().map(|stream| stream.name.to_string()).collect();
        self.follower.follow(config.archive.as_ref(), |archive| self.start(archive))
    }

    fn start(&self, archive: &config::Archive) -> Result<FollowerThread, ArchiveError> {
        let (requests, streams) = (self.requests.clone(), self.streams.clone());
        // A stream of the configuration may start later. A stream of an earlier run has no configuration.
        let layouts = Box::new(move |stream: &str| {
            let is_configured = lock(&streams).iter().any(|name| name == stream);
            let started = requests.known_layouts(stream);
            started.or_else(|| (!is_configured).then(|| requests.layouts(stream)))
        });
        let directory = self.directory.clone();
        let events = (self.events.clone(), self.health.clone());
        let (counters, turn) = (self.metrics.archive(), self.turn.clone());
        afterbay_archive::start(archive, directory, layouts, counters, events, turn)
    }

    /// Archives the segments that have ended, for at most 5 seconds, and stops.
    pub(crate) fn stop(&self) {
        self.follower.stop();
    }
}
