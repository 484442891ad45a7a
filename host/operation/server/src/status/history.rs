//! The figures of the last hour by seconds, and of the last day by minutes, for whoever opens the dashboard or `afterbay top`.
//!
//! The task that reads the counters adds a point to each series once a second. A point is a gap where nothing is known: the
//! process was down, a counter began again at zero, or there was nothing to measure. No point is interpolated. A hand-over gives
//! the history to the next process. This module knows no counter and no clock.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Points by seconds: an hour.
pub(crate) const SECONDS: usize = 3600;
/// Points by minutes: a day.
pub(crate) const MINUTES: usize = 1440;
/// Most series of all streams. Each has 20 KiB of points. Further figures have no history.
const SERIES_MAX: usize = 1024;

/// The name of a stream, and of one of its figures.
pub(super) type Key = (String, String);

/// The points of all series.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct History {
    /// The second of the last points, Unix time; 0 without one.
    end: u64,
    series: BTreeMap<Key, Series>,
}

/// One figure of a stream.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Series {
    seconds: Points,
    /// The means of the minutes that are over.
    minutes: Points,
    /// The sum and the number of the values in the present minute.
    minute: (f64, u32),
}

/// The last points, the newest last. NaN is a gap.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Points(VecDeque<f32>);

/// The time between two points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Step {
    /// The last hour.
    Second,
    /// The last day.
    Minute,
}

/// The last points of all series, or of one figure of each stream.
#[derive(Serialize)]
pub(super) struct View<'a> {
    step_seconds: u64,
    /// The time of the last points, Unix seconds; of a minute, its beginning.
    end: u64,
    /// By stream and figure; `null` is a gap.
    streams: BTreeMap<&'a str, BTreeMap<&'a str, Vec<Option<f32>>>>,
}

impl Step {
    /// Most points.
    pub(crate) fn points_max(self) -> usize {
        match self {
            Step::Second => SECONDS,
            Step::Minute => MINUTES,
        }
    }
}

impl Points {
    /// Adds a point behind this many gaps.
    fn push(&mut self, gaps: u64, value: f32, max: usize) {
        let gaps = usize::try_from(gaps).unwrap_or(max).min(max);
        self.0.extend(std::iter::repeat_n(f32::NAN, gaps));
        self.0.push_back(value);
        self.0.drain(..self.0.len().saturating_sub(max));
    }

    fn has_value(&self) -> bool {
        self.0.iter().rev().any(|value| !value.is_nan())
    }

    /// The last `count` points. Those before the first are gaps.
    fn last(&self, count: usize) -> Vec<Option<f32>> {
        let gaps = count.saturating_sub(self.0.len());
        let known = self.0.iter().skip(self.0.len().saturating_sub(count));
        let known = known.map(|value| Some(*value).filter(|value| !value.is_nan()));
        std::iter::repeat_n(None, gaps).chain(known).collect()
    }
}

impl Series {
    /// Adds the point of a second behind this many seconds without one. `minutes` have begun since the point before.
    fn push(&mut self, gaps: u64, minutes: u64, value: Option<f64>) {
        if minutes > 0 {
            let (sum, count) = std::mem::take(&mut self.minute);
            let mean = if count > 0 { sum / f64::from(count) } else { f64::NAN };
            self.minutes.push(0, mean as f32, MINUTES);
        }
        if minutes > 1 {
            self.minutes.push(minutes - 2, f32::NAN, MINUTES);
        }
        self.seconds.push(gaps, value.unwrap_or(f64::NAN) as f32, SECONDS);
        if let Some(value) = value {
            self.minute = (self.minute.0 + value, self.minute.1 + 1);
        }
    }
}

impl History {
    /// The second of the last points, Unix time; 0 without one.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Adds the values at a Unix second. A second that has its points keeps them. After a clock that was set back, the history
    /// begins again. A series without a value for a day, as that of a stream that was removed, ends.
    pub(super) fn push(&mut self, second: u64, mut values: BTreeMap<Key, f64>) {
        if second < self.end {
            *self = History::default();
        }
        if second == self.end {
            return;
        }
        let before = if self.end == 0 { second - 1 } else { self.end };
        let (gaps, minutes) = (second - before - 1, second / 60 - before / 60);
        self.end = second;
        for (key, series) in &mut self.series {
            series.push(gaps, minutes, values.remove(key));
        }
        self.series.retain(|_, series| series.seconds.has_value() || series.minutes.has_value());
        let room = SERIES_MAX.saturating_sub(self.series.len());
        for (key, value) in values.into_iter().take(room) {
            self.series.entry(key).or_default().push(0, 0, Some(value));
        }
    }

