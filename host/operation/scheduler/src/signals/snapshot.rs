//! The reader's side: one read gives the whole load, with the age of each value.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::signals::latch;
use crate::signals::values::{FIELDS, Field, LoadValues};

/// The kinds of sources, in the order in which they are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// SGLang's file in shared memory.
    LoadSnapshot,
    /// SGLang's LoadStat publisher.
    LoadStat,
    /// SGLang's Prometheus metrics.
    Metrics,
    /// The statistics in vLLM's frames.
    Frames,
}

impl SourceKind {
    /// All kinds.
    pub const ALL: [SourceKind; SOURCES] =
        [SourceKind::LoadSnapshot, SourceKind::LoadStat, SourceKind::Metrics, SourceKind::Frames];

    /// The key in [`crate::signals::LoadConfig`], for labels.
    pub fn name(self) -> &'static str {
        match self {
            SourceKind::LoadSnapshot => "load_snapshot",
            SourceKind::LoadStat => "load_stat",
            SourceKind::Metrics => "metrics",
            SourceKind::Frames => "frames",
        }
    }
}

impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether the values are up to date.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Freshness {
    /// No source has given a reading yet; there are no values.
    #[default]
    Never,
    /// Every value comes from a source that is not stale.
    Fresh,
    /// Every source is stale; the values are the last known ones.
    Stale,
}

/// The age of the last reading of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SourceAge {
    /// The time of measurement in unix nanoseconds: the scheduler's time for a LoadSnapshot, otherwise ours.
    pub timestamp_unix_ns: u64,
    /// The age in nanoseconds at the read.
    pub age_ns: u64,
    /// Whether the age is within `stale_after`.
    pub is_fresh: bool,
}

/// The age of the last reading of each source; `None` if there was none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sources {
    /// The file in shared memory.
    pub load_snapshot: Option<SourceAge>,
    /// The publisher.
    pub load_stat: Option<SourceAge>,
    /// The metrics.
    pub metrics: Option<SourceAge>,
    /// The frames.
    pub frames: Option<SourceAge>,
}

/// The scheduler's load at one read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LoadSnapshot {
    /// Whether the values are up to date.
    pub freshness: Freshness,
    /// The main source: the one measured last among those with a value; the metrics only if they are alone.
    pub source: Option<SourceKind>,
    /// The main source's time of measurement in unix nanoseconds.
    pub timestamp_unix_ns: Option<u64>,
    /// The main source's age in nanoseconds at the read.
    pub age_ns: Option<u64>,
    /// The values, fresh or stale. [`LoadSnapshot::fresh`] returns them only if they are fresh.
    #[serde(flatten)]
    pub values: LoadValues,
    /// The ages of all sources.
    pub sources: Sources,
    /// The fields of each source, as masks.
    #[serde(skip)]
    from: [u64; SOURCES],
}

impl LoadSnapshot {
    /// The values, if they are fresh.
    #[inline]
    pub fn fresh(&self) -> Option<&LoadValues> {
        (self.freshness == Freshness::Fresh).then_some(&self.values)
    }

    /// The source of a field's value; `None` if it has none.
    pub fn source_of(&self, field: Field) -> Option<SourceKind> {
        SourceKind::ALL.into_iter().find(|kind| self.from[*kind as usize] & field.bit() != 0)
    }

    /// The age of the main source; `None` before the first reading.
    pub fn age(&self) -> Option<Duration> {
        self.age_ns.map(Duration::from_nanos)
    }
}

/// The words of the latch. For each source: the mask of its fields, its time on our clock (signed nanoseconds
/// from the epoch), its time in unix nanoseconds, and its fields. The reader merges them, because only a read
/// knows which sources are stale at its time.
pub(crate) const WORDS: usize = SOURCES * PER_SOURCE;
/// The number of kinds of sources.
pub(crate) const SOURCES: usize = 4;
pub(crate) const PER_SOURCE: usize = VALUES + FIELDS;
pub(crate) const HAS: usize = 0;
pub(crate) const AT: usize = 1;
pub(crate) const UNIX: usize = 2;
pub(crate) const VALUES: usize = 3;
/// The bit of [`HAS`] that marks a reading.
pub(crate) const READ: u64 = 1 << 63;

/// Reads the load. Cloning and reading are cheap: no lock, no system call, no allocation.
#[derive(Clone)]
pub struct LoadHandle {
    words: latch::LatchReader<WORDS>,
    epoch: Instant,
    stale_after_ns: u64,
}

impl fmt::Debug for LoadHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LoadHandle").field(&self.read()).finish()
    }
}

