//! Counters that the stream's thread updates for every frame or row.
//!
//! A counter has one writer, the stream's thread, and any number of readers. An update is therefore a relaxed load and a
//! relaxed store: no locked instruction. A reader sees a value that is at most one store buffer old. Two writers would lose
//! counts, so a block of counters belongs to one stream, sink or plugin.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use afterbay_types::{
    AbortBy, BarrierCause, CallResult, EndCause, FaultKind, HoldEnd, ReaderState, ReloadResult,
    ShadowComparison, SourceState, SpanLoss, VerdictKind, Word,
};

/// A number that only grows. One writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Sets a total that is counted elsewhere, such as in a socket.
    #[inline]
    pub fn set(&self, total: u64) {
        self.0.store(total, Relaxed);
    }

    /// The value now.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A number that rises and falls. One writer.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Sets the value.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// The value now.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A time that rises and falls: stored in nanoseconds, published in seconds. One writer.
#[derive(Debug, Default)]
pub struct SecondsNow(Gauge);

impl SecondsNow {
    /// Sets the value.
    pub fn set(&self, time: Duration) {
        self.0.set(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The value now.
    pub fn get(&self) -> Duration {
        Duration::from_nanos(self.0.get())
    }
}

/// A state that changes: published as one gauge for each value of the label, 1 for the state now and 0 for the others. It
/// begins with the first value. One writer.
#[derive(Debug)]
pub struct StateGauge<L: Label>(AtomicUsize, PhantomData<L>);

impl<L: Label> Default for StateGauge<L> {
    fn default() -> StateGauge<L> {
        StateGauge(AtomicUsize::new(0), PhantomData)
    }
}

impl<L: Label> StateGauge<L> {
    /// Sets the state.
    #[inline]
    pub fn set(&self, state: L) {
        self.0.store(state.index(), Relaxed);
    }

    /// The word of the state now.
    pub fn word(&self) -> &'static str {
        L::WORDS.get(self.index()).copied().unwrap_or_default()
    }

    pub(crate) fn index(&self) -> usize {
        self.0.load(Relaxed)
    }
}

/// A total that was read from elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total(pub u64);

/// An enum whose words are the values of a metric label. It has at most `LABEL_VALUES_MAX` values.
pub trait Label: Word {
    /// The name of the label.
    const NAME: &'static str;
}

macro_rules! labels {
    ($($enum:ident: $name:literal,)*) => {
        $(impl Label for $enum {
            const NAME: &'static str = $name;
        })*
    };
}

labels! {
    AbortBy: "by",
    BarrierCause: "kind",
    CallResult: "result",
    EndCause: "cause",
    FaultKind: "kind",
    HoldEnd: "reason",
    ReaderState: "state",
    ReloadResult: "result",
    ShadowComparison: "result",
    SourceState: "state",
    SpanLoss: "reason",
    VerdictKind: "action",
}

/// The most values of one label.
pub const LABEL_VALUES_MAX: usize = 16;

/// A counter for each value of a label. One writer.
#[derive(Debug)]
pub struct CounterBy<L: Label> {
    counters: [Counter; LABEL_VALUES_MAX],
    label: PhantomData<L>,
}

impl<L: Label> Default for CounterBy<L> {
    fn default() -> CounterBy<L> {
        const { assert!(L::WORDS.len() <= LABEL_VALUES_MAX) }
        CounterBy { counters: Default::default(), label: PhantomData }
    }
}

impl<L: Label> CounterBy<L> {
    /// Adds `n` to the counter of `label`.
    #[inline]
    pub fn add(&self, label: L, n: u64) {
        self.counters[label.index()].add(n);
    }

    /// The count of `label` now.
    pub fn get(&self, label: L) -> u64 {
        self.counters[label.index()].get()
    }

    /// Each value of the label with its count.
    pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
        L::WORDS.iter().zip(&self.counters).map(|(value, counter)| (*value, counter.get()))
    }
}
