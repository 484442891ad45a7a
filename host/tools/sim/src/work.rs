//! The time that the simulated reader spends on rows. SGLang's readers, in Python, spend about 20 us on a
//! row.

use std::time::{Duration, Instant};

/// The shortest sleep. Shorter sleeps take longer than requested, so smaller costs add up first.
const SLEEP_AT_LEAST: Duration = Duration::from_millis(1);

/// Spends the cost of rows asleep, which leaves the CPU to what is measured. Exact to about 1 ms, and on average.
#[derive(Debug)]
pub(crate) struct Work {
    per_row: Duration,
    /// The time still to sleep; negative after a sleep that took too long.
    owed_ns: i64,
}

impl Work {
    pub(crate) fn new(per_row: Duration) -> Work {
        Work { per_row, owed_ns: 0 }
    }

    /// Spends the time of a row. Returns the time at its end.
    pub(crate) fn row(&mut self) -> Instant {
        let start = Instant::now();
        if self.per_row.is_zero() {
            return start;
        }
        self.owed_ns += nanos(self.per_row);
        let owed = Duration::from_nanos(u64::try_from(self.owed_ns).unwrap_or(0));
        if owed < SLEEP_AT_LEAST {
            return start + owed;
        }
        std::thread::sleep(owed);
        let now = Instant::now();
        self.owed_ns -= nanos(now.saturating_duration_since(start));
        now
    }
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_take_their_cost() {
        let (mut work, start) = (Work::new(Duration::from_micros(100)), Instant::now());
        for _ in 0..300 {
            work.row();
        }
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(29), "300 rows of 100 us took {took:?}");
    }

    #[test]
    fn small_costs_add_up_to_one_sleep_and_oversleeping_shortens_the_next() {
        let mut work = Work::new(Duration::from_micros(100));
        for rows in 1..10 {
            work.row();
            assert_eq!(work.owed_ns, rows * 100_000);
        }
        work.row();
        assert!(work.owed_ns <= 0, "{} ns are owed after a sleep", work.owed_ns);
    }
}
