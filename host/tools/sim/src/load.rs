//! The load of a simulated scheduler: the number of requests, their arrivals, lengths and ends.

use std::time::Duration;

use anyhow::ensure;
use serde::Serialize;

use crate::bounds::{MAX_PROMPT_TAIL, MAX_RUNNING, MAX_TOKENS_PER_STEP};
use crate::ids::Random;

/// A load with a seed. The same load always gives the same requests with the same ids. The rows of a batch
/// depend on the clock only with [`Arrivals::Rate`] and without a pace.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// The seed of every rid and every random choice.
    pub seed: u64,
    /// The number of requests.
    pub requests: u64,
    /// The arrivals of the requests outside `bursts`.
    pub arrivals: Arrivals,
    /// The number of different rids. Request number n has the rid of number n modulo this, and waits until the request before
    /// it with that rid has ended.
    pub rids: u64,
    /// Groups of requests that arrive together.
    pub bursts: Vec<Burst>,
    /// The most running requests, which is also the most rows of a batch. Other requests wait.
    pub max_running: u32,
    /// The number of new tokens in each row, except a request's last.
    pub tokens_per_step: u32,
    /// The number of tokens of a request.
    pub lengths: Lengths,
    /// The number of tokens of the prompt's end that a request's first row carries before its new ids
    /// (`decode_ids`).
    pub prompt_tail: u32,
    /// The weights of the end reasons.
    pub endings: Endings,
    /// A row of SGLang's health check every this many steps.
    pub health_every: Option<u64>,
    /// A batch without rows every this many steps.
    pub idle_every: Option<u64>,
    /// A control message (`FreezeGCReq`) every this many steps.
    pub control_every: Option<u64>,
}

/// The arrivals of the requests of a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// All requests arrive before the first step.
    AtOnce,
    /// Requests arrive at random times at this average rate per second.
    Rate(f64),
}

/// Requests that arrive together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// The number of requests.
    pub requests: u64,
    /// The time from the start.
    pub at: Duration,
}

/// The range of a request's number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// The smallest number; at least 1.
    pub low: u32,
    /// The largest number.
    pub high: u32,
}

/// The weights of the end reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endings {
    /// The request reaches its length.
    pub length: u32,
    /// A stop token, at any position up to the length.
    pub stop_token: u32,
    /// A stop text, at any position up to the length.
    pub stop_text: u32,
    /// An abort, at any position up to the length. Its row has no tokens.
    pub abort: u32,
}

/// The reason why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndReason {
    /// `{"type": "length"}`.
    Length,
    /// `{"type": "stop"}` with a token or a list of tokens.
    StopToken,
    /// `{"type": "stop"}` with a text.
    StopText,
    /// `{"type": "abort"}`.
    Abort,
    /// Another reason.
    Other,
}

/// The properties of one request of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestShape {
    /// All tokens of the request.
    pub(crate) tokens: u32,
    pub(crate) prompt_tokens: u32,
    pub(crate) ending: EndReason,
}

impl Load {
    /// A load of this many requests of this many tokens. All arrive at once and end at their length.
    pub fn new(requests: u64, tokens: u32) -> Load {
        Load {
            seed: 1,
            requests,
            arrivals: Arrivals::AtOnce,
            rids: u64::MAX,
            bursts: Vec::new(),
            max_running: 4096,
            tokens_per_step: 1,
            lengths: Lengths { low: tokens, high: tokens },
            prompt_tail: 5,
            endings: Endings::LENGTH,
            health_every: None,
            idle_every: None,
            control_every: None,
        }
    }

    /// Validates the load.
    pub fn check(&self) -> anyhow::Result<()> {
        let range = |name, value: f64, low: f64, high: f64| {
            ensure!((low..=high).contains(&value), "{name}: {value} is not from {low} to {high}");
            Ok(())
        };
        range("requests running", self.max_running.into(), 1.0, MAX_RUNNING.into())?;
        range("tokens per step", self.tokens_per_step.into(), 1.0, MAX_TOKENS_PER_STEP.into())?;
        range("rids", self.rids as f64, 1.0, f64::MAX)?;
        range("prompt tail", self.prompt_tail.into(), 0.0, MAX_PROMPT_TAIL.into())?;
        if let Arrivals::Rate(rate) = self.arrivals {
            range("requests per second", rate, 1e-3, 1e9)?;
        }
        for every in [self.health_every, self.idle_every, self.control_every].into_iter().flatten() {
            range("steps between", every as f64, 1.0, f64::MAX)?;
        }
        let Lengths { low, high } = self.lengths;
        range("tokens", low.into(), 1.0, f64::from(u32::MAX / 2))?;
        range("tokens", high.into(), 1.0, f64::from(u32::MAX / 2))?;
        ensure!(low <= high, "lengths: {low} is more than {high}");
        let (bursts, requests) = (self.in_bursts(), self.requests);
        ensure!(bursts <= requests, "bursts: {bursts} requests are more than {requests}");
        ensure!(self.endings.total() > 0, "endings: every weight is 0");
        Ok(())
    }

