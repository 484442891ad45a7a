//! The circuit breaker of an endpoint: after failures in a row, calls are refused until one call succeeds.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use afterbay_config as config;

/// The state of a circuit breaker.
#[derive(Debug)]
pub(crate) enum Breaker {
    /// Calls are made. The times are those of the last failures without a success in between.
    Closed(VecDeque<Instant>),
    /// Calls are refused until `until`. The first call after that time is the trial.
    Open { since: Instant, until: Instant },
    /// The trial is under way, and other calls are refused.
    Trying { since: Instant },
}

/// A change of the breaker that the operator sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    /// The breaker opened after this many failures.
    Opened(usize),
    /// The breaker closed after this time.
    Closed(Duration),
}

impl Default for Breaker {
    fn default() -> Breaker {
        Breaker::Closed(VecDeque::new())
    }
}

impl Breaker {
    /// Whether a call is made: `Some(true)` for the trial, `None` if the call is refused.
    pub(crate) fn admit(&mut self, now: Instant) -> Option<bool> {
        match *self {
            Breaker::Closed(_) => Some(false),
            Breaker::Open { since, until } if until <= now => {
                *self = Breaker::Trying { since };
                Some(true)
            }
            Breaker::Open { .. } | Breaker::Trying { .. } => None,
        }
    }

    /// Records a success. Only the trial closes an open breaker.
    pub(crate) fn succeeded(&mut self, is_trial: bool, now: Instant) -> Change {
        match self {
            Breaker::Closed(failures) => failures.clear(),
            Breaker::Trying { since } if is_trial => {
                let open = now.saturating_duration_since(*since);
                *self = Breaker::default();
                return Change::Closed(open);
            }
            Breaker::Open { .. } | Breaker::Trying { .. } => {}
        }
        Change::None
    }

    /// Records a failure.
    pub(crate) fn failed(&mut self, is_trial: bool, policy: config::Breaker, now: Instant) -> Change {
        match self {
            Breaker::Closed(failures) if policy.failures > 0 => {
                failures.push_back(now);
                let is_old = |at: &mut Instant| now.saturating_duration_since(*at) > policy.within;
                while failures.pop_front_if(is_old).is_some() {}
                if failures.len() >= policy.failures {
                    let count = failures.len();
                    *self = Breaker::Open { since: now, until: now + policy.open };
                    return Change::Opened(count);
                }
            }
            Breaker::Trying { since } if is_trial => {
                *self = Breaker::Open { since: *since, until: now + policy.open };
            }
            _ => {}
        }
        Change::None
    }

    /// Records that the trial ended without a result. The next call is the trial.
    pub(crate) fn trial_cancelled(&mut self, now: Instant) {
        if let Breaker::Trying { since } = *self {
            *self = Breaker::Open { since, until: now };
        }
    }

    /// Whether calls are refused, except for a trial.
    pub(crate) fn is_open(&self) -> bool {
        !matches!(self, Breaker::Closed(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: config::Breaker =
        config::Breaker { failures: 3, within: Duration::from_secs(10), open: Duration::from_secs(5) };

    #[test]
    fn a_breaker_opens_after_failures_in_a_row_and_closes_after_one_success() {
        let (mut breaker, start) = (Breaker::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        for second in 0..2 {
            assert_eq!(breaker.failed(false, POLICY, at(second)), Change::None);
        }
        assert_eq!(breaker.succeeded(false, at(2)), Change::None, "a success forgets the failures");
        for second in 3..5 {
            assert_eq!(breaker.failed(false, POLICY, at(second)), Change::None);
        }
        assert_eq!(breaker.failed(false, POLICY, at(5)), Change::Opened(3));
        assert_eq!((breaker.admit(at(9)), breaker.is_open()), (None, true));
        // Calls that began before the breaker opened change nothing.
        assert_eq!(breaker.succeeded(false, at(9)), Change::None);
        assert_eq!(breaker.failed(false, POLICY, at(9)), Change::None);
        assert_eq!((breaker.admit(at(10)), breaker.admit(at(10))), (Some(true), None), "one call is tried");
        assert_eq!(breaker.failed(true, POLICY, at(11)), Change::None);
        assert_eq!((breaker.admit(at(15)), breaker.admit(at(16))), (None, Some(true)));
        assert_eq!(breaker.succeeded(true, at(17)), Change::Closed(Duration::from_secs(12)));
        assert_eq!((breaker.admit(at(17)), breaker.is_open()), (Some(false), false));
    }

    #[test]
    fn failures_far_apart_and_a_breaker_of_zero_failures_open_nothing() {
        let (mut breaker, start) = (Breaker::default(), Instant::now());
        for second in [0, 6, 12, 18] {
            assert_eq!(breaker.failed(false, POLICY, start + Duration::from_secs(second)), Change::None);
        }
        for _ in 0..100 {
            let never = config::Breaker { failures: 0, ..POLICY };
            assert_eq!(breaker.failed(false, never, start), Change::None);
        }
    }

    #[test]
    fn the_call_after_a_cancelled_trial_is_the_next_trial() {
        let (mut breaker, now) = (Breaker::default(), Instant::now());
        for _ in 0..3 {
            breaker.failed(false, POLICY, now);
        }
        let later = now + POLICY.open;
        assert_eq!(breaker.admit(later), Some(true));
        breaker.trial_cancelled(later);
        assert_eq!(breaker.admit(later), Some(true));
    }
}
