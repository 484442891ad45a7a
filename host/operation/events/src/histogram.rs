//! A histogram of times with fixed buckets. An update costs two stores.

use std::time::Duration;

use crate::counter::Counter;

/// Upper bounds of the buckets, in nanoseconds. One more bucket holds longer times. The bounds are close together where a
/// forwarded frame lies (50 to 500 us), and far apart where a slow reader puts it (seconds).
const BOUNDS_NS: [u64; 24] = [
    10_000,
    20_000,
    30_000,
    50_000,
    75_000,
    100_000,
    150_000,
    200_000,
    300_000,
    500_000,
    750_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    10_000_000_000,
    60_000_000_000,
];

/// The upper bounds of the buckets, in seconds.
pub const BUCKET_SECONDS: [f64; BOUNDS_NS.len()] = {
    let mut bounds = [0.0; BOUNDS_NS.len()];
    let mut at = 0;
    while at < bounds.len() {
        bounds[at] = BOUNDS_NS[at] as f64 / 1e9;
        at += 1;
    }
    bounds
};

/// Counts of times by bucket. One writer, like a [`Counter`].
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [Counter; BOUNDS_NS.len()],
    longer: Counter,
    sum_ns: Counter,
}

impl Histogram {
    /// Records a time. A time equal to a bound counts below it, as in Prometheus.
    #[inline]
    pub fn observe(&self, time: Duration) {
        self.observe_many(time, 1);
    }

    /// Records a time `count` times.
    #[inline]
    pub fn observe_many(&self, time: Duration, count: u64) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let at = BOUNDS_NS.partition_point(|bound| *bound < nanos);
        self.buckets.get(at).unwrap_or(&self.longer).add(count);
        self.sum_ns.add(nanos.saturating_mul(count));
    }

    /// The number of recorded times.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(Counter::get).sum::<u64>() + self.longer.get()
    }

    /// The sum of all recorded times.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns.get())
    }

    /// The upper bound in seconds and the count of each bucket, not cumulative. The last bound is infinite.
    pub fn buckets(&self) -> [(f64, u64); BOUNDS_NS.len() + 1] {
        std::array::from_fn(|at| match (BUCKET_SECONDS.get(at), self.buckets.get(at)) {
            (Some(bound), Some(counter)) => (*bound, counter.get()),
            _ => (f64::INFINITY, self.longer.get()),
        })
    }
}
