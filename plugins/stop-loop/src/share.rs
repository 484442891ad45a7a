//! The share of requests that ended in a loop, in a window of wall time.

use afterbay_plugin::window::SlidingCount;

use crate::settings::NotReady;

/// The parts of a window. The oldest part leaves as a whole.
const BUCKETS: u32 = 12;

/// Ended requests in a window, and those of them in a loop.
pub(crate) struct Share {
    limit: NotReady,
    ended: SlidingCount,
    stopped: SlidingCount,
}

impl Share {
    pub(crate) fn new(limit: NotReady) -> Self {
        let count = || SlidingCount::new(limit.window, BUCKETS);
        Self { limit, ended: count(), stopped: count() }
    }

    /// Counts a request that ended.
    pub(crate) fn ended(&mut self, time_ms: u64, was_stopped: bool) {
        self.ended.add(time_ms, 1);
        self.stopped.add(time_ms, u64::from(was_stopped));
    }

    /// The share of requests in loops; 0 without a request.
    pub(crate) fn of_stopped(&mut self, time_ms: u64) -> f64 {
        let ended = self.ended.sum(time_ms);
        if ended == 0 { 0.0 } else { self.stopped.sum(time_ms) as f64 / ended as f64 }
    }

    /// The reason why the stream is not ready, if the share is at its limit.
    pub(crate) fn reason(&mut self, time_ms: u64) -> Option<String> {
        let (ended, share) = (self.ended.sum(time_ms), self.of_stopped(time_ms));
        let NotReady { share: limit, requests, window } = self.limit;
        (ended >= requests && share >= limit).then(|| {
            let stopped = self.stopped.sum(time_ms);
            format!("{stopped} of the last {ended} requests ended in a loop, within {window}")
        })
    }
}
