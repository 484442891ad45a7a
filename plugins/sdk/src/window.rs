//! Windows of wall time: fixed windows for budgets, sliding windows for rates. Memory is bounded.
//!
//! Every function takes the time from [`Batch::time_ms`](crate::Batch::time_ms), which the journal records. A
//! replay of the same batches therefore gives the same windows.
//!
//! **A clock that steps back.** Somebody may set the machine's clock back. A step of at most one window's
//! length changes nothing: the window stands still until the clock is past it again. After a longer step, the
//! window follows the clock.
//!
//! ```
//! use afterbay_plugin::window::{FixedWindow, Length, SlidingCount};
//!
//! let hour: Length = "1h".parse().unwrap();
//!
//! // A budget for each hour. Hours begin at full hours, UTC.
//! let mut window = FixedWindow::new(hour);
//! let now = window.at(7_200_000 + 60_000);
//! assert_eq!((now.index, now.start_ms, now.remaining_ms), (2, 7_200_000, 59 * 60_000));
//!
//! // Events in the last minute, in 12 buckets of 5 seconds.
//! let mut stops = SlidingCount::new(Length::seconds(60), 12);
//! stops.add(1_000, 1);
//! stops.add(31_000, 2);
//! assert_eq!(stops.sum(31_000), 3);
//! assert_eq!(stops.sum(62_000), 2);
//! assert_eq!(stops.per_second(62_000), 2.0 / 60.0);
//! ```

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de};

/// The longest window: 366 days.
pub const LENGTH_SECONDS_MAX: u64 = 366 * 24 * 3600;

/// The most buckets of a [`SlidingCount`].
pub const BUCKETS_MAX: u32 = 3600;

/// The units of a [`Length`], with their seconds.
const UNITS: [(char, u64); 4] = [('s', 1), ('m', 60), ('h', 3600), ('d', 24 * 3600)];

/// The length of a window, from 1 second to 366 days.
///
/// A setting of this type is a whole number with a unit: `"90s"`, `"15m"`, `"1h"`, `"30d"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Length {
    seconds: u64,
}

impl Length {
    /// A length in seconds. Less than 1 second becomes 1 second, and more than 366 days become 366 days.
    #[must_use]
    pub const fn seconds(seconds: u64) -> Self {
        let seconds = if seconds == 0 { 1 } else { seconds };
        Self { seconds: if seconds > LENGTH_SECONDS_MAX { LENGTH_SECONDS_MAX } else { seconds } }
    }

    /// The length in milliseconds.
    #[must_use]
    pub const fn as_ms(self) -> u64 {
        self.seconds * 1000
    }
}

impl FromStr for Length {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is no length: write a whole number and s, m, h or d, such as \"1h\"");
        let unit = text.chars().next_back().ok_or_else(bad)?;
        let (_, factor) = UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(bad)?;
        let number: u64 = text[..text.len() - 1].parse().map_err(|_| bad())?;
        let seconds = number.checked_mul(factor).filter(|seconds| (1..=LENGTH_SECONDS_MAX).contains(seconds));
        let seconds = seconds.ok_or_else(|| format!("{text:?} is out of bounds: from 1s to 366d"))?;
        Ok(Self { seconds })
    }
}

impl fmt::Display for Length {
    /// Writes the length in its largest whole unit, as a setting has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = UNITS.into_iter().rev().find(|(_, factor)| self.seconds.is_multiple_of(*factor));
        let (unit, factor) = whole.unwrap_or(UNITS[0]);
        write!(f, "{}{unit}", self.seconds / factor)
    }
}

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Length {
    fn schema_name() -> Cow<'static, str> {
        "Length".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[0-9]+[smhd]$", "examples": ["90s", "15m", "1h", "30d"] })
    }
}

/// Wall time in windows of one length that follow each other without a gap. Windows begin at multiples of
/// their length since 1970-01-01 UTC: hours at full hours, days at midnight UTC.
#[derive(Clone, Debug)]
pub struct FixedWindow {
    length_ms: u64,
    /// The index of the current window.
    current: Option<u64>,
}

