//! One reading of the counters, and the differences between two.

use super::journal_space::JournalSpace;
use crate::signals::Signals;
use afterbay_events::{Histogram, Metrics};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// Readings that are kept: quantiles are those of the time between the first and the last.
const READINGS: usize = 11;

/// The last readings, oldest first.
#[derive(Default)]
pub(super) struct Readings(VecDeque<Reading>);

/// The counters of all streams at one time.
pub(super) struct Reading {
    at: Instant,
    streams: BTreeMap<String, StreamReading>,
    pub(super) space: Arc<JournalSpace>,
}

/// The counters of one stream at one time.
#[derive(Clone, Default)]
pub(super) struct StreamReading {
    pub(super) frames_received: u64,
    pub(super) rows_received: u64,
    pub(super) tokens_received: u64,
    pub(super) tokens_forwarded: u64,
    pub(super) rows_joined: u64,
    pub(super) frame_seconds: Buckets,
    /// Until the kernel has the row.
    pub(super) first_token_seconds: Buckets,
    /// Until a reader has finished the row, by the credit pages of the sinks.
    pub(super) first_token_taken_seconds: Buckets,
}

/// Counts of times, each with the upper bound of its bucket in seconds. The last bound is infinite.
#[derive(Clone, Default)]
pub(super) struct Buckets(Vec<(f64, u64)>);

/// A stream at two times.
pub(super) struct Between<'a> {
    pub(super) before: &'a StreamReading,
    pub(super) after: &'a StreamReading,
    pub(super) time: Duration,
}

impl Reading {
    /// The counters before the first stream: zero.
    pub(super) fn zero(space: Arc<JournalSpace>) -> Reading {
        Reading { at: Instant::now(), streams: BTreeMap::new(), space }
    }

    pub(super) fn take(signals: &Signals, metrics: &Metrics, space: Arc<JournalSpace>) -> Reading {
        let streams = signals.names().into_iter().map(|(stream, sinks)| {
            let counters = metrics.stream(&stream);
            let sinks: Vec<_> = sinks.iter().map(|sink| metrics.sink(&stream, sink)).collect();
            let joined = sinks.iter().map(|sink| sink.rows_joined.get());
            let taken = sinks.iter().map(|sink| Buckets::of(&sink.first_token_taken_seconds));
            let reading = StreamReading {
                frames_received: counters.frames_received.get(),
                rows_received: counters.rows_received.get(),
                tokens_received: counters.tokens_received.get(),
                tokens_forwarded: counters.tokens_forwarded.get(),
                rows_joined: joined.sum(),
                frame_seconds: Buckets::of(&counters.frame_seconds),
                first_token_seconds: Buckets::of(&counters.first_token_seconds),
                first_token_taken_seconds: taken.reduce(Buckets::and).unwrap_or_default(),
            };
            (stream, reading)
        });
        Reading { streams: streams.collect(), at: Instant::now(), space }
    }
}

impl Readings {
    pub(super) fn push(&mut self, reading: Reading) {
        if self.0.len() >= READINGS {
            self.0.pop_front();
        }
        self.0.push_back(reading);
    }

    pub(super) fn last(&self) -> Option<&Reading> {
        self.0.back()
    }

    /// A stream over the last second.
    pub(super) fn second(&self, stream: &str) -> Option<Between<'_>> {
        self.between(self.0.len().checked_sub(2)?, stream)
    }

    /// A stream over the last ten seconds.
    pub(super) fn ten_seconds(&self, stream: &str) -> Option<Between<'_>> {
        self.between(0, stream)
    }

    /// The bytes per second by which the journal of a stream, and that of all streams, grew between the first and the last
    /// reading.
    pub(super) fn journal_rates(&self, stream: &str) -> Option<(f64, f64)> {
        let (first, last) = (&self.0.front()?.space, &self.0.back()?.space);
        Some((last.rate(first, stream), last.rate_of_all(first)))
    }

    fn between(&self, from: usize, stream: &str) -> Option<Between<'_>> {
        static ZERO: LazyLock<StreamReading> = LazyLock::new(StreamReading::default);
        let (first, last) = (self.0.get(from)?, self.0.back()?);
        // A stream that started in between has counted from 0.
        let (before, after) = (first.streams.get(stream).unwrap_or(&ZERO), last.streams.get(stream)?);
        // A counter that began again at 0 has no known growth.
        let is_known = before.frames_received <= after.frames_received;
        let between = Between { before, after, time: last.at - first.at };
        Some(between).filter(|between| is_known && !between.time.is_zero())
    }
}

