//! The timers that an instance has set, one for each request.

use std::collections::{BTreeSet, HashMap};

use crate::columns::RequestId;
use crate::limits::TIMERS_MAX;

/// The timers of an instance.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    /// The time of each request's timer, in milliseconds since 1970.
    times: HashMap<RequestId, u64>,
    in_order: BTreeSet<(u64, RequestId)>,
}

impl Timers {
    /// Sets a timer. The error ends the guest.
    pub(crate) fn set(&mut self, request: RequestId, time_ms: u64) -> wasmtime::Result<()> {
        self.clear(request);
        if self.times.len() >= TIMERS_MAX {
            wasmtime::bail!("set more than {TIMERS_MAX} timers, the limit");
        }
        self.times.insert(request, time_ms);
        self.in_order.insert((time_ms, request));
        Ok(())
    }

    pub(crate) fn clear(&mut self, request: RequestId) {
        if let Some(time_ms) = self.times.remove(&request) {
            self.in_order.remove(&(time_ms, request));
        }
    }

    /// The time of the first timer.
    pub(crate) fn next_ms(&self) -> Option<u64> {
        self.in_order.first().map(|(time_ms, _)| *time_ms)
    }

    /// Removes the timers that are due, at most `most` of them, and returns their requests in order of time.
    pub(crate) fn take_due(&mut self, now_ms: u64, most: usize) -> Vec<RequestId> {
        let mut due = Vec::new();
        while due.len() < most
            && let Some((_, request)) = self.in_order.first().copied().filter(|(at, _)| *at <= now_ms)
        {
            self.clear(request);
            due.push(request);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_are_due_in_order_and_a_request_has_one() {
        let mut timers = Timers::default();
        for (request, time_ms) in [(1, 30), (2, 10), (3, 20), (2, 40)] {
            timers.set(request, time_ms).unwrap();
        }
        assert_eq!((timers.next_ms(), timers.take_due(19, 9)), (Some(20), vec![]));
        assert_eq!(timers.take_due(30, 1), [3]);
        assert_eq!(timers.take_due(30, 9), [1]);
        timers.clear(2);
        assert_eq!((timers.next_ms(), timers.take_due(u64::MAX, 9)), (None, vec![]));
    }

    #[test]
    fn a_timer_past_the_bound_ends_the_guest() {
        let mut timers = Timers::default();
        (0..TIMERS_MAX as u64).for_each(|request| timers.set(request, 1).unwrap());
        timers.set(0, 2).unwrap();
        assert!(timers.set(u64::MAX, 1).is_err());
    }
}