    /// The number of tokens of all requests. Slow for millions of requests. The load was checked.
    pub fn tokens(&self) -> u64 {
        (0..self.requests).map(|index| u64::from(self.shape(index).tokens)).sum()
    }

    fn in_bursts(&self) -> u64 {
        self.bursts.iter().map(|burst| burst.requests).fold(0, u64::saturating_add)
    }

    /// The number of requests outside bursts, which arrive by [`Load::arrivals`].
    pub(crate) fn outside_bursts(&self) -> u64 {
        self.requests.saturating_sub(self.in_bursts())
    }

    /// The number of requests of bursts that have arrived by `now`.
    pub(crate) fn burst_by(&self, now: Duration) -> u64 {
        self.bursts.iter().filter(|burst| burst.at <= now).map(|burst| burst.requests).sum()
    }

    /// The properties of a request, which follow from the seed and its number alone. The load was checked.
    pub(crate) fn shape(&self, index: u64) -> RequestShape {
        let mut random = Random::new(self.seed, index);
        let length = random.between(self.lengths.low, self.lengths.high);
        let prompt_tokens = self.prompt_tail + random.between(1, 512);
        let ending = self.endings.pick(&mut random);
        let tokens = match ending {
            EndReason::Length | EndReason::Other => length,
            EndReason::StopToken | EndReason::StopText | EndReason::Abort => random.between(1, length),
        };
        RequestShape { tokens, prompt_tokens, ending }
    }
}

impl Endings {
    /// Every request ends at its length.
    pub const LENGTH: Endings = Endings { length: 1, stop_token: 0, stop_text: 0, abort: 0 };
    /// A mix of all end reasons.
    pub const MIXED: Endings = Endings { length: 5, stop_token: 3, stop_text: 1, abort: 1 };

    fn total(self) -> u64 {
        [self.length, self.stop_token, self.stop_text, self.abort].into_iter().map(u64::from).sum()
    }

    fn pick(self, random: &mut Random) -> EndReason {
        let mut pick = random.next() % self.total().max(1);
        for (weight, ending) in [
            (self.stop_token, EndReason::StopToken),
            (self.stop_text, EndReason::StopText),
            (self.abort, EndReason::Abort),
        ] {
            let weight = u64::from(weight);
            if pick < weight {
                return ending;
            }
            pick -= weight;
        }
        EndReason::Length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_load_is_refused_with_the_value_and_the_limit() {
        let mut load = Load::new(1, 8);
        load.max_running = 0;
        assert_eq!(load.check().unwrap_err().to_string(), "requests running: 0 is not from 1 to 65536");
        let mut load = Load::new(1, 8);
        load.arrivals = Arrivals::Rate(0.0);
        let refused = load.check().unwrap_err().to_string();
        assert_eq!(refused, "requests per second: 0 is not from 0.001 to 1000000000");
        let mut load = Load::new(1, 8);
        load.lengths = Lengths { low: 9, high: 8 };
        assert_eq!(load.check().unwrap_err().to_string(), "lengths: 9 is more than 8");
        let mut load = Load::new(1, 8);
        load.bursts = vec![Burst { requests: 2, at: Duration::ZERO }];
        assert_eq!(load.check().unwrap_err().to_string(), "bursts: 2 requests are more than 1");
        let mut load = Load::new(1, 8);
        load.endings = Endings { length: 0, stop_token: 0, stop_text: 0, abort: 0 };
        assert_eq!(load.check().unwrap_err().to_string(), "endings: every weight is 0");
        Load::new(1, 8).check().unwrap();
    }

    #[test]
    fn end_reasons_follow_their_weights() {
        let mut load = Load::new(10_000, 100);
        load.endings = Endings::MIXED;
        let count = |ending| (0..10_000).filter(|&index| load.shape(index).ending == ending).count();
        for (ending, expected) in [
            (EndReason::Length, 5_000),
            (EndReason::StopToken, 3_000),
            (EndReason::StopText, 1_000),
            (EndReason::Abort, 1_000),
        ] {
            let count = count(ending);
            assert!(count.abs_diff(expected) < 300, "{ending:?}: {count}, not about {expected}");
        }
    }
}
