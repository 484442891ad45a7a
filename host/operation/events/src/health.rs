//! The conditions that limit this process: some stop a stream from doing its work, the others degrade it.
//!
//! `/readyz` lists both kinds and answers 503 for the first kind only. `/metrics` counts both.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// The conditions of the process. Clones share them. They are set and cleared on change, never for every frame.
///
/// A key is `KIND`, `KIND:STREAM`, `KIND:STREAM:NAME` or `KIND:STREAM/NAME`. The kinds are words in this code base and
/// the names come from the configuration, which bounds the number of keys.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Mutex<Conditions>>);

#[derive(Debug, Default)]
struct Conditions {
    by_key: BTreeMap<String, Condition>,
    /// Kinds that were ever degraded: `/metrics` shows 0 for a kind that has recovered.
    kinds_degraded: BTreeSet<String>,
}

/// How much a condition limits the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// A stream cannot do its work: `/readyz` answers 503.
    NotReady,
    /// Every stream does its work, and an operator should know of this: `/readyz` answers 200 and lists it.
    Degraded,
}

/// One condition that holds now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Its effect on `/readyz`.
    pub severity: Severity,
    /// The condition in words: `no space left on device`.
    pub text: String,
    /// The time at which it began.
    pub since: SystemTime,
}

impl Health {
    /// Sets a condition that stops a stream from doing its work. Set again, it keeps its beginning.
    pub fn not_ready(&self, key: &str, text: impl Into<String>, now: SystemTime) {
        self.set(key, Severity::NotReady, text.into(), now);
    }

    /// Sets a condition that an operator should know of while every stream does its work. Set again, it keeps its
    /// beginning.
    pub fn degraded(&self, key: &str, text: impl Into<String>, now: SystemTime) {
        self.set(key, Severity::Degraded, text.into(), now);
    }

    /// [`Health::not_ready`] or [`Health::degraded`].
    pub fn set(&self, key: &str, severity: Severity, text: String, now: SystemTime) {
        let mut conditions = self.lock();
        if severity == Severity::Degraded && !conditions.kinds_degraded.contains(kind(key)) {
            conditions.kinds_degraded.insert(kind(key).to_owned());
        }
        let since = conditions.by_key.get(key).map_or(now, |condition| condition.since);
        conditions.by_key.insert(key.to_owned(), Condition { severity, text, since });
    }

    /// Ends a condition. Returns whether it was set.
    pub fn clear(&self, key: &str) -> bool {
        self.lock().by_key.remove(key).is_some()
    }

    /// Ends all conditions of a stream that was removed.
    pub fn clear_stream(&self, stream: &str) {
        self.lock().by_key.retain(|key, _| key.split([':', '/']).nth(1) != Some(stream));
    }

    /// Whether every stream can do its work.
    pub fn is_ready(&self) -> bool {
        self.lock().by_key.values().all(|condition| condition.severity != Severity::NotReady)
    }

    /// All conditions, in the order of their keys.
    pub fn conditions(&self) -> Vec<(String, Condition)> {
        self.lock().by_key.iter().map(|(key, condition)| (key.clone(), condition.clone())).collect()
    }

    /// How many conditions of each kind degrade the process now. A kind that has recovered has 0.
    pub(crate) fn degraded_by_kind(&self) -> BTreeMap<String, u64> {
        let conditions = self.lock();
        let mut counts: BTreeMap<String, u64> =
            conditions.kinds_degraded.iter().map(|kind| (kind.clone(), 0)).collect();
        for (key, condition) in &conditions.by_key {
            if let (Severity::Degraded, Some(count)) = (condition.severity, counts.get_mut(kind(key))) {
                *count += 1;
            }
        }
        counts
    }

    fn lock(&self) -> MutexGuard<'_, Conditions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The word before the first colon.
fn kind(key: &str) -> &str {
    key.split(':').next().unwrap_or(key)
}