    /// The last `count` points of each series, or of this figure of each stream.
    pub(super) fn view(&self, step: Step, count: usize, figure: Option<&str>) -> View<'_> {
        let mut streams: BTreeMap<&str, BTreeMap<&str, Vec<Option<f32>>>> = BTreeMap::new();
        for ((stream, name), series) in &self.series {
            if figure.is_none_or(|figure| figure == name) {
                let points = match step {
                    Step::Second => &series.seconds,
                    Step::Minute => &series.minutes,
                };
                streams.entry(stream).or_default().insert(name, points.last(count));
            }
        }
        let (step_seconds, end) = match step {
            Step::Second => (1, self.end),
            Step::Minute => (60, (self.end / 60).saturating_sub(1) * 60),
        };
        View { step_seconds, end, streams }
    }

    /// The history as a text for the next process; empty if there is none.
    pub(super) fn to_text(&self) -> String {
        postcard::to_allocvec(self).map_or_else(|_| String::new(), |bytes| BASE64_STANDARD.encode(bytes))
    }

    /// The history of the process before. A text that cannot be read is an empty one.
    pub(super) fn of_text(text: &str) -> History {
        let bytes = BASE64_STANDARD.decode(text).unwrap_or_default();
        let mut history: History = postcard::from_bytes(&bytes).unwrap_or_default();
        while history.series.len() > SERIES_MAX {
            history.series.pop_last();
        }
        for series in history.series.values_mut() {
            for (points, max) in [(&mut series.seconds, SECONDS), (&mut series.minutes, MINUTES)] {
                points.0.drain(..points.0.len().saturating_sub(max));
            }
        }
        history
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second that begins a minute.
    const BEGIN: u64 = 1_795_932_840;

    fn values(values: &[(&str, f64)]) -> BTreeMap<Key, f64> {
        values.iter().map(|(stream, value)| (((*stream).to_owned(), "in".to_owned()), *value)).collect()
    }

    fn points(history: &History, step: Step, stream: &str, count: usize) -> Vec<Option<f32>> {
        history.view(step, count, None).streams[stream]["in"].clone()
    }

    #[test]
    fn seconds_without_a_reading_are_gaps() {
        let mut history = History::default();
        for (second, value) in [(0, 5.0), (1, 6.0), (4, 7.0)] {
            history.push(BEGIN + second, values(&[("a", value)]));
        }
        // The counter began again at zero, so nothing is known of this second.
        history.push(BEGIN + 5, values(&[]));
        let expected = [None, Some(5.0), Some(6.0), None, None, Some(7.0), None];
        assert_eq!(points(&history, Step::Second, "a", 7), expected);
        let view = history.view(Step::Second, 2, None);
        assert_eq!((view.step_seconds, view.end), (1, BEGIN + 5));
    }

    #[test]
    fn a_minute_is_the_mean_of_its_values_and_one_without_values_is_a_gap() {
        let mut history = History::default();
        for second in 0..60 {
            history.push(BEGIN + second, values(&[("a", if second < 30 { 1.0 } else { 4.0 })]));
        }
        assert_eq!(points(&history, Step::Minute, "a", 1), [None], "the minute is not over");
        history.push(BEGIN + 60, values(&[("a", 8.0)]));
        assert_eq!(points(&history, Step::Minute, "a", 1), [Some(2.5)]);
        history.push(BEGIN + 60 * 4, values(&[("a", 9.0)]));
        assert_eq!(points(&history, Step::Minute, "a", 5), [None, Some(2.5), Some(8.0), None, None]);
        let view = history.view(Step::Minute, 1, None);
        assert_eq!((view.step_seconds, view.end), (60, BEGIN + 60 * 3));
    }

    #[test]
    fn a_stream_that_came_later_or_left_has_gaps_and_ends_a_day_after_its_last_value() {
        let mut history = History::default();
        history.push(BEGIN, values(&[("a", 1.0)]));
        history.push(BEGIN + 1, values(&[("b", 2.0)]));
        assert_eq!(points(&history, Step::Second, "a", 2), [Some(1.0), None]);
        assert_eq!(points(&history, Step::Second, "b", 2), [None, Some(2.0)]);
        history.push(BEGIN + 60 * MINUTES as u64, values(&[("b", 3.0)]));
        assert_eq!(history.series.len(), 2, "its minute is one of the day");
        history.push(BEGIN + 60 * (MINUTES as u64 + 1), values(&[("b", 3.0)]));
        assert_eq!(history.series.len(), 1);
    }

    #[test]
    fn the_rings_are_bounded_and_a_long_pause_costs_no_more() {
        let mut history = History::default();
        for second in 0..2 * SECONDS as u64 {
            history.push(BEGIN + second, values(&[("a", second as f64)]));
        }
        let series = &history.series.values().next().unwrap();
        assert_eq!((series.seconds.0.len(), series.minutes.0.len()), (SECONDS, 119));
        assert_eq!(points(&history, Step::Second, "a", 1), [Some(7199.0)]);
        history.push(BEGIN + 10_000_000, values(&[("a", 1.0)]));
        let series = &history.series.values().next().unwrap();
        assert_eq!((series.seconds.0.len(), series.minutes.0.len()), (SECONDS, MINUTES));
    }

    #[test]
    fn figures_past_the_bound_have_no_history() {
        let mut history = History::default();
        let all = (0..=SERIES_MAX).map(|number| ((format!("{number:04}"), "in".to_owned()), 1.0));
        history.push(BEGIN, all.collect());
        assert_eq!(history.series.len(), SERIES_MAX);
        history.push(BEGIN + 1, values(&[("late", 1.0), ("0000", 2.0)]));
        assert_eq!(points(&history, Step::Second, "0000", 2), [Some(1.0), Some(2.0)]);
        assert!(!history.view(Step::Second, 1, None).streams.contains_key("late"));
    }

    #[test]
    fn a_clock_that_was_set_back_begins_again_and_a_second_is_taken_once() {
        let mut history = History::default();
        history.push(BEGIN, values(&[("a", 1.0)]));
        history.push(BEGIN, values(&[("a", 9.0)]));
        assert_eq!(points(&history, Step::Second, "a", 1), [Some(1.0)]);
        history.push(BEGIN - 100, values(&[("a", 3.0)]));
        assert_eq!(points(&history, Step::Second, "a", 2), [None, Some(3.0)]);
    }

    #[test]
    fn the_next_process_goes_on_behind_a_gap_also_within_a_minute() {
        let mut history = History::default();
        for second in 0..50 {
            history.push(BEGIN + second, values(&[("a", 2.0)]));
        }
        let mut next = History::of_text(&history.to_text());
        next.push(BEGIN + 52, values(&[("a", 4.0)]));
        assert_eq!(points(&next, Step::Second, "a", 4), [Some(2.0), None, None, Some(4.0)]);
        next.push(BEGIN + 60, values(&[("a", 0.0)]));
        assert_eq!(points(&next, Step::Minute, "a", 1), [Some(104.0 / 51.0)]);
        assert_eq!(History::of_text("no history").end(), 0);
        assert_eq!(History::of_text("").end(), 0);
    }

    #[test]
    fn a_question_for_one_figure_gets_that_figure_of_each_stream() {
        let mut history = History::default();
        let key = |stream: &str, figure: &str| (stream.to_owned(), figure.to_owned());
        history.push(
            BEGIN,
            BTreeMap::from([(key("a", "in"), 1.0), (key("a", "out"), 2.0), (key("b", "in"), 3.0)]),
        );
        let view = serde_json::to_value(history.view(Step::Second, 2, Some("in"))).unwrap();
        assert_eq!(view["streams"], serde_json::json!({"a": {"in": [null, 1.0]}, "b": {"in": [null, 3.0]}}));
    }
}
