//! The values of a load, which every source gives.

use serde::Serialize;

/// The values of a scheduler's load. `None` if the source has no such value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LoadValues {
    /// The number of requests in the running batch.
    pub running: Option<u64>,
    /// The number of waiting requests.
    pub waiting: Option<u64>,
    /// The used part of the KV cache, from 0 to 1.
    pub kv_cache_usage: Option<f64>,
}

/// Converts a number to a count; `None` if it is none.
pub(crate) fn count(number: f64) -> Option<u64> {
    // Above 2^53 a float does not count exactly.
    (number.is_finite() && (0.0..=9_007_199_254_740_992.0).contains(&number)).then_some(number as u64)
}

/// Converts a number to a ratio or rate; `None` for placeholders (-1, NaN).
pub(crate) fn ratio(number: f64) -> Option<f64> {
    (number.is_finite() && number >= 0.0).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_count_or_ratio_is_none() {
        assert_eq!([count(12.0), count(-1.0), count(f64::NAN), count(1e30)], [Some(12), None, None, None]);
        assert_eq!([ratio(0.25), ratio(-1.0), ratio(f64::INFINITY)], [Some(0.25), None, None]);
    }
}
