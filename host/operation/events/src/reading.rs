//! The values that `/metrics` reads from a block of counters.

use afterbay_types::{SourceState, Word};

use crate::counter::{Counter, CounterBy, Gauge, Label, SecondsNow, StateGauge, Total};
use crate::exposition::Kind;
use crate::histogram::Histogram;

/// A struct of counters that `/metrics` can read.
pub(crate) trait Block: Sized + 'static {
    const SERIES: &'static [Series<Self>];
}

/// One field of a block.
pub(crate) struct Series<B> {
    pub name: &'static str,
    pub help: &'static str,
    pub read: fn(&B) -> Reading<'_>,
}

/// The value of a field.
pub(crate) enum Reading<'a> {
    Count(u64),
    Gauge(u64),
    Ratio(f64),
    By(&'static str, Vec<(&'static str, u64)>),
    /// One value out of the values of a label.
    OneOf(&'static str, &'static [&'static str], usize),
    Histogram(&'a Histogram),
    /// An unknown value, which is left out.
    Absent,
}

impl Reading<'_> {
    pub(crate) fn kind(&self) -> Option<Kind> {
        match self {
            Reading::Count(_) | Reading::By(..) => Some(Kind::Counter),
            Reading::Gauge(_) | Reading::Ratio(_) | Reading::OneOf(..) => Some(Kind::Gauge),
            Reading::Histogram(_) => Some(Kind::Histogram),
            Reading::Absent => None,
        }
    }
}

/// A value that `/metrics` reads.
pub(crate) trait Read {
    fn read(&self) -> Reading<'_>;
}

macro_rules! read {
    ($($type:ty: |$value:ident| $reading:expr;)*) => {
        $(impl Read for $type {
            fn read(&self) -> Reading<'_> {
                let $value = self;
                $reading
            }
        })*
    };
}

read! {
    Counter: |counter| Reading::Count(counter.get());
    Gauge: |gauge| Reading::Gauge(gauge.get());
    SecondsNow: |seconds| Reading::Ratio(seconds.get().as_secs_f64());
    Histogram: |histogram| Reading::Histogram(histogram);
    u64: |value| Reading::Gauge(*value);
    f64: |value| Reading::Ratio(*value);
    Total: |total| Reading::Count(total.0);
    SourceState: |state| Reading::OneOf(Self::NAME, Self::WORDS, state.index());
}

impl<L: Label> Read for CounterBy<L> {
    fn read(&self) -> Reading<'_> {
        Reading::By(L::NAME, self.each().collect())
    }
}

impl<L: Label> Read for StateGauge<L> {
    fn read(&self) -> Reading<'_> {
        Reading::OneOf(L::NAME, L::WORDS, self.index())
    }
}

impl<T: Read> Read for Option<T> {
    fn read(&self) -> Reading<'_> {
        self.as_ref().map_or(Reading::Absent, T::read)
    }
}
