//! The delay before a crashed worker is started again.

use std::time::Duration;

/// A worker that was ready for this long is healthy: its crash begins the delays anew.
pub const HEALTHY_AFTER: Duration = Duration::from_secs(1);
/// The longest delay.
pub const DELAY_MAX: Duration = Duration::from_secs(10);
/// The longest delay after the second of two crashes. Each further crash doubles it.
const DELAY_FIRST: Duration = Duration::from_millis(100);

/// The delays between crashes: none after a healthy worker, then up to 100 ms, 200 ms and so on to [`DELAY_MAX`].
#[derive(Debug)]
pub(crate) struct Backoff {
    /// Crashes of workers that were not healthy, since the last healthy one.
    crashes: u32,
    random: u64,
}

impl Backoff {
    pub(crate) fn new(seed: u64) -> Backoff {
        Backoff { crashes: 0, random: seed | 1 }
    }

    /// The delay after a crash. Jitter takes up to half of it, so that many workers do not start at the same moment.
    pub(crate) fn after_crash(&mut self, ready_for: Option<Duration>) -> Duration {
        if ready_for.is_some_and(|time| time >= HEALTHY_AFTER) {
            self.crashes = 0;
        }
        let longest = match self.crashes {
            0 => Duration::ZERO,
            crashes => DELAY_FIRST.saturating_mul(1 << (crashes - 1).min(16)).min(DELAY_MAX),
        };
        self.crashes += 1;
        // Marsaglia's xorshift64.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let jitter = (self.random >> 40) as f64 / (1_u64 << 24) as f64;
        longest.mul_f64(1.0 - jitter / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_doubles_to_ten_seconds_and_begins_anew_after_a_healthy_worker() {
        for seed in 0..100 {
            let mut backoff = Backoff::new(seed);
            assert_eq!(backoff.after_crash(None), Duration::ZERO);
            for longest in [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000] {
                let delay = backoff.after_crash(Some(HEALTHY_AFTER / 2));
                let longest = Duration::from_millis(longest);
                assert!((longest / 2..=longest).contains(&delay), "{delay:?} of {longest:?}");
            }
            assert_eq!(backoff.after_crash(Some(HEALTHY_AFTER)), Duration::ZERO);
            assert!(backoff.after_crash(None) <= DELAY_FIRST);
        }
    }
}
