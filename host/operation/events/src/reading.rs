//! The values that `/metrics` reads from a block of counters.

use afterbay_types::{SourceState, Word};
use prometheus_client::metrics::MetricType;

use crate::counter::{Counter, CounterBy, Gauge, Label, Seconds, SecondsNow, StateGauge, Total};
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
    Seconds(f64),
    By(&'static str, Vec<(&'static str, u64)>),
    /// One value out of the values of a label.
    OneOf(&'static str, &'static [&'static str], usize),
    Histogram(&'a Histogram),
    /// An unknown value, which is left out.
    Absent,
}

impl Reading<'_> {
    pub(crate) fn kind(&self) -> Option<MetricType> {
        match self {
            Reading::Count(_) | Reading::Seconds(_) | Reading::By(..) => Some(MetricType::Counter),
            Reading::Gauge(_) | Reading::Ratio(_) | Reading::OneOf(..) => Some(MetricType::Gauge),
            Reading::Histogram(_) => Some(MetricType::Histogram),
            Reading::Absent => None,
        }
    }
}

impl From<&Counter> for Reading<'_> {
    fn from(counter: &Counter) -> Self {
        Reading::Count(counter.get())
    }
}

impl From<&Gauge> for Reading<'_> {
    fn from(gauge: &Gauge) -> Self {
        Reading::Gauge(gauge.get())
    }
}

impl From<&Seconds> for Reading<'_> {
    fn from(seconds: &Seconds) -> Self {
        Reading::Seconds(seconds.get().as_secs_f64())
    }
}

impl From<&SecondsNow> for Reading<'_> {
    fn from(seconds: &SecondsNow) -> Self {
        Reading::Ratio(seconds.get().as_secs_f64())
    }
}

impl<L: Label> From<&CounterBy<L>> for Reading<'_> {
    fn from(by: &CounterBy<L>) -> Self {
        Reading::By(L::NAME, by.each().collect())
    }
}

impl<L: Label> From<&StateGauge<L>> for Reading<'_> {
    fn from(state: &StateGauge<L>) -> Self {
        Reading::OneOf(L::NAME, L::WORDS, state.index())
    }
}

impl<'a> From<&'a Histogram> for Reading<'a> {
    fn from(histogram: &'a Histogram) -> Self {
        Reading::Histogram(histogram)
    }
}

/// A plain value that was read from elsewhere.
trait Known {
    fn reading(&self) -> Reading<'_>;
}

impl Known for u64 {
    fn reading(&self) -> Reading<'_> {
        Reading::Gauge(*self)
    }
}

impl Known for f64 {
    fn reading(&self) -> Reading<'_> {
        Reading::Ratio(*self)
    }
}

impl Known for Total {
    fn reading(&self) -> Reading<'_> {
        Reading::Count(self.0)
    }
}

impl Known for SourceState {
    fn reading(&self) -> Reading<'_> {
        Reading::OneOf(Self::NAME, Self::WORDS, self.index())
    }
}

impl From<&u64> for Reading<'_> {
    fn from(value: &u64) -> Self {
        Reading::Gauge(*value)
    }
}

impl From<&Total> for Reading<'_> {
    fn from(total: &Total) -> Self {
        Reading::Count(total.0)
    }
}

impl<'a, T: Known> From<&'a Option<T>> for Reading<'a> {
    fn from(value: &'a Option<T>) -> Self {
        value.as_ref().map_or(Reading::Absent, Known::reading)
    }
}