/// One window of a [`FixedWindow`], at some time within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowAt {
    /// The number of the window since 1970-01-01 UTC.
    pub index: u64,
    /// The time at which the window begins, in milliseconds since 1970-01-01 UTC.
    pub start_ms: u64,
    /// The time until the next window, in milliseconds. Longer than the window if the clock stepped back.
    pub remaining_ms: u64,
}

impl FixedWindow {
    /// Windows of this length.
    #[must_use]
    pub fn new(length: Length) -> Self {
        Self { length_ms: length.as_ms(), current: None }
    }

    /// The window at this time.
    pub fn at(&mut self, time_ms: u64) -> WindowAt {
        let clock = time_ms / self.length_ms;
        let index = match self.current {
            // The clock stepped back by at most a window.
            Some(current) if current.checked_sub(1) == Some(clock) => current,
            _ => clock,
        };
        self.current = Some(index);
        let start_ms = index * self.length_ms;
        WindowAt { index, start_ms, remaining_ms: start_ms.saturating_add(self.length_ms) - time_ms }
    }
}

/// The number of events in the last `length` of wall time.
///
/// The window consists of buckets. Its oldest bucket leaves as a whole, so that the sum covers at most
/// `length` and at least `length` less one bucket.
#[derive(Clone, Debug)]
pub struct SlidingCount {
    bucket_ms: u64,
    /// The events of each bucket. Bucket number `n` since 1970 is at `n % buckets.len()`.
    buckets: Box<[u64]>,
    /// The number of the newest bucket.
    newest: u64,
    sum: u64,
}

impl SlidingCount {
    /// A window of this length in this many buckets, from 1 to 3600. A bucket has 8 bytes and is at least 1 ms
    /// long.
    #[must_use]
    pub fn new(length: Length, buckets: u32) -> Self {
        let buckets = buckets.clamp(1, BUCKETS_MAX);
        let bucket_ms = (length.as_ms() / u64::from(buckets)).max(1);
        Self { bucket_ms, buckets: vec![0; buckets as usize].into(), newest: 0, sum: 0 }
    }

    /// Adds events at this time.
    pub fn add(&mut self, time_ms: u64, events: u64) {
        self.advance(time_ms);
        let index = self.index(self.newest);
        // Saturating, so that `sum` stays the sum of the buckets.
        let events = events.min(u64::MAX - self.sum);
        self.buckets[index] += events;
        self.sum += events;
    }

    /// The number of events in the window that ends at this time.
    pub fn sum(&mut self, time_ms: u64) -> u64 {
        self.advance(time_ms);
        self.sum
    }

    /// The events per second: the sum divided by the window's length. In the first window since the start, the
    /// rate is lower than the true rate.
    pub fn per_second(&mut self, time_ms: u64) -> f64 {
        let length_ms = self.bucket_ms * self.buckets.len() as u64;
        self.sum(time_ms) as f64 * 1000.0 / length_ms as f64
    }

    /// Moves the window to this time.
    fn advance(&mut self, time_ms: u64) {
        let (bucket, length) = (time_ms / self.bucket_ms, self.buckets.len() as u64);
        if bucket.saturating_sub(self.newest) >= length || self.newest.saturating_sub(bucket) > length {
            // Everything is older than the window, or the clock stepped back by more than the window.
            self.buckets.fill(0);
            (self.sum, self.newest) = (0, bucket);
        }
        while self.newest < bucket {
            self.newest += 1;
            let index = self.index(self.newest);
            self.sum -= std::mem::take(&mut self.buckets[index]);
        }
    }

