//! The fields of a load, declared once, with their meaning in SGLang (sglang 0.5.23;
//! `srt/managers/scheduler_components/load_inquirer.py` fills LoadSnapshot).

use serde::Serialize;

/// The values of a scheduler's load. `None` if no source has a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LoadValues {
    /// The number of requests in the running batch. In both sources.
    pub num_running_reqs: Option<u64>,
    /// The number of waiting requests. LoadSnapshot includes the disaggregation queues. In both sources.
    pub num_waiting_reqs: Option<u64>,
    /// The estimated number of tokens of waiting prompts that are in no cache. 0 on a decode server.
    pub num_waiting_uncached_tokens: Option<u64>,
    /// The number of KV cache tokens in use: of the full pool, or the larger of full and sliding window.
    pub num_used_tokens: Option<u64>,
    /// `num_used_tokens` plus the tokens of waiting requests: the demand, not the capacity.
    pub num_total_tokens: Option<u64>,
    /// `num_total_tokens` without the requests that wait for their KV from a prefill server.
    pub num_active_tokens: Option<u64>,
    /// The capacity of the KV cache in tokens. 0 means "unknown" in SGLang and is `None`.
    pub max_total_num_tokens: Option<u64>,
    /// The most running requests. 0 means "unknown" and is `None`.
    pub max_running_requests: Option<u64>,
    /// The used part of the KV cache, from 0 to 1, without the Mamba pool. In both sources.
    pub token_usage: Option<f64>,
    /// The tokens generated per second over the last `decode_log_interval` decode steps; falls to 0 about 30
    /// s after the last step. Needs `--enable-metrics`.
    pub gen_throughput: Option<f64>,
    /// The part of the prompts' tokens that came from the cache in the last report of a prefill, from 0 to 1.
    /// Needs `--enable-metrics`.
    pub cache_hit_rate: Option<f64>,
    /// The larger of running requests over `max_running_requests_under_SLO` and token usage over 0.9; may
    /// exceed 1. Needs `--enable-metrics`. Nothing sets that limit in 0.5.23, so that it stays
    /// 0; -1 (a prefill server) is `None`.
    pub utilization: Option<f64>,
    /// The number of requests that were put back into the queue for lack of memory since the previous report;
    /// it returns to 0. Needs `--enable-metrics`.
    pub num_retracted_reqs: Option<u64>,
}

/// Converts a number to a count; `None` if it is none.
pub(crate) fn count(number: f64) -> Option<u64> {
    // Above 2^53 a float does not count exactly.
    (number.is_finite() && (0.0..=9_007_199_254_740_992.0).contains(&number)).then_some(number as u64)
}

/// Converts a number to a ratio or rate; `None` for SGLang's placeholders (-1, NaN).
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
