//! The fields of a load, declared once, with their meaning in SGLang (sglang 0.5.23;
//! `srt/managers/scheduler_components/load_inquirer.py` fills LoadSnapshot).

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
        #[derive(Clone, Copy)]
        enum Field {
            $($variant,)*
        }

        impl Field {
            /// The field's bit in a mask.
            const fn bit(self) -> u64 {
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
            pub(crate) fn from_words(mask: u64, word: impl Fn(usize) -> u64) -> LoadValues {
                LoadValues {
                    $($name: if mask & Field::$variant.bit() == 0 { None } else {
                        Some(<$kind>::from_word(word(Field::$variant as usize)))
                    },)*
                }
            }
        }

        /// The number of fields.
        pub(crate) const FIELDS: usize = [$(stringify!($name)),*].len();
    };
}

load_values! {
    /// The number of requests in the running batch. In both sources.
    NumRunningReqs num_running_reqs: u64;
    /// The number of waiting requests. LoadSnapshot includes the disaggregation queues. In both sources.
    NumWaitingReqs num_waiting_reqs: u64;
    /// The estimated number of tokens of waiting prompts that are in no cache. 0 on a decode server.
    NumWaitingUncachedTokens num_waiting_uncached_tokens: u64;
    /// The number of KV cache tokens in use: of the full pool, or the larger of full and sliding window.
    NumUsedTokens num_used_tokens: u64;
    /// `num_used_tokens` plus the tokens of waiting requests: the demand, not the capacity.
    NumTotalTokens num_total_tokens: u64;
    /// `num_total_tokens` without the requests that wait for their KV from a prefill server.
    NumActiveTokens num_active_tokens: u64;
    /// The capacity of the KV cache in tokens. 0 means "unknown" in SGLang and is `None`.
    MaxTotalNumTokens max_total_num_tokens: u64;
    /// The most running requests. 0 means "unknown" and is `None`.
    MaxRunningRequests max_running_requests: u64;
    /// The used part of the KV cache, from 0 to 1, without the Mamba pool. In both sources.
    TokenUsage token_usage: f64;
    /// The tokens generated per second over the last `decode_log_interval` decode steps; falls to 0 about 30
    /// s after the last step. Needs `--enable-metrics`.
    GenThroughput gen_throughput: f64;
    /// The part of the prompts' tokens that came from the cache in the last report of a prefill, from 0 to 1.
    /// Needs `--enable-metrics`.
    CacheHitRate cache_hit_rate: f64;
    /// The larger of running requests over `max_running_requests_under_SLO` and token usage over 0.9; may
    /// exceed 1. Needs `--enable-metrics`. Nothing sets that limit in 0.5.23, so that it stays
    /// 0; -1 (a prefill server) is `None`.
    Utilization utilization: f64;
    /// The number of requests that were put back into the queue for lack of memory since the previous report;
    /// it returns to 0. Needs `--enable-metrics`.
    NumRetractedReqs num_retracted_reqs: u64;
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
        for field in 0..FIELDS {
            let mut words = [0; FIELDS];
            words[field] = 0.5f64.to_bits();
            let values = LoadValues::from_words(1 << field, |field| words[field]);
            assert_eq!(values.to_words(), (1 << field, words), "{field}");
        }
        assert_eq!(LoadValues::from_words(0, |_| 1), LoadValues::default());
    }

    #[test]
    fn an_invalid_count_or_ratio_is_none() {
        assert_eq!([count(12.0), count(-1.0), count(f64::NAN), count(1e30)], [Some(12), None, None, None]);
        assert_eq!([ratio(0.25), ratio(-1.0), ratio(f64::INFINITY)], [Some(0.25), None, None]);
    }
}
