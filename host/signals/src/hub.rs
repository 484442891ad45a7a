//! What the sources said last, handed over to the readers; and what changed about the sources. On the background
//! thread; what it tells goes through a latch (the path) and a lock (the binary).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use afterbay_types::{SourceState, Word};
use serde::{Serialize, Serializer};

use crate::bounds::SAME_NOTICE_EVERY;
use crate::latch;
use crate::notices::{Change, Notice, Notices};
use crate::snapshot::{AT, HAS, PER_SOURCE, READ, SourceKind, UNIX, VALUES, WORDS, since};
use crate::values::{FIELDS, LoadValues};

/// Why a look at a source gave no reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It cannot be had.
    Lost(String),
    /// It is there and says what cannot be used.
    Invalid(String),
}

/// One moment, on both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    pub instant: Instant,
    pub unix_ns: u64,
}

/// A source as it stands, for `/v1/signals` and `/metrics`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SourceReport {
    /// Which.
    pub source: SourceKind,
    /// Its file, endpoint or URL.
    pub name: String,
    /// How it stands.
    #[serde(serialize_with = "word")]
    pub state: SourceState,
    /// Why it is lost or invalid, in words.
    pub why: Option<String>,
    /// Readings that said something new.
    pub readings: u64,
    /// Looks, scrapes and messages that gave none.
    pub refusals: u64,
    /// Messages of the publisher that never came.
    pub missed: u64,
}

/// Serializes the state as its word.
fn word<S: Serializer>(state: &SourceState, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(state.word())
}

/// What the binary sees.
#[derive(Default)]
pub(crate) struct Told {
    pub notices: Notices,
    pub reports: Vec<SourceReport>,
}

pub(crate) fn lock(told: &Mutex<Told>) -> MutexGuard<'_, Told> {
    // Whoever panicked with it left whole values.
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Reading {
    fields: u64,
    words: [u64; FIELDS],
    /// On our clock, from the epoch.
    at_ns: i64,
    unix_ns: u64,
}

#[derive(Default)]
struct Slot {
    reading: Option<Reading>,
    refusal: Option<Refusal>,
    /// Heard of: a reading or a refusal was told.
    heard: bool,
    stale: bool,
    told_at: Option<Instant>,
    missed_told: u64,
}

pub(crate) struct Hub {
    epoch: Instant,
    stale_after_ns: i64,
    slots: [Slot; 3],
    words: latch::Writer<WORDS>,
    told: Arc<Mutex<Told>>,
}

impl Hub {
    pub(crate) fn new(
        words: latch::Writer<WORDS>,
        epoch: Instant,
        stale_after: Duration,
        told: Arc<Mutex<Told>>,
    ) -> Hub {
        let stale_after_ns = i64::try_from(stale_after.as_nanos()).unwrap_or(i64::MAX);
        Hub { epoch, stale_after_ns, slots: Default::default(), words, told }
    }

    /// A source is to be read from now on under this name; what it said before under another is forgotten.
    pub(crate) fn await_source(&mut self, kind: SourceKind, name: String) {
        self.slots[kind as usize] = Slot::default();
        let mut told = lock(&self.told);
        told.reports.retain(|report| report.source != kind);
        let report = SourceReport {
            source: kind,
            name,
            state: SourceState::Awaited,
            why: None,
            readings: 0,
            refusals: 0,
            missed: 0,
        };
        told.reports.push(report);
        told.reports.sort_by_key(|report| report.source);
        drop(told);
        self.publish();
    }

    /// What a source says, and when it measured it (unix nanoseconds).
    pub(crate) fn reading(&mut self, kind: SourceKind, values: LoadValues, unix_ns: u64, now: Now) {
        let (epoch, slot) = (self.epoch, &mut self.slots[kind as usize]);
        let found = slot.refusal.take().is_some() || !slot.heard;
        slot.heard = true;
        // The same reading again is no younger for being seen again.
        let new = slot.reading.as_ref().is_none_or(|reading| reading.unix_ns != unix_ns);
        if new {
            let age_ns = i64::try_from(now.unix_ns.saturating_sub(unix_ns)).unwrap_or(i64::MAX);
            let at_ns = since(epoch, now.instant).saturating_sub(age_ns);
            let (fields, words) = values.to_words();
            slot.reading = Some(Reading { fields, words, at_ns, unix_ns });
            self.report(kind, |report| report.readings += 1);
        }
        if found {
            self.tell(kind, Change::Found, now.instant);
        }
        if new {
            self.publish();
        }
        if new || found {
            self.age(kind, now.instant);
        }
    }

    /// A source gave no reading. The one before stands until it is stale.
    pub(crate) fn refused(&mut self, kind: SourceKind, refusal: Refusal, now: Now) {
        self.report(kind, |report| report.refusals += 1);
        let slot = &mut self.slots[kind as usize];
        slot.heard = true;
        if slot.refusal.as_ref() == Some(&refusal) {
            return;
        }
        // Words may change with every look, as those of garbage do; notices must not come at that rate.
        let same_kind = slot
            .refusal
            .as_ref()
            .is_some_and(|before| std::mem::discriminant(before) == std::mem::discriminant(&refusal));
        let soon = slot.told_at.is_some_and(|at| now.instant.duration_since(at) < SAME_NOTICE_EVERY);
        if same_kind && soon {
            return;
        }
        slot.refusal = Some(refusal.clone());
        let change = match refusal {
            Refusal::Lost(why) => Change::Lost { why },
            Refusal::Invalid(why) => Change::Invalid { why },
        };
        self.tell(kind, change, now.instant);
        self.settle(kind);
    }