    fn index(&self, bucket: u64) -> usize {
        // The cast is safe: the result is less than 3600.
        (bucket % self.buckets.len() as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_a_whole_number_with_a_unit() {
        for (text, seconds) in
            [("1s", 1), ("90s", 90), ("15m", 900), ("1h", 3600), ("366d", LENGTH_SECONDS_MAX)]
        {
            assert_eq!(text.parse(), Ok(Length { seconds }));
        }
        for bad in ["", "h", "1", "1w", "-1h", "1.5h", "1 h", "é"] {
            let error = bad.parse::<Length>().unwrap_err();
            assert!(error.contains("write a whole number and s, m, h or d"), "{error}");
        }
        for bad in ["0s", "367d", "18446744073709551615d"] {
            let error = bad.parse::<Length>().unwrap_err();
            assert!(error.ends_with("is out of bounds: from 1s to 366d"), "{error}");
        }
        let read: Length = serde_json::from_str("\"1h\"").unwrap();
        assert_eq!(read, Length::seconds(3600));
        assert_eq!(
            [60, 90, 7200, 86400].map(|it| Length::seconds(it).to_string()),
            ["1m", "90s", "2h", "1d"]
        );
        assert_eq!(
            (Length::seconds(0), Length::seconds(u64::MAX)),
            ("1s".parse().unwrap(), "366d".parse().unwrap())
        );
    }

    #[test]
    fn fixed_windows_begin_at_multiples_of_their_length() {
        let mut window = FixedWindow::new(Length::seconds(10));
        assert_eq!(window.at(0), WindowAt { index: 0, start_ms: 0, remaining_ms: 10_000 });
        assert_eq!(window.at(9_999), WindowAt { index: 0, start_ms: 0, remaining_ms: 1 });
        assert_eq!(window.at(10_000), WindowAt { index: 1, start_ms: 10_000, remaining_ms: 10_000 });
        assert_eq!(window.at(35_000).index, 3);
        assert!(window.at(u64::MAX).remaining_ms <= 10_000);
    }

    #[test]
    fn a_fixed_window_stands_still_while_the_clock_is_a_window_behind_and_follows_a_longer_step() {
        let mut window = FixedWindow::new(Length::seconds(10));
        assert_eq!(window.at(20_001).index, 2);
        assert_eq!(window.at(19_000), WindowAt { index: 2, start_ms: 20_000, remaining_ms: 11_000 });
        assert_eq!(window.at(10_000).index, 2);
        assert_eq!(window.at(30_000).index, 3);
        assert_eq!(window.at(19_999).index, 1);
    }

    #[test]
    fn a_sliding_count_has_the_events_of_its_length() {
        let mut count = SlidingCount::new(Length::seconds(10), 5);
        for second in 0..100 {
            count.add(second * 1000, 1);
            // A bucket is 2 seconds long, so the window covers 8 to 10 seconds.
            let covered = (second + 1).min(9 + second % 2);
            assert_eq!(count.sum(second * 1000 + 999), covered, "{second}");
        }
        assert_eq!(count.per_second(99_000), 1.0);
        assert_eq!(count.sum(107_999), 2);
        assert_eq!(count.sum(108_000), 0);
        assert_eq!(count.sum(1_000_000), 0);
    }

    #[test]
    fn a_sliding_count_keeps_its_events_over_a_short_step_back_and_forgets_them_after_a_long_one() {
        let mut count = SlidingCount::new(Length::seconds(10), 10);
        count.add(100_000, 3);
        count.add(95_000, 2);
        assert_eq!(count.sum(100_000), 5);
        assert_eq!(count.sum(109_000), 5, "the late events count as those of the newest bucket");
        assert_eq!(count.sum(50_000), 0);
        count.add(50_000, 1);
        assert_eq!(count.sum(59_999), 1);
        assert_eq!(count.sum(60_000), 0);
    }

    #[test]
    fn a_sliding_count_is_bounded() {
        let mut count = SlidingCount::new(Length::seconds(1), u32::MAX);
        assert_eq!((count.buckets.len(), count.bucket_ms), (3600, 1));
        count.add(5, u64::MAX);
        count.add(5, u64::MAX);
        assert_eq!(count.sum(5), u64::MAX);
        assert_eq!(count.sum(u64::MAX), 0);
        assert_eq!(count.sum(u64::MAX), 0);
        assert_eq!(SlidingCount::new(Length::seconds(1), 0).buckets.len(), 1);
    }
}