impl Default for LoadHandle {
    /// A handle without sources, always [`Freshness::Never`]. For a stream without signals.
    fn default() -> Self {
        LoadHandle { words: latch::latch().1, epoch: Instant::now(), stale_after_ns: 0 }
    }
}

impl LoadHandle {
    pub(crate) fn new(words: latch::LatchReader<WORDS>, epoch: Instant, stale_after: Duration) -> LoadHandle {
        let stale_after_ns = u64::try_from(stale_after.as_nanos()).unwrap_or(u64::MAX);
        LoadHandle { words, epoch, stale_after_ns }
    }

    /// The load now. Reading the clock costs about as much as the rest: if the time is known,
    /// [`LoadHandle::read_at`] takes half the time.
    #[inline]
    pub fn read(&self) -> LoadSnapshot {
        self.read_at(Instant::now())
    }

    /// The load, with ages at `now`.
    #[inline]
    pub fn read_at(&self, now: Instant) -> LoadSnapshot {
        let now_ns = since(self.epoch, now);
        self.words.read(|words| self.merge(words, now_ns))
    }

    /// Takes each field from the first source that has it, in the order of the crate's documentation. Must
    /// not panic for any words: they may mix two writes, and the result is then discarded.
    #[inline]
    fn merge(&self, words: &[AtomicU64; WORDS], now_ns: i64) -> LoadSnapshot {
        let word = |source: usize, index: usize| words[source * PER_SOURCE + index].load(Ordering::Relaxed);
        let mut ages = [None; SOURCES];
        let mut has = [0; SOURCES];
        let mut any_fresh = false;
        for source in 0..SOURCES {
            let fields = word(source, HAS);
            if fields & READ == 0 {
                continue;
            }
            let age_ns = now_ns.saturating_sub(word(source, AT).cast_signed()).max(0).cast_unsigned();
            let is_fresh = age_ns <= self.stale_after_ns;
            ages[source] = Some(SourceAge { timestamp_unix_ns: word(source, UNIX), age_ns, is_fresh });
            has[source] = fields & !READ;
            any_fresh |= is_fresh && has[source] != 0;
        }
        for source in 0..SOURCES {
            if any_fresh && !ages[source].is_some_and(|age| age.is_fresh) {
                has[source] = 0;
            }
        }
        let age = |source: usize| ages[source].map_or(u64::MAX, |age| age.age_ns);
        let (file, publisher, metrics, frames) = (0, 1, 2, 3);
        let [first, second] = if age(publisher) < age(file) { [publisher, file] } else { [file, publisher] };
        let mut from = [0; SOURCES];
        from[first] = has[first];
        from[second] = has[second] & !from[first];
        from[metrics] = has[metrics] & !(from[first] | from[second]);
        // A stream of vLLM has no other source.
        from[frames] = has[frames] & !(from[first] | from[second] | from[metrics]);
        let all = from[file] | from[publisher] | from[metrics] | from[frames];
        let main = [first, second, metrics, frames].into_iter().find(|source| from[*source] != 0);
        let values = LoadValues::from_words(all, |field| {
            let bit = field.bit();
            let source = if from[publisher] & bit != 0 {
                publisher
            } else if from[metrics] & bit != 0 {
                metrics
            } else if from[frames] & bit != 0 {
                frames
            } else {
                file
            };
            word(source, VALUES + field as usize)
        });
        let main_age = main.and_then(|source| ages[source]);
        LoadSnapshot {
            freshness: match (all, any_fresh) {
                (0, _) => Freshness::Never,
                (_, true) => Freshness::Fresh,
                (_, false) => Freshness::Stale,
            },
            source: main.map(|source| SourceKind::ALL[source]),
            timestamp_unix_ns: main_age.map(|age| age.timestamp_unix_ns),
            age_ns: main_age.map(|age| age.age_ns),
            values,
            sources: Sources {
                load_snapshot: ages[file],
                load_stat: ages[publisher],
                metrics: ages[metrics],
                frames: ages[frames],
            },
            from,
        }
    }
}

/// The nanoseconds from `epoch` to `at`, negative if `at` is earlier.
#[inline]
pub(crate) fn since(epoch: Instant, at: Instant) -> i64 {
    // 64 bits are enough for 292 years. 128 bits would cost as much as the rest of a read.
    let ns = |duration: Duration| {
        let seconds = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
        seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(duration.subsec_nanos()))
    };
    match at.checked_duration_since(epoch) {
        Some(after) => ns(after),
        None => -ns(epoch.saturating_duration_since(at)),
    }
}
