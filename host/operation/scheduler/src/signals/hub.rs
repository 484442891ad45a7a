//! The last reading of the source, for the readers on the path, and the changes of the source, for events.
//! It runs on the background thread, and both are behind one lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use afterbay_types::SourceState;
use serde::{Serialize, Serializer};

use crate::signals::bounds::SAME_NOTICE_EVERY;
use crate::signals::notices::{Notices, SourceChange, SourceNotice};
use crate::signals::snapshot::SourceKind;
use crate::signals::values::LoadValues;

/// The reason why a source gave no reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReadFailure {
    /// The source cannot be read.
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

/// The status of a source, for `/v1/status` and `/metrics`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SourceReport {
    /// The kind of the source.
    pub source: SourceKind,
    /// The source's file, or the words for frames.
    pub name: String,
    /// The state of the source.
    #[serde(serialize_with = "word")]
    pub state: SourceState,
    /// The reason if the source is lost or invalid.
    pub why: Option<String>,
    /// The number of new readings.
    pub readings: u64,
    /// The number of reads that gave no reading.
    pub refusals: u64,
}

/// Serializes the state as its word.
fn word<S: Serializer>(state: &SourceState, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(state.word())
}

/// The last reading, and the notices and the report that the binary reads.
#[derive(Default)]
pub(crate) struct SourceStatus {
    pub reading: Option<SourceReading>,
    pub notices: Notices,
    pub report: Option<SourceReport>,
}

pub(crate) fn lock(status: &Mutex<SourceStatus>) -> MutexGuard<'_, SourceStatus> {
    // A thread that panicked with the lock left whole values.
    status.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A reading of the source.
#[derive(Clone, Copy)]
pub(crate) struct SourceReading {
    pub values: LoadValues,
    /// The time of measurement, on the clock of the source.
    pub unix_ns: u64,
    /// The first sight of the reading, and its age at that time.
    seen: Instant,
    age_at_sight: Duration,
}

impl SourceReading {
    pub(crate) fn age(&self, now: Instant) -> Duration {
        self.age_at_sight + now.saturating_duration_since(self.seen)
    }
}

#[derive(Default)]
struct SourceEntry {
    failure: Option<ReadFailure>,
    /// Set once the source gave a reading or a failure.
    was_read: bool,
    stale: bool,
    last_notice: Option<Instant>,
}

pub(crate) struct Hub {
    stale_after: Duration,
    kind: SourceKind,
    entry: SourceEntry,
    status: Arc<Mutex<SourceStatus>>,
}

impl Hub {
    pub(crate) fn new(kind: SourceKind, stale_after: Duration, status: Arc<Mutex<SourceStatus>>) -> Hub {
        Hub { stale_after, kind, entry: SourceEntry::default(), status }
    }

    /// Starts the source under a name. Drops the reading under the previous name.
    pub(crate) fn await_source(&mut self, name: String) {
        self.entry = SourceEntry::default();
        let (source, state) = (self.kind, SourceState::Awaited);
        let report = SourceReport { source, name, state, why: None, readings: 0, refusals: 0 };
        let mut status = lock(&self.status);
        (status.reading, status.report) = (None, Some(report));
    }

    /// Stores a reading. `unix_ns` is its time of measurement in unix nanoseconds.
    pub(crate) fn reading(&mut self, values: LoadValues, unix_ns: u64, now: Moment) {
        let is_found = self.entry.failure.take().is_some() || !self.entry.was_read;
        self.entry.was_read = true;
        // Reading the same values again makes them no younger.
        let is_new = {
            let mut status = lock(&self.status);
            let is_new = status.reading.is_none_or(|reading| reading.unix_ns != unix_ns);
            if is_new {
                let age_at_sight = Duration::from_nanos(now.unix_ns.saturating_sub(unix_ns));
                status.reading = Some(SourceReading { values, unix_ns, seen: now.instant, age_at_sight });
                status.report.iter_mut().for_each(|report| report.readings += 1);
            }
            is_new
        };
        if is_found {
            self.notify(SourceChange::Found, now.instant);
        }
        if is_new || is_found {
            self.update_age(now.instant);
        }
    }

    /// Stores a failure. The last reading stays until it is stale.
    pub(crate) fn failure(&mut self, failure: ReadFailure, now: Moment) {
        lock(&self.status).report.iter_mut().for_each(|report| report.refusals += 1);
        let entry = &mut self.entry;
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
        self.notify(change, now.instant);
        self.update_report();
    }

    /// Checks whether the source became stale or fresh. Call it often.
    pub(crate) fn update_age(&mut self, now: Instant) {
        let Some(age) = lock(&self.status).reading.map(|reading| reading.age(now)) else { return };
        let stale = age > self.stale_after;
        if std::mem::replace(&mut self.entry.stale, stale) != stale {
            self.notify(
                match stale {
                    true => SourceChange::Stale { age_ns: u64::try_from(age.as_nanos()).unwrap_or(u64::MAX) },
                    false => SourceChange::Fresh,
                },
                now,
            );
        }
        self.update_report();
    }

    fn notify(&mut self, change: SourceChange, now: Instant) {
        self.entry.last_notice = Some(now);
        let mut status = lock(&self.status);
        let name = status.report.as_ref().map(|report| report.name.clone()).unwrap_or_default();
        status.notices.push(SourceNotice { source: self.kind, name, change });
    }

    /// Updates the report of the source.
    fn update_report(&self) {
        let mut status = lock(&self.status);
        let (state, why) = match (&self.entry.failure, &status.reading) {
            (Some(ReadFailure::Unavailable(why)), _) => (SourceState::Lost, Some(why)),
            (Some(ReadFailure::Invalid(why)), _) => (SourceState::Invalid, Some(why)),
            (None, None) => (SourceState::Awaited, None),
            (None, Some(_)) if self.entry.stale => (SourceState::Stale, None),
            (None, Some(_)) => (SourceState::Fresh, None),
        };
        if let Some(report) = &mut status.report {
            (report.state, report.why) = (state, why.cloned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub() -> (Hub, Moment) {
        let now = Moment::now();
        let status = Arc::new(Mutex::new(SourceStatus::default()));
        let mut hub = Hub::new(SourceKind::Frames, Duration::from_secs(5), status);
        hub.await_source("m".to_owned());
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
            hub.failure(ReadFailure::Invalid(format!("garbage {n}")), now);
        }
        let why = |n: u32| SourceChange::Invalid { why: format!("garbage {n}") };
        assert_eq!(taken(&hub), [why(0), why(100), why(200)]);
        assert_eq!(lock(&hub.status).report.as_ref().unwrap().refusals, 250);
        hub.failure(ReadFailure::Unavailable("gone".to_owned()), start);
        assert_eq!(
            taken(&hub),
            [SourceChange::Lost { why: "gone".to_owned() }],
            "another kind of failure gives a notice at once"
        );
    }

    #[test]
    fn the_same_reading_read_again_gets_no_younger() {
        let (mut hub, start) = hub();
        let values = LoadValues { running: Some(1), ..LoadValues::default() };
        for seconds in 0..8 {
            let later = Duration::from_secs(seconds);
            let now =
                Moment { instant: start.instant + later, unix_ns: start.unix_ns + later.as_nanos() as u64 };
            hub.reading(values, start.unix_ns, now);
            hub.update_age(now.instant);
        }
        assert_eq!(taken(&hub), [SourceChange::Found, SourceChange::Stale { age_ns: 6_000_000_000 }]);
        let report = lock(&hub.status).report.clone().unwrap();
        assert_eq!((report.state, report.readings), (SourceState::Stale, 1));
    }
}
