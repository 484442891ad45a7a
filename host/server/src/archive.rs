//! The archive of requests, as `[archive]` says: it starts and stops with the process, and at a reload that changes it.

use crate::requests::Requests;
use afterbay_archive::{Archive, ArchiveError};
use afterbay_config as config;
use afterbay_events::{Events, Metrics};
use afterbay_journal::JournalDirectory;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time at a stop to archive the segments that have ended. The next start archives the rest.
const STOP_MAX: Duration = Duration::from_secs(5);

/// The archive of a process.
pub(crate) struct RequestArchive {
    directory: Arc<JournalDirectory>,
    requests: Requests,
    metrics: Metrics,
    events: Events,
    /// The streams of the configuration.
    streams: Arc<Mutex<Vec<String>>>,
    /// Held by the thread that archives: a new one waits for the one before.
    turn: Arc<Mutex<()>>,
    /// The thread, and the configuration that it runs with.
    running: Mutex<Option<(config::Archive, Archive)>>,
}

impl RequestArchive {
    pub(crate) fn new(
        directory: &Arc<JournalDirectory>,
        requests: &Requests,
        metrics: &Metrics,
        events: &Events,
    ) -> RequestArchive {
        let (directory, requests) = (directory.clone(), requests.clone());
        let (metrics, events) = (metrics.clone(), events.clone());
        RequestArchive {
            directory,
            requests,
            metrics,
            events,
            streams: Arc::default(),
            turn: Arc::default(),
            running: Mutex::default(),
        }
    }

    /// Follows the configuration.
    ///
    /// # Errors
    /// The client of the object store cannot be made. The archive before continues.
    pub(crate) fn follow(&self, config: &config::Config) -> Result<(), ArchiveError> {
        *lock(&self.streams) = config.streams.iter().map(|stream| stream.name.to_string()).collect();
        let mut running = lock(&self.running);
        if running.as_ref().map(|(archive, _)| archive) == config.archive.as_ref() {
            return Ok(());
        }
        let next = match &config.archive {
            Some(archive) => Some((archive.clone(), self.start(archive)?)),
            None => None,
        };
        if let Some((_, before)) = std::mem::replace(&mut *running, next) {
            // The next archive waits until it has ended.
            drop(std::thread::spawn(move || before.stop(STOP_MAX)));
        }
        Ok(())
    }

    fn start(&self, archive: &config::Archive) -> Result<Archive, ArchiveError> {
        let (requests, streams) = (self.requests.clone(), self.streams.clone());
        // A stream of the configuration may start later. A stream of an earlier run has no configuration.
        let layouts = Box::new(move |stream: &str| {
            let is_configured = lock(&streams).iter().any(|name| name == stream);
            let started = requests.known_layouts(stream);
            started.or_else(|| (!is_configured).then(|| requests.layouts(stream)))
        });
        let (directory, events) = (self.directory.clone(), self.events.clone());
        Archive::start(archive, directory, layouts, self.metrics.archive(), events, self.turn.clone())
    }

    /// Archives the segments that have ended, for at most 5 seconds, and stops.
    pub(crate) fn stop(&self) {
        if let Some((_, archive)) = lock(&self.running).take() {
            archive.stop(STOP_MAX);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics with a half-written value.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
