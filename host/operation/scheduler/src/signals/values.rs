//! The fields of a load, declared once, with their meaning in SGLang (sglang 0.5.23;
//! `srt/managers/scheduler_components/load_inquirer.py` fills LoadSnapshot and LoadStat,
//! `metrics_reporter.py` beside it the gauges).

use serde::Serialize;

/// A value as the 64 bits of the latch.
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
        /// The values of a scheduler's load. `None` if no source has a value.
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
            /// All fields, in the order of [`LoadValues`].
            pub const ALL: [Field; FIELDS] = [$(Field::$variant),*];

            /// The field's name in SGLang.
            pub fn name(self) -> &'static str {
                match self { $(Field::$variant => stringify!($name)),* }
            }

            /// The field's bit in a mask.
            pub(crate) const fn bit(self) -> u64 {
                1 << self as u64
            }
        }

        impl LoadValues {
            /// The mask of the present fields, and the words of all fields.
            pub(crate) fn to_words(self) -> (u64, [u64; FIELDS]) {
                let (mut mask, mut words) = (0, [0; FIELDS]);
                $(if let Some(value) = self.$name {
                    mask |= Field::$variant.bit();
                    words[Field::$variant as usize] = value.to_word();
                })*
                (mask, words)
            }

            /// The fields of `mask`, from their words.
            #[inline]
            pub(crate) fn from_words(mask: u64, word: impl Fn(Field) -> u64) -> LoadValues {
                LoadValues {
                    $($name: if mask & Field::$variant.bit() == 0 { None } else {
                        Some(<$kind>::from_word(word(Field::$variant)))
                    },)*
                }
            }
        }

        /// The number of fields.
        pub(crate) const FIELDS: usize = [$(stringify!($name)),*].len();
    };
}

load_values! {
    /// The number of requests in the running batch. In all sources.
    NumRunningReqs num_running_reqs: u64;
    /// The number of waiting requests. LoadSnapshot and LoadStat include the disaggregation queues, the gauge
    /// (`sglang:num_queue_reqs`) only the waiting queue.
    NumWaitingReqs num_waiting_reqs: u64;
    /// The estimated number of tokens of waiting prompts that are in no cache. 0 on a decode server. Not in
    /// the metrics.
    NumWaitingUncachedTokens num_waiting_uncached_tokens: u64;
    /// The number of KV cache tokens in use: of the full pool, or the larger of full and sliding window. In
    /// all sources.
    NumUsedTokens num_used_tokens: u64;
    /// `num_used_tokens` plus the tokens of waiting requests: the demand, not the capacity. Not in the
    /// metrics.
    NumTotalTokens num_total_tokens: u64;
    /// `num_total_tokens` without the requests that wait for their KV from a prefill server. Only in
    /// LoadSnapshot.
    NumActiveTokens num_active_tokens: u64;
    /// The capacity of the KV cache in tokens. In all sources. 0 means "unknown" in SGLang and is `None`.
    MaxTotalNumTokens max_total_num_tokens: u64;
    /// The most running requests. Not in the metrics. 0 means "unknown" and is `None`.
    MaxRunningRequests max_running_requests: u64;
    /// The used part of the KV cache, from 0 to 1, without the Mamba pool. Not in LoadStat.
    TokenUsage token_usage: f64;
    /// The tokens generated per second over the last `decode_log_interval` decode steps; falls to 0 about 30
    /// s after the last step. In LoadSnapshot (with `--enable-metrics`) and in the metrics.
    GenThroughput gen_throughput: f64;
    /// The part of the prompts' tokens that came from the cache in the last report of a prefill, from 0 to 1.
    /// In the same sources as `gen_throughput`.
    CacheHitRate cache_hit_rate: f64;
    /// The larger of running requests over `max_running_requests_under_SLO` and token usage over 0.9; may
    /// exceed 1. In the same sources as `gen_throughput`. Nothing sets that limit in 0.5.23, so that it stays
    /// 0; -1 (a prefill server) is `None`.
    Utilization utilization: f64;
    /// The number of requests that were put back into the queue for lack of memory since the previous report;
    /// it returns to 0. In the same sources as `gen_throughput`.
    NumRetractedReqs num_retracted_reqs: u64;
    /// The number of such requests since the server's start. Only in the metrics.
    NumRetractedRequestsTotal num_retracted_requests_total: u64;
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
    fn every_field_survives_its_words() {
        for field in Field::ALL {
            let mut words = [0; FIELDS];
            words[field as usize] = if field.name().contains("num_") { 7 } else { 0.5f64.to_bits() };
            let values = LoadValues::from_words(field.bit(), |field| words[field as usize]);
            assert_eq!(values.to_words(), (field.bit(), words), "{}", field.name());
        }
        assert_eq!(LoadValues::from_words(0, |_| 1), LoadValues::default());
    }

    #[test]
    fn an_invalid_count_or_ratio_is_none() {
        assert_eq!([count(12.0), count(-1.0), count(f64::NAN), count(1e30)], [Some(12), None, None, None]);
        assert_eq!([ratio(0.25), ratio(-1.0), ratio(f64::INFINITY)], [Some(0.25), None, None]);
    }
}
