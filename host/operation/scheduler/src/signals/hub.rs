//! The last readings of the sources, for the readers on the path, and the changes of the sources, for events.
//! It runs on the background thread and publishes readings through a latch and changes through a lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use afterbay_types::SourceState;
use serde::{Serialize, Serializer};

use crate::signals::bounds::SAME_NOTICE_EVERY;
use crate::signals::latch;
use crate::signals::notices::{Notices, SourceChange, SourceNotice};
use crate::signals::snapshot::{AT, HAS, PER_SOURCE, READ, SOURCES, SourceKind, UNIX, VALUES, WORDS, since};
use crate::signals::values::{FIELDS, LoadValues};

/// The reason why a source gave no reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReadFailure {
    /// The source cannot be reached or read.
    Unavailable(String),
    /// The source gives invalid data.
    Invalid(String),
}

/// A moment on both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub instant: Instant,
    pub unix_ns: u64,
}

impl Moment {
    pub(crate) fn now() -> Moment {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Moment { instant: Instant::now(), unix_ns: u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX) }
    }
}

/// The status of a source, for `/v1/signals` and `/metrics`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SourceReport {
    /// The kind of the source.
    pub source: SourceKind,
    /// The source's file, endpoint or URL.
    pub name: String,
    /// The state of the source.
    #[serde(serialize_with = "word")]
    pub state: SourceState,
    /// The reason if the source is lost or invalid.
    pub why: Option<String>,
    /// The number of new readings.
    pub readings: u64,
    /// The number of reads, scrapes and messages that gave no reading.
    pub refusals: u64,
    /// The number of the publisher's messages that were lost.
    pub missed: u64,
}

/// Serializes the state as its word.
fn word<S: Serializer>(state: &SourceState, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(state.word())
}

/// The notices and reports that the binary reads.
#[derive(Default)]
pub(crate) struct SourceStatus {
    pub notices: Notices,
    pub reports: Vec<SourceReport>,
}

pub(crate) fn lock(status: &Mutex<SourceStatus>) -> MutexGuard<'_, SourceStatus> {
    // A thread that panicked with the lock left whole values.
    status.lock().unwrap_or_else(PoisonError::into_inner)
}

struct SourceReading {
    fields: u64,
    words: [u64; FIELDS],
    /// The time of measurement in nanoseconds from the epoch, on our clock.
    at_ns: i64,
    unix_ns: u64,
}

#[derive(Default)]
struct SourceEntry {
    reading: Option<SourceReading>,
    failure: Option<ReadFailure>,
    /// Set once the source gave a reading or a failure.
    was_read: bool,
    stale: bool,
    last_notice: Option<Instant>,
    missed_reported: u64,
}

pub(crate) struct Hub {
    epoch: Instant,
    stale_after_ns: i64,
    entries: [SourceEntry; SOURCES],
    words: latch::LatchWriter<WORDS>,
    status: Arc<Mutex<SourceStatus>>,
}

impl Hub {
    pub(crate) fn new(
        words: latch::LatchWriter<WORDS>,
        epoch: Instant,
        stale_after: Duration,
        status: Arc<Mutex<SourceStatus>>,
    ) -> Hub {
        let stale_after_ns = i64::try_from(stale_after.as_nanos()).unwrap_or(i64::MAX);
        Hub { epoch, stale_after_ns, entries: Default::default(), words, status }
    }

    /// Starts a source under a name. Drops the readings of the source's previous name.
    pub(crate) fn await_source(&mut self, kind: SourceKind, name: String) {
        self.entries[kind as usize] = SourceEntry::default();
        let mut status = lock(&self.status);
        status.reports.retain(|report| report.source != kind);
        let report = SourceReport {
            source: kind,
            name,
            state: SourceState::Awaited,
            why: None,
            readings: 0,
            refusals: 0,
            missed: 0,
        };
        status.reports.push(report);
        status.reports.sort_by_key(|report| report.source);
        drop(status);
        self.publish();
    }