    /// Messages of a source that never came.
    pub(crate) fn missed(&mut self, kind: SourceKind, messages: u64) {
        self.report(kind, |report| report.missed = report.missed.saturating_add(messages));
    }

    /// To be called often: sees what has become stale, and tells what was missed.
    pub(crate) fn tick(&mut self, now: Instant) {
        for kind in SourceKind::ALL {
            self.age(kind, now);
            let missed =
                lock(&self.told).reports.iter().find(|it| it.source == kind).map_or(0, |it| it.missed);
            let slot = &mut self.slots[kind as usize];
            let soon = slot.told_at.is_some_and(|at| now.duration_since(at) < SAME_NOTICE_EVERY);
            if missed > slot.missed_told && !soon {
                let messages = missed - slot.missed_told;
                slot.missed_told = missed;
                self.tell(kind, Change::Missed { messages }, now);
            }
        }
    }

    /// Sees whether it became stale, or fresh again.
    fn age(&mut self, kind: SourceKind, now: Instant) {
        let now_ns = since(self.epoch, now);
        let slot = &mut self.slots[kind as usize];
        let Some(reading) = &slot.reading else { return };
        let age_ns = now_ns.saturating_sub(reading.at_ns).max(0);
        let stale = age_ns > self.stale_after_ns;
        let changed = stale != slot.stale;
        slot.stale = stale;
        if changed {
            let change = if stale { Change::Stale { age_ns: age_ns.cast_unsigned() } } else { Change::Fresh };
            self.tell(kind, change, now);
        }
        self.settle(kind);
    }

    fn tell(&mut self, kind: SourceKind, change: Change, now: Instant) {
        self.slots[kind as usize].told_at = Some(now);
        let mut told = lock(&self.told);
        let report = told.reports.iter().find(|report| report.source == kind);
        let name = report.map(|report| report.name.clone()).unwrap_or_default();
        told.notices.push(Notice { source: kind, name, change });
    }

    fn report(&self, kind: SourceKind, change: impl FnOnce(&mut SourceReport)) {
        if let Some(report) = lock(&self.told).reports.iter_mut().find(|report| report.source == kind) {
            change(report);
        }
    }

    /// Brings the report up to date.
    fn settle(&self, kind: SourceKind) {
        let slot = &self.slots[kind as usize];
        let (state, why) = match (&slot.refusal, &slot.reading) {
            (Some(Refusal::Lost(why)), _) => (SourceState::Lost, Some(why)),
            (Some(Refusal::Invalid(why)), _) => (SourceState::Invalid, Some(why)),
            (None, None) => (SourceState::Awaited, None),
            (None, Some(_)) if slot.stale => (SourceState::Stale, None),
            (None, Some(_)) => (SourceState::Fresh, None),
        };
        self.report(kind, |report| {
            report.state = state;
            if report.why.as_ref() != why {
                report.why = why.cloned();
            }
        });
    }

    /// Hands all readings over, as they are.
    fn publish(&mut self) {
        let mut words = [0; WORDS];
        for (slot, words) in self.slots.iter().zip(words.as_chunks_mut::<PER_SOURCE>().0) {
            if let Some(reading) = &slot.reading {
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

    fn hub() -> (Hub, Now) {
        let now = crate::reader::now();
        let told = Arc::new(Mutex::new(Told::default()));
        let mut hub = Hub::new(latch::latch().0, now.instant, Duration::from_secs(5), told);
        hub.await_source(SourceKind::Metrics, "m".to_owned());
        (hub, now)
    }

    fn taken(hub: &Hub) -> Vec<Change> {
        lock(&hub.told).notices.take().into_iter().map(|notice| notice.change).collect()
    }

    #[test]
    fn words_that_change_with_every_look_are_told_once_a_second_and_counted_always() {
        let (mut hub, begun) = hub();
        for n in 0..250u32 {
            let now = Now { instant: begun.instant + Duration::from_millis(10) * n, ..begun };
            hub.refused(SourceKind::Metrics, Refusal::Invalid(format!("garbage {n}")), now);
        }
        let why = |n: u32| Change::Invalid { why: format!("garbage {n}") };
        assert_eq!(taken(&hub), [why(0), why(100), why(200)]);
        assert_eq!(lock(&hub.told).reports[0].refusals, 250);
        hub.refused(SourceKind::Metrics, Refusal::Lost("gone".to_owned()), begun);
        assert_eq!(taken(&hub), [Change::Lost { why: "gone".to_owned() }], "another kind is told at once");
    }

    #[test]
    fn the_same_reading_seen_again_grows_no_younger() {
        let (mut hub, begun) = hub();
        let values = LoadValues { num_running_reqs: Some(1), ..LoadValues::default() };
        for seconds in 0..8 {
            let later = Duration::from_secs(seconds);
            let now =
                Now { instant: begun.instant + later, unix_ns: begun.unix_ns + later.as_nanos() as u64 };
            hub.reading(SourceKind::Metrics, values, begun.unix_ns, now);
            hub.tick(now.instant);
        }
        assert_eq!(taken(&hub), [Change::Found, Change::Stale { age_ns: 6_000_000_000 }]);
        let report = lock(&hub.told).reports[0].clone();
        assert_eq!((report.state, report.readings), (SourceState::Stale, 1));
    }

    #[test]
    fn what_was_missed_is_told_as_a_sum_once_a_second() {
        let (mut hub, begun) = hub();
        hub.refused(SourceKind::Metrics, Refusal::Lost("x".to_owned()), begun);
        for n in 0..5 {
            hub.missed(SourceKind::Metrics, n);
            hub.tick(begun.instant);
        }
        hub.tick(begun.instant + Duration::from_secs(1));
        assert_eq!(taken(&hub)[1..], [Change::Missed { messages: 10 }]);
    }
}
