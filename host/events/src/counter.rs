//! What the path bumps for every frame or row.
//!
//! A counter has one writer, the stream's thread, and any number of readers. So bumping is a relaxed load and a relaxed
//! store, two plain moves: no locked instruction, no publishing step, and a reader sees a value at most a store buffer
//! old. With two writers counts would be lost, so a block belongs to one stream, one sink of it or one plugin of it.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use afterbay_types::{
    AbortBy, BarrierCause, FaultKind, HoldEnd, ReloadResult, ShadowComparison, SourceState, VerdictKind, Word,
};

/// What only grows. One writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// `n` more.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// A total that is counted elsewhere, such as a socket's.
    #[inline]
    pub fn set(&self, total: u64) {
        self.0.store(total, Relaxed);
    }

    /// As of now.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// What rises and falls. One writer.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// It is `value` now.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// As of now.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Time that adds up, kept in nanoseconds, published in seconds. One writer.
#[derive(Debug, Default)]
pub struct Seconds(Counter);

impl Seconds {
    /// So much more.
    #[inline]
    pub fn add(&self, time: Duration) {
        self.0.add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// As of now.
    pub fn get(&self) -> Duration {
        Duration::from_nanos(self.0.get())
    }
}

/// Time that rises and falls, kept in nanoseconds, published in seconds. One writer.
#[derive(Debug, Default)]
pub struct SecondsNow(Gauge);

impl SecondsNow {
    /// It is `time` now.
    pub fn set(&self, time: Duration) {
        self.0.set(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// As of now.
    pub fn get(&self) -> Duration {
        Duration::from_nanos(self.0.get())
    }
}

/// What only grows and is counted elsewhere, as it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total(pub u64);

/// An enum whose words are the values of a metric label. It has at most [`LABEL_VALUES_MAX`] values.
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
    FaultKind: "kind",
    HoldEnd: "why",
    ReloadResult: "result",
    ShadowComparison: "result",
    SourceState: "state",
    VerdictKind: "action",
}

/// The most values that one label has.
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
    /// `n` more of `label`.
    #[inline]
    pub fn add(&self, label: L, n: u64) {
        self.counters[label.index()].add(n);
    }

    /// Of `label`, as of now.
    pub fn get(&self, label: L) -> u64 {
        self.counters[label.index()].get()
    }

    /// Each value of the label with its count.
    pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
        L::WORDS.iter().zip(&self.counters).map(|(value, counter)| (*value, counter.get()))
    }
}
