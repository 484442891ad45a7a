//! The path of an event: it is counted, recorded if a test listens, and logged within the rate limit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::event::LogLinesDropped;
use crate::limiter::Limiter;
use crate::log::{self, LogQueue};
use crate::{Event, Recorder};

/// Publishes events. Clones publish to the same place, from any thread.
///
/// An event takes one lock, for the time of a look into a table; its line leaves by the log's queue. Frames and rows
/// therefore use counters, not events.
#[derive(Clone, Debug)]
pub struct Events(Arc<Inner>);

struct Inner {
    counts: Vec<AtomicU64>,
    limiter: Mutex<Limiter>,
    recorder: Option<Recorder>,
}

impl Events {
    /// Publishes to the log and the metrics.
    pub fn new() -> Events {
        Events::with(None)
    }

    /// Publishes to a recorder, too.
    pub fn recorded() -> (Events, Recorder) {
        let recorder = Recorder::default();
        (Events::with(Some(recorder.clone())), recorder)
    }

    fn with(recorder: Option<Recorder>) -> Events {
        let counts = Event::NAMES.iter().map(|_| AtomicU64::new(0)).collect();
        Events(Arc::new(Inner { counts, limiter: Mutex::default(), recorder }))
    }

    /// Publishes `event` at the current time.
    pub fn publish(&self, event: impl Into<Event>) {
        self.publish_at(event, Instant::now());
    }

    /// Publishes `event` at `now`, for a caller that owns the time.
    pub fn publish_at(&self, event: impl Into<Event>, now: Instant) {
        let event = event.into();
        if let Some(count) = self.0.counts.get(event.index()) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(recorder) = &self.0.recorder {
            recorder.push(event.clone());
        }
        let line = self.0.limiter.lock().unwrap_or_else(PoisonError::into_inner).admit(event, now);
        if let Some((event, times)) = line {
            event.log(times);
        }
    }

    /// Logs the summaries whose ten seconds have passed, and how many lines the log has dropped. One thread calls it about
    /// once a second.
    pub fn tick(&self, now: Instant) {
        if let Some(lines) = log::queue().and_then(LogQueue::take_dropped) {
            self.publish_at(LogLinesDropped { lines }, now);
        }
        let lines = self.0.limiter.lock().unwrap_or_else(PoisonError::into_inner).tick(now);
        for (event, times) in lines {
            event.log(times);
        }
    }

    /// Counts events that another process has published.
    pub fn count(&self, name: &str, events: u64) {
        let index = Event::NAMES.iter().position(|known| *known == name);
        if let Some(count) = index.and_then(|index| self.0.counts.get(index)) {
            count.fetch_add(events, Ordering::Relaxed);
        }
    }

    /// The number of published events of each kind, by name.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Event::NAMES.iter().zip(&self.0.counts).map(|(name, count)| (*name, count.load(Ordering::Relaxed)))
    }
}

impl Default for Events {
    fn default() -> Events {
        Events::new()
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").field("recorder", &self.recorder.is_some()).finish_non_exhaustive()
    }
}