    /// Stores a reading. `unix_ns` is its time of measurement in unix nanoseconds.
    pub(crate) fn reading(&mut self, kind: SourceKind, values: LoadValues, unix_ns: u64, now: Moment) {
        let (epoch, entry) = (self.epoch, &mut self.entries[kind as usize]);
        let is_found = entry.failure.take().is_some() || !entry.was_read;
        entry.was_read = true;
        // Reading the same values again makes them no younger.
        let is_new = entry.reading.as_ref().is_none_or(|reading| reading.unix_ns != unix_ns);
        if is_new {
            let age_ns = i64::try_from(now.unix_ns.saturating_sub(unix_ns)).unwrap_or(i64::MAX);
            let at_ns = since(epoch, now.instant).saturating_sub(age_ns);
            let (fields, words) = values.to_words();
            entry.reading = Some(SourceReading { fields, words, at_ns, unix_ns });
            self.report(kind, |report| report.readings += 1);
        }
        if is_found {
            self.notify(kind, SourceChange::Found, now.instant);
        }
        if is_new {
            self.publish();
        }
        if is_new || is_found {
            self.update_age(kind, now.instant);
        }
    }

    /// Stores a failure. The last reading stays until it is stale.
    pub(crate) fn failure(&mut self, kind: SourceKind, failure: ReadFailure, now: Moment) {
        self.report(kind, |report| report.refusals += 1);
        let entry = &mut self.entries[kind as usize];
        entry.was_read = true;
        if entry.failure.as_ref() == Some(&failure) {
            return;
        }
        // The text may change with every read, as for garbage. Notices must not appear at that rate.
        let same_kind = entry
            .failure
            .as_ref()
            .is_some_and(|before| std::mem::discriminant(before) == std::mem::discriminant(&failure));
        let is_recent =
            entry.last_notice.is_some_and(|at| now.instant.duration_since(at) < SAME_NOTICE_EVERY);
        if same_kind && is_recent {
            return;
        }
        entry.failure = Some(failure.clone());
        let change = match failure {
            ReadFailure::Unavailable(why) => SourceChange::Lost { why },
            ReadFailure::Invalid(why) => SourceChange::Invalid { why },
        };
        self.notify(kind, change, now.instant);
        self.update_report(kind);
    }

    /// Counts lost messages of a source.
    pub(crate) fn missed(&mut self, kind: SourceKind, messages: u64) {
        self.report(kind, |report| report.missed = report.missed.saturating_add(messages));
    }

    /// Emits notices for sources that became stale and for lost messages. Call it often.
    pub(crate) fn tick(&mut self, now: Instant) {
        for kind in SourceKind::ALL {
            self.update_age(kind, now);
            let missed = lock(&self.status)
                .reports
                .iter()
                .find(|report| report.source == kind)
                .map_or(0, |report| report.missed);
            let entry = &mut self.entries[kind as usize];
            let is_recent = entry.last_notice.is_some_and(|at| now.duration_since(at) < SAME_NOTICE_EVERY);
            if missed > entry.missed_reported && !is_recent {
                let messages = missed - entry.missed_reported;
                entry.missed_reported = missed;
                self.notify(kind, SourceChange::Missed { messages }, now);
            }
        }
    }

    /// Checks whether a source became stale or fresh.
    fn update_age(&mut self, kind: SourceKind, now: Instant) {
        let now_ns = since(self.epoch, now);
        let entry = &mut self.entries[kind as usize];
        let Some(reading) = &entry.reading else { return };
        let age_ns = now_ns.saturating_sub(reading.at_ns).max(0);
        let stale = age_ns > self.stale_after_ns;
        let changed = stale != entry.stale;
        entry.stale = stale;
        if changed {
            let change = if stale {
                SourceChange::Stale { age_ns: age_ns.cast_unsigned() }
            } else {
                SourceChange::Fresh
            };
            self.notify(kind, change, now);
        }
        self.update_report(kind);
    }

    fn notify(&mut self, kind: SourceKind, change: SourceChange, now: Instant) {
        self.entries[kind as usize].last_notice = Some(now);
        let mut status = lock(&self.status);
        let report = status.reports.iter().find(|report| report.source == kind);
        let name = report.map(|report| report.name.clone()).unwrap_or_default();
        status.notices.push(SourceNotice { source: kind, name, change });
    }

