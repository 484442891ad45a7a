//! The reader's side: one read gives the whole load, with its age.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::signals::latch;
use crate::signals::values::{FIELDS, LoadValues};

/// The kinds of sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// SGLang's file in shared memory.
    LoadSnapshot,
    /// The statistics in vLLM's frames.
    Frames,
}

impl SourceKind {
    /// The word for labels and events.
    pub fn name(self) -> &'static str {
        match self {
            SourceKind::LoadSnapshot => "load_snapshot",
            SourceKind::Frames => "frames",
        }
    }
}

/// Whether the values are up to date.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Freshness {
    /// The source has given no reading yet; there are no values.
    #[default]
    Never,
    /// The last reading is not stale.
    Fresh,
    /// The values are the last known ones.
    Stale,
}

/// The scheduler's load at one read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LoadSnapshot {
    /// Whether the values are up to date.
    pub freshness: Freshness,
    /// The source's time of measurement in unix nanoseconds: the scheduler's time for a LoadSnapshot, otherwise ours.
    pub timestamp_unix_ns: Option<u64>,
    /// The age of the last reading in nanoseconds at the read.
    pub age_ns: Option<u64>,
    /// The values, fresh or stale. [`LoadSnapshot::fresh`] returns them only if they are fresh.
    #[serde(flatten)]
    pub values: LoadValues,
}

impl LoadSnapshot {
    /// The values, if they are fresh.
    #[inline]
    pub fn fresh(&self) -> Option<&LoadValues> {
        (self.freshness == Freshness::Fresh).then_some(&self.values)
    }

    /// The age of the last reading; `None` before the first reading.
    pub fn age(&self) -> Option<Duration> {
        self.age_ns.map(Duration::from_nanos)
    }
}

/// The words of the latch: the mask of the present fields, the time on our clock (signed nanoseconds from the epoch), the time
/// in unix nanoseconds, and the fields. Only a read knows whether the reading is stale at its time.
pub(crate) const WORDS: usize = VALUES + FIELDS;
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
    /// A handle without a source, always [`Freshness::Never`]. For a stream without signals.
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
        self.words.read(|words| self.load(words, now_ns))
    }

    /// Must not panic for any words: they may mix two writes, and the result is then discarded.
    #[inline]
    fn load(&self, words: &[AtomicU64; WORDS], now_ns: i64) -> LoadSnapshot {
        let word = |index: usize| words[index].load(Ordering::Relaxed);
        let fields = word(HAS);
        if fields & READ == 0 {
            return LoadSnapshot::default();
        }
        let age_ns = now_ns.saturating_sub(word(AT).cast_signed()).max(0).cast_unsigned();
        LoadSnapshot {
            freshness: if age_ns <= self.stale_after_ns { Freshness::Fresh } else { Freshness::Stale },
            timestamp_unix_ns: Some(word(UNIX)),
            age_ns: Some(age_ns),
            values: LoadValues::from_words(fields, |field| word(VALUES + field)),
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