impl Between<'_> {
    /// The growth of a counter per second.
    pub(super) fn rate(&self, of: fn(&StreamReading) -> u64) -> f64 {
        of(self.after).saturating_sub(of(self.before)) as f64 / self.time.as_secs_f64()
    }

    /// The times that were recorded between both readings.
    pub(super) fn times(&self, of: fn(&StreamReading) -> &Buckets) -> Buckets {
        of(self.after).since(of(self.before))
    }
}

impl Buckets {
    fn of(histogram: &Histogram) -> Buckets {
        Buckets(histogram.buckets().to_vec())
    }

    fn and(self, other: Buckets) -> Buckets {
        let both = self.0.into_iter().zip(other.0);
        Buckets(both.map(|((bound, one), (_, other))| (bound, one + other)).collect())
    }

    fn since(&self, before: &Buckets) -> Buckets {
        let before = before.0.iter().map(|(_, count)| *count).chain(std::iter::repeat(0));
        let grown = self.0.iter().zip(before);
        Buckets(grown.map(|((bound, after), before)| (*bound, after.saturating_sub(before))).collect())
    }

    /// The time below which this part of all times lies, in seconds: between the bounds of its bucket, in proportion to the
    /// times in the bucket. The lower bound in the last bucket, which has no upper one. `None` without times.
    pub(super) fn quantile(&self, part: f64) -> Option<f64> {
        let all: u64 = self.0.iter().map(|(_, count)| count).sum();
        let rank = part * all as f64;
        let (mut lower, mut below) = (0.0, 0);
        for (upper, count) in self.0.iter().filter(|_| all > 0) {
            if *count > 0 && (below + count) as f64 >= rank {
                let within = (rank - below as f64) / *count as f64;
                return Some(if upper.is_finite() { lower + (upper - lower) * within } else { lower });
            }
            (lower, below) = (*upper, below + count);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(second: u64, base: Instant, stream: StreamReading) -> Reading {
        let streams = BTreeMap::from([("a".to_owned(), stream)]);
        Reading { at: base + Duration::from_secs(second), streams, space: Arc::new(JournalSpace::new(base)) }
    }

    fn tokens(tokens_received: u64) -> StreamReading {
        StreamReading { tokens_received, frames_received: tokens_received, ..StreamReading::default() }
    }

    #[test]
    fn a_rate_is_the_growth_of_the_last_second_and_a_counter_that_began_again_has_none() {
        let (mut readings, base) = (Readings::default(), Instant::now());
        let rate = |readings: &Readings| Some(readings.second("a")?.rate(|stream| stream.tokens_received));
        readings.push(reading(0, base, tokens(100)));
        assert_eq!(rate(&readings), None, "one reading has no growth");
        readings.push(reading(1, base, tokens(150)));
        readings.push(reading(3, base, tokens(190)));
        assert_eq!(rate(&readings), Some(20.0));
        readings.push(reading(4, base, tokens(5)));
        assert_eq!(rate(&readings), None);
        assert!(readings.second("other").is_none());
    }

    #[test]
    fn a_stream_counts_from_zero_where_it_started_between_two_readings() {
        let (mut readings, base) = (Readings::default(), Instant::now());
        readings.push(Reading::zero(Arc::new(JournalSpace::new(base))));
        readings.push(reading(2, readings.last().unwrap().at, tokens(30)));
        let grown = readings.ten_seconds("a").unwrap().rate(|stream| stream.tokens_received);
        assert_eq!(grown, 15.0);
    }

    #[test]
    fn quantiles_are_those_of_the_last_ten_seconds() {
        let (mut readings, base) = (Readings::default(), Instant::now());
        for second in 0..=30 {
            // Slow at first, and quick later.
            let frame_seconds = Buckets(vec![(0.1, second.max(10) - 10), (1.0, second.min(10))]);
            readings.push(reading(second, base, StreamReading { frame_seconds, ..tokens(0) }));
            assert!(readings.0.len() <= READINGS);
        }
        let times = readings.ten_seconds("a").unwrap().times(|stream| &stream.frame_seconds);
        assert_eq!(times.0, [(0.1, 10), (1.0, 0)]);
        assert_eq!(times.quantile(0.5), Some(0.05));
    }

    #[test]
    fn a_quantile_lies_within_its_bucket() {
        let of = |counts: [u64; 3]| Buckets([0.1, 0.2, f64::INFINITY].into_iter().zip(counts).collect());
        let close = |found: Option<f64>, to: f64| (found.unwrap() - to).abs() < 1e-9;
        assert_eq!(of([0, 0, 0]).quantile(0.5), None);
        assert!(close(of([10, 0, 0]).quantile(0.5), 0.05));
        assert!(close(of([50, 50, 0]).quantile(0.99), 0.198));
        assert!(close(of([0, 4, 0]).quantile(0.0), 0.1));
        assert!(close(of([1, 0, 99]).quantile(0.99), 0.2), "a longer time has no upper bound");
    }
}