    fn report(&self, kind: SourceKind, change: impl FnOnce(&mut SourceReport)) {
        if let Some(report) = lock(&self.status).reports.iter_mut().find(|report| report.source == kind) {
            change(report);
        }
    }

    /// Updates the report of a source.
    fn update_report(&self, kind: SourceKind) {
        let entry = &self.entries[kind as usize];
        let (state, why) = match (&entry.failure, &entry.reading) {
            (Some(ReadFailure::Unavailable(why)), _) => (SourceState::Lost, Some(why)),
            (Some(ReadFailure::Invalid(why)), _) => (SourceState::Invalid, Some(why)),
            (None, None) => (SourceState::Awaited, None),
            (None, Some(_)) if entry.stale => (SourceState::Stale, None),
            (None, Some(_)) => (SourceState::Fresh, None),
        };
        self.report(kind, |report| {
            report.state = state;
            if report.why.as_ref() != why {
                report.why = why.cloned();
            }
        });
    }

    /// Publishes all readings.
    fn publish(&mut self) {
        let mut words = [0; WORDS];
        for (entry, words) in self.entries.iter().zip(words.as_chunks_mut::<PER_SOURCE>().0) {
            if let Some(reading) = &entry.reading {
                words[HAS] = reading.fields | READ;
                words[AT] = reading.at_ns.cast_unsigned();
                words[UNIX] = reading.unix_ns;
                words[VALUES..].copy_from_slice(&reading.words);
            }
        }
        self.words.write(&words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub() -> (Hub, Moment) {
        let now = Moment::now();
        let status = Arc::new(Mutex::new(SourceStatus::default()));
        let mut hub = Hub::new(latch::latch().0, now.instant, Duration::from_secs(5), status);
        hub.await_source(SourceKind::Metrics, "m".to_owned());
        (hub, now)
    }

    fn taken(hub: &Hub) -> Vec<SourceChange> {
        lock(&hub.status).notices.take().into_iter().map(|notice| notice.change).collect()
    }

    #[test]
    fn failures_with_changing_texts_give_one_notice_a_second() {
        let (mut hub, start) = hub();
        for n in 0..250u32 {
            let now = Moment { instant: start.instant + Duration::from_millis(10) * n, ..start };
            hub.failure(SourceKind::Metrics, ReadFailure::Invalid(format!("garbage {n}")), now);
        }
        let why = |n: u32| SourceChange::Invalid { why: format!("garbage {n}") };
        assert_eq!(taken(&hub), [why(0), why(100), why(200)]);
        assert_eq!(lock(&hub.status).reports[0].refusals, 250);
        hub.failure(SourceKind::Metrics, ReadFailure::Unavailable("gone".to_owned()), start);
        assert_eq!(
            taken(&hub),
            [SourceChange::Lost { why: "gone".to_owned() }],
            "another kind of failure gives a notice at once"
        );
    }

    #[test]
    fn the_same_reading_read_again_gets_no_younger() {
        let (mut hub, start) = hub();
        let values = LoadValues { num_running_reqs: Some(1), ..LoadValues::default() };
        for seconds in 0..8 {
            let later = Duration::from_secs(seconds);
            let now =
                Moment { instant: start.instant + later, unix_ns: start.unix_ns + later.as_nanos() as u64 };
            hub.reading(SourceKind::Metrics, values, start.unix_ns, now);
            hub.tick(now.instant);
        }
        assert_eq!(taken(&hub), [SourceChange::Found, SourceChange::Stale { age_ns: 6_000_000_000 }]);
        let report = lock(&hub.status).reports[0].clone();
        assert_eq!((report.state, report.readings), (SourceState::Stale, 1));
    }

    #[test]
    fn lost_messages_give_one_notice_a_second_with_their_sum() {
        let (mut hub, start) = hub();
        hub.failure(SourceKind::Metrics, ReadFailure::Unavailable("x".to_owned()), start);
        for n in 0..5 {
            hub.missed(SourceKind::Metrics, n);
            hub.tick(start.instant);
        }
        hub.tick(start.instant + Duration::from_secs(1));
        assert_eq!(taken(&hub)[1..], [SourceChange::Missed { messages: 10 }]);
    }
}
