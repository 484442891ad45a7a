//! The fields of a load, declared once, with what SGLang means by each (sglang 0.5.23; LoadSnapshot and LoadStat are
//! filled by `srt/managers/scheduler_components/load_inquirer.py`, gauges by `metrics_reporter.py` beside it).

use serde::Serialize;

/// A value as the 64 bits that cross to the reader.
pub(crate) trait Word: Copy {
    fn to_word(self) -> u64;
    fn from_word(word: u64) -> Self;
}

impl Word for u64 {
    fn to_word(self) -> u64 {
        self
    }
    fn from_word(word: u64) -> Self {
        word
    }
}

impl Word for f64 {
    fn to_word(self) -> u64 {
        self.to_bits()
    }
    fn from_word(word: u64) -> Self {
        f64::from_bits(word)
    }
}

macro_rules! load_values {
    ($($(#[$doc:meta])* $variant:ident $name:ident: $kind:ty;)*) => {
        /// What a scheduler says of its load. `None`: no source says it.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
        pub struct LoadValues {
            $($(#[$doc])* pub $name: Option<$kind>,)*
        }

        /// One field of [`LoadValues`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Field {
            $(#[doc = concat!("[`LoadValues::", stringify!($name), "`].")] $variant,)*
        }

        impl Field {
            /// All of them, in the order of [`LoadValues`].
            pub const ALL: [Field; FIELDS] = [$(Field::$variant),*];

            /// Its name, that of SGLang.
            pub fn name(self) -> &'static str {
                match self { $(Field::$variant => stringify!($name)),* }
            }

            /// Its bit in a mask of fields.
            pub(crate) const fn bit(self) -> u64 {
                1 << self as u64
            }
        }

        impl LoadValues {
            /// The fields that are there, as a mask, and the words of all.
            pub(crate) fn to_words(self) -> (u64, [u64; FIELDS]) {
                let (mut mask, mut words) = (0, [0; FIELDS]);
                $(if let Some(value) = self.$name {
                    mask |= Field::$variant.bit();
                    words[Field::$variant as usize] = value.to_word();
                })*
                (mask, words)
            }

            /// The fields of `mask`, of the words that are asked for.
            #[inline]
            pub(crate) fn from_words(mask: u64, word: impl Fn(Field) -> u64) -> LoadValues {
                LoadValues {
                    $($name: if mask & Field::$variant.bit() == 0 { None } else {
                        Some(<$kind>::from_word(word(Field::$variant)))
                    },)*
                }
            }
        }

        /// How many there are.
        pub(crate) const FIELDS: usize = [$(stringify!($name)),*].len();
    };
}

load_values! {
    /// Requests in the running batch. From all sources.
    NumRunningReqs num_running_reqs: u64;
    /// Requests that wait. LoadSnapshot and LoadStat count the disaggregation queues too, the gauge
    /// (`sglang:num_queue_reqs`) only the waiting queue.
    NumWaitingReqs num_waiting_reqs: u64;
    /// Tokens of waiting prompts that are estimated to be in no cache. 0 on a decode server. Not in the metrics.
    NumWaitingUncachedTokens num_waiting_uncached_tokens: u64;
    /// Tokens of KV cache in use: of the full pool, or the larger of full and sliding window. From all sources.
    NumUsedTokens num_used_tokens: u64;
    /// `num_used_tokens` plus the tokens of the requests that wait: demand, not capacity. Not in the metrics.
    NumTotalTokens num_total_tokens: u64;
    /// `num_total_tokens` without those that await their KV from a prefill server. LoadSnapshot only.
    NumActiveTokens num_active_tokens: u64;
    /// The capacity of the KV cache in tokens. From all sources; a 0 is SGLang's "unknown" and is `None`.
    MaxTotalNumTokens max_total_num_tokens: u64;
    /// The most requests that may run. Not in the metrics; a 0 is "unknown" and is `None`.
    MaxRunningRequests max_running_requests: u64;
    /// Used part of the KV cache, 0 to 1, without the Mamba pool. Not in LoadStat.
    TokenUsage token_usage: f64;
    /// Tokens generated a second, over the last `decode_log_interval` decode steps; falls to 0 some 30 s after the last.
    /// LoadSnapshot (if the server runs with `--enable-metrics`) and the metrics.
    GenThroughput gen_throughput: f64;
    /// Part of the prompts' tokens in the last report of a prefill that came from the cache, 0 to 1. Sources as
    /// `gen_throughput`.
    CacheHitRate cache_hit_rate: f64;
    /// The larger of running requests over `max_running_requests_under_SLO` and token usage over 0.9; may exceed 1.
    /// Sources as `gen_throughput`. Nothing sets that limit in 0.5.23, so it stays 0 there; -1 (a prefill server) is `None`.
    Utilization utilization: f64;
    /// Requests that were put back to waiting for want of memory since the report before: it falls back to 0.
    /// Sources as `gen_throughput`.
    NumRetractedReqs num_retracted_reqs: u64;
    /// Requests that were ever put back so: it only grows while the server lives. Metrics only.
    NumRetractedRequestsTotal num_retracted_requests_total: u64;
}

/// A count as found in a number of any kind; `None` where it cannot be one.
pub(crate) fn count(number: f64) -> Option<u64> {
    // 2^53: past it a float is no longer a count.
    (number.is_finite() && (0.0..=9_007_199_254_740_992.0).contains(&number)).then_some(number as u64)
}

/// A ratio or rate; `None` for what SGLang writes where there is none (-1, NaN).
pub(crate) fn ratio(number: f64) -> Option<f64> {
    (number.is_finite() && number >= 0.0).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_comes_out_of_its_words_as_it_went_in() {
        for field in Field::ALL {
            let mut words = [0; FIELDS];
            words[field as usize] = if field.name().contains("num_") { 7 } else { 0.5f64.to_bits() };
            let values = LoadValues::from_words(field.bit(), |field| words[field as usize]);
            assert_eq!(values.to_words(), (field.bit(), words), "{}", field.name());
        }
        assert_eq!(LoadValues::from_words(0, |_| 1), LoadValues::default());
    }

    #[test]
    fn a_number_that_is_no_count_or_ratio_is_nothing() {
        assert_eq!([count(12.0), count(-1.0), count(f64::NAN), count(1e30)], [Some(12), None, None, None]);
        assert_eq!([ratio(0.25), ratio(-1.0), ratio(f64::INFINITY)], [Some(0.25), None, None]);
    }
}
