//! When a plugin has faulted too often: the times of its last faults, and the bound on them.
//!
//! Knows no plugin and no clock: who asks says what time it is.

use afterbay_config::Quarantine;
use std::collections::VecDeque;
use std::time::Instant;

/// The faults of one plugin that still count.
pub(crate) struct Faults {
    policy: Quarantine,
    /// At most as many as the policy allows, oldest first.
    times: VecDeque<Instant>,
}

impl Faults {
    pub(crate) fn new(policy: Quarantine) -> Faults {
        Faults { policy, times: VecDeque::new() }
    }

    pub(crate) fn policy(&self) -> Quarantine {
        self.policy
    }

    /// One more. True where it is one too many.
    pub(crate) fn add(&mut self, now: Instant) -> bool {
        if self.policy.faults == 0 {
            return false;
        }
        let is_old = |time: &Instant| now.saturating_duration_since(*time) > self.policy.within;
        while self.times.front().is_some_and(is_old) {
            self.times.pop_front();
        }
        self.times.push_back(now);
        self.times.len() >= self.policy.faults
    }

    /// None of them counts any more.
    pub(crate) fn forget(&mut self) {
        self.times.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);

    fn faults(faults: usize) -> (Faults, Instant) {
        (Faults::new(Quarantine { faults, within: 10 * SECOND }), Instant::now())
    }

    #[test]
    fn as_many_as_are_allowed_in_the_time_are_too_many() {
        let (mut faults, start) = faults(3);
        assert!(!faults.add(start));
        assert!(!faults.add(start + 5 * SECOND));
        assert!(faults.add(start + 10 * SECOND), "the first of three is ten seconds old, which still counts");
    }

    #[test]
    fn what_is_older_than_the_time_does_not_count() {
        let (mut faults, start) = faults(3);
        assert!((0..100).all(|at| !faults.add(start + at * 6 * SECOND)), "never three in ten seconds");
        assert!(faults.times.len() < 3, "what does not count is not kept");
    }

    #[test]
    fn where_none_are_allowed_there_is_no_bound_and_nothing_is_kept() {
        let (mut faults, start) = faults(0);
        assert!((0..100).all(|_| !faults.add(start)));
        assert!(faults.times.is_empty());
    }

    #[test]
    fn after_a_release_they_are_counted_anew() {
        let (mut faults, start) = faults(2);
        assert!(!faults.add(start) && faults.add(start));
        faults.forget();
        assert!(!faults.add(start) && faults.add(start));
    }
}
