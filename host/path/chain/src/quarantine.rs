//! The number of faults after which a plugin is quarantined.
//!
//! An instance warms up in its first batches: its code is paged in, and its interpreter fills its caches. So the first missed
//! deadline of an instance that has not judged a batch is forgiven. Further ones count until an instance has judged a batch:
//! a plugin that is too slow in the first call of each instance is quarantined one fault later.
//!
//! This module knows no plugin and no clock. The caller gives the time.

use afterbay_config::Quarantine;
use afterbay_runtime::FaultCause;
use std::collections::VecDeque;
use std::time::Instant;

/// The faults of one plugin that count towards its quarantine.
pub struct Faults {
    policy: Quarantine,
    /// The times of the faults, oldest first. At most `policy.faults` are stored.
    times: VecDeque<Instant>,
    /// Whether the instance has judged a batch.
    is_warm: bool,
    /// Whether a cold instance's deadline was forgiven since an instance last judged a batch.
    has_forgiven: bool,
}

impl Faults {
    pub fn new(policy: Quarantine) -> Faults {
        Faults { policy, times: VecDeque::new(), is_warm: false, has_forgiven: false }
    }

    /// The number of faults, and the time within which they count.
    pub fn policy(&self) -> Quarantine {
        self.policy
    }

    /// Records that a fresh instance starts.
    pub fn instance_started(&mut self) {
        self.is_warm = false;
    }

    /// Records that the instance has judged a batch.
    pub fn batch_judged(&mut self) {
        (self.is_warm, self.has_forgiven) = (true, false);
    }

    /// Counts a fault. Returns whether the plugin is to be quarantined.
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
    fn the_configured_number_of_faults_within_the_time_is_too_many() {
        let (mut faults, start) = faults(3);
        assert!(!faults.add(start, &TRAP));
        assert!(!faults.add(start + 5 * SECOND, &TRAP));
        assert!(
            faults.add(start + 10 * SECOND, &TRAP),
            "the first of three is ten seconds old, which still counts"
        );
    }

    #[test]
    fn a_fault_older_than_the_time_does_not_count() {
        let (mut faults, start) = faults(3);
        assert!((0..100).all(|at| !faults.add(start + at * 6 * SECOND, &TRAP)), "never three in ten seconds");
        assert!(faults.times.len() < 3, "old faults are not stored");
    }

    #[test]
    fn with_a_bound_of_zero_no_fault_counts_or_is_stored() {
        let (mut faults, start) = faults(0);
        assert!((0..100).all(|_| !faults.add(start, &TRAP)));
        assert!(faults.times.is_empty());
    }

    #[test]
    fn a_reinstated_plugin_starts_with_no_faults() {
        let (mut faults, start) = faults(2);
        assert!(!faults.add(start, &TRAP) && faults.add(start, &TRAP));
        faults.forget();
        assert!(!faults.add(start, &TRAP) && faults.add(start, &TRAP));
    }

    #[test]
    fn only_a_cold_instance_s_deadline_is_forgiven() {
        let (mut faults, start) = faults(1);
        assert!(!faults.add(start, &DEADLINE), "the first instance was cold");
        faults.instance_started();
        faults.batch_judged();
        assert!(faults.add(start, &DEADLINE), "the second instance was warm");
    }

    #[test]
    fn all_but_the_first_deadline_of_cold_instances_count() {
        let (mut faults, start) = faults(5);
        let mut deadline_of_a_fresh_instance = || {
            faults.instance_started();
            faults.add(start, &DEADLINE)
        };
        assert!((0..5).all(|_| !deadline_of_a_fresh_instance()));
        assert!(deadline_of_a_fresh_instance(), "the sixth fault is the fifth that counts");
    }

    #[test]
    fn after_a_judged_batch_the_next_cold_deadline_is_forgiven() {
        let (mut faults, start) = faults(2);
        for _ in 0..2 {
            faults.instance_started();
            assert!(!faults.add(start, &DEADLINE), "cold");
            faults.instance_started();
            faults.batch_judged();
        }
        assert!(!faults.add(start, &DEADLINE) && faults.add(start, &DEADLINE), "warm");
    }

    #[test]
    fn a_cold_instance_s_trap_counts() {
        let (mut faults, start) = faults(1);
        assert!(faults.add(start, &TRAP));
    }
}
