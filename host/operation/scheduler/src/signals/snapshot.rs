//! The reader's side: one read gives the whole load, with its age.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::signals::hub::{SourceStatus, lock};
use crate::signals::values::LoadValues;

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

/// Reads the load. Clones read the same one.
#[derive(Clone, Default)]
pub struct LoadHandle {
    pub(crate) status: Arc<Mutex<SourceStatus>>,
    pub(crate) stale_after: Duration,
}

impl fmt::Debug for LoadHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LoadHandle").field(&self.read()).finish()
    }
}

impl LoadHandle {
    /// The load now.
    pub fn read(&self) -> LoadSnapshot {
        self.read_at(Instant::now())
    }

    /// The load, with its age at `now`.
    pub fn read_at(&self, now: Instant) -> LoadSnapshot {
        let status = lock(&self.status);
        let Some(reading) = &status.reading else { return LoadSnapshot::default() };
        let age = reading.age(now);
        LoadSnapshot {
            freshness: if age <= self.stale_after { Freshness::Fresh } else { Freshness::Stale },
            timestamp_unix_ns: Some(reading.unix_ns),
            age_ns: Some(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)),
            values: reading.values,
        }
    }
}
