//! What a row costs the simulated reader, as SGLang's costs a Python process some 20 us.

use std::time::{Duration, Instant};

/// Sleeping less than this at a time would take longer than it should; smaller costs add up to it first.
const SLEEP_AT_LEAST: Duration = Duration::from_millis(1);

/// What reading costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Of each row (a chunk of a request's output).
    pub per_row: Duration,
    /// Of each new token in it.
    pub per_token: Duration,
    /// How the time is spent.
    pub spent: Spent,
}

/// How the time is spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spent {
    /// Waiting, so that the machine is free for what is measured. Exact to about 1 ms, and on average.
    #[default]
    Asleep,
    /// Computing, as the real reader does.
    Busy,
}

/// Spends it.
#[derive(Debug)]
pub(crate) struct Work {
    cost: Cost,
    /// Time owed and not yet slept; negative where a sleep took too long.
    owed_ns: i64,
}

impl Work {
    pub(crate) fn new(cost: Cost) -> Work {
        Work { cost, owed_ns: 0 }
    }

    /// Handles a row of so many tokens, and says when that is done.
    pub(crate) fn row(&mut self, tokens: u32) -> Instant {
        let began = Instant::now();
        let cost = self.cost.per_row + self.cost.per_token * tokens;
        if cost.is_zero() {
            return began;
        }
        match self.cost.spent {
            Spent::Busy => loop {
                let now = Instant::now();
                if now.saturating_duration_since(began) >= cost {
                    return now;
                }
                std::hint::spin_loop();
            },
            Spent::Asleep => {
                self.owed_ns += nanos(cost);
                let owed = Duration::from_nanos(u64::try_from(self.owed_ns).unwrap_or(0));
                if owed < SLEEP_AT_LEAST {
                    return began + owed;
                }
                std::thread::sleep(owed);
                let now = Instant::now();
                self.owed_ns -= nanos(now.saturating_duration_since(began));
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
    fn rows_cost_what_they_should_asleep_or_busy() {
        for spent in [Spent::Asleep, Spent::Busy] {
            let (mut work, began) = (work(spent), Instant::now());
            for _ in 0..300 {
                work.row(10);
            }
            let took = began.elapsed();
            assert!(took >= Duration::from_millis(29), "{spent:?}: 300 rows of 100 us took {took:?}");
        }
    }

    #[test]
    fn small_costs_are_slept_together_and_oversleeping_is_taken_off_the_next() {
        let mut work = work(Spent::Asleep);
        for rows in 1..10 {
            work.row(10);
            assert_eq!(work.owed_ns, rows * 100_000);
        }
        work.row(10);
        assert!(work.owed_ns <= 0, "{} ns are owed after a sleep", work.owed_ns);
    }
}
