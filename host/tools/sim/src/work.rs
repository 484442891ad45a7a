//! The time that the simulated reader spends on rows. SGLang's readers, in Python, spend about 20 us on a
//! row.

use std::time::{Duration, Instant};

/// The shortest sleep. Shorter sleeps take longer than requested, so smaller costs add up first.
const SLEEP_AT_LEAST: Duration = Duration::from_millis(1);

/// The cost of reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The time for each row (a chunk of a request's output).
    pub per_row: Duration,
    /// The time for each new token.
    pub per_token: Duration,
    /// The way in which the time is spent.
    pub spent: Spent,
}

/// The way in which a cost is spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spent {
    /// Sleeping, which leaves the CPU to what is measured. Exact to about 1 ms, and on average.
    #[default]
    Asleep,
    /// Computing, like the real reader.
    Busy,
}

/// Spends the cost.
#[derive(Debug)]
pub(crate) struct Work {
    cost: Cost,
    /// The time still to sleep; negative after a sleep that took too long.
    owed_ns: i64,
}

impl Work {
    pub(crate) fn new(cost: Cost) -> Work {
        Work { cost, owed_ns: 0 }
    }

    /// Spends the time of a row with this many tokens. Returns the time at its end.
    pub(crate) fn row(&mut self, tokens: u32) -> Instant {
        let start = Instant::now();
        let cost = self.cost.per_row + self.cost.per_token * tokens;
        if cost.is_zero() {
            return start;
        }
        match self.cost.spent {
            Spent::Busy => loop {
                let now = Instant::now();
                if now.saturating_duration_since(start) >= cost {
                    return now;
                }
                std::hint::spin_loop();
            },
            Spent::Asleep => {
                self.owed_ns += nanos(cost);
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
    }
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(spent: Spent) -> Work {
        Work::new(Cost { per_row: Duration::from_micros(50), per_token: Duration::from_micros(5), spent })
    }

    #[test]
    fn rows_take_their_cost_asleep_or_busy() {
        for spent in [Spent::Asleep, Spent::Busy] {
            let (mut work, start) = (work(spent), Instant::now());
            for _ in 0..300 {
                work.row(10);
            }
            let took = start.elapsed();
            assert!(took >= Duration::from_millis(29), "{spent:?}: 300 rows of 100 us took {took:?}");
        }
    }

    #[test]
    fn small_costs_add_up_to_one_sleep_and_oversleeping_shortens_the_next() {
        let mut work = work(Spent::Asleep);
        for rows in 1..10 {
            work.row(10);
            assert_eq!(work.owed_ns, rows * 100_000);
        }
        work.row(10);
        assert!(work.owed_ns <= 0, "{} ns are owed after a sleep", work.owed_ns);
    }
}
