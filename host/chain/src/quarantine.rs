//! When a plugin has faulted too often: the times of its last faults, and the bound on them.
//!
//! An instance warms up in its first batches: its code is paged in, its interpreter fills its caches. So a deadline that passes
//! before an instance has judged a batch is forgiven once. The next one counts, until an instance has judged a batch: a plugin
//! that is too slow in each instance's first call ends in quarantine one fault later.
//!
//! Knows no plugin and no clock: who asks says what time it is.

use afterbay_config::Quarantine;
use afterbay_runtime::FaultCause;
use std::collections::VecDeque;
use std::time::Instant;

/// The faults of one plugin that still count.
pub struct Faults {
    policy: Quarantine,
    /// At most as many as the policy allows, oldest first.
    times: VecDeque<Instant>,
    /// The instance has judged a batch.
    is_warm: bool,
    /// A cold instance's deadline was forgiven, and no instance has judged a batch since.
    has_forgiven: bool,
}

impl Faults {
    pub fn new(policy: Quarantine) -> Faults {
        Faults { policy, times: VecDeque::new(), is_warm: false, has_forgiven: false }
    }

    pub fn policy(&self) -> Quarantine {
        self.policy
    }

    /// A fresh instance takes over.
    pub fn started(&mut self) {
        self.is_warm = false;
    }

    /// The instance has judged a batch.
    pub fn output(&mut self) {
        (self.is_warm, self.has_forgiven) = (true, false);
    }

    /// Counts one more fault. True where it is one too many.
    pub fn add(&mut self, now: Instant, kind: &FaultCause) -> bool {
        let is_cold = !self.is_warm && matches!(kind, FaultCause::Deadline { .. });
        if is_cold && !std::mem::replace(&mut self.has_forgiven, true) || self.policy.faults == 0 {
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
    pub fn forget(&mut self) {
        self.times.clear();
        self.has_forgiven = false;
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

    const TRAP: FaultCause = FaultCause::Trap { message: String::new() };
    const DEADLINE: FaultCause = FaultCause::Deadline { limit: SECOND };

    #[test]
    fn as_many_as_are_allowed_in_the_time_are_too_many() {
        let (mut faults, start) = faults(3);
        assert!(!faults.add(start, &TRAP));
        assert!(!faults.add(start + 5 * SECOND, &TRAP));
        assert!(
            faults.add(start + 10 * SECOND, &TRAP),
            "the first of three is ten seconds old, which still counts"
        );
    }

    #[test]
    fn what_is_older_than_the_time_does_not_count() {
        let (mut faults, start) = faults(3);
        assert!((0..100).all(|at| !faults.add(start + at * 6 * SECOND, &TRAP)), "never three in ten seconds");
        assert!(faults.times.len() < 3, "what does not count is not kept");
    }

    #[test]
    fn where_none_are_allowed_there_is_no_bound_and_nothing_is_kept() {
        let (mut faults, start) = faults(0);
        assert!((0..100).all(|_| !faults.add(start, &TRAP)));
        assert!(faults.times.is_empty());
    }

    #[test]
    fn faults_are_counted_anew_after_the_plugin_is_reinstated() {
        let (mut faults, start) = faults(2);
        assert!(!faults.add(start, &TRAP) && faults.add(start, &TRAP));
        faults.forget();
        assert!(!faults.add(start, &TRAP) && faults.add(start, &TRAP));
    }

    #[test]
    fn a_cold_instance_s_deadline_is_forgiven_once_and_a_warm_one_s_never() {
        let (mut faults, start) = faults(1);
        assert!(!faults.add(start, &DEADLINE), "the first instance was cold");
        faults.started();
        faults.output();
        assert!(faults.add(start, &DEADLINE), "the second instance was warm");
    }

    #[test]
    fn deadlines_of_instances_that_never_judge_a_batch_count_but_for_the_first() {
        let (mut faults, start) = faults(5);
        let mut deadline_of_a_fresh_instance = || {
            faults.started();
            faults.add(start, &DEADLINE)
        };
        assert!((0..5).all(|_| !deadline_of_a_fresh_instance()));
        assert!(deadline_of_a_fresh_instance(), "the sixth fault is the fifth that counts");
    }

    #[test]
    fn a_batch_that_is_judged_lets_the_next_cold_deadline_be_forgiven() {
        let (mut faults, start) = faults(2);
        for _ in 0..2 {
            faults.started();
            assert!(!faults.add(start, &DEADLINE), "cold");
            faults.started();
            faults.output();
        }
        assert!(!faults.add(start, &DEADLINE) && faults.add(start, &DEADLINE), "warm");
    }

    #[test]
    fn a_cold_instance_s_trap_counts() {
        let (mut faults, start) = faults(1);
        assert!(faults.add(start, &TRAP));
    }
}
