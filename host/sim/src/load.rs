//! What is asked of a simulated scheduler: how many requests, when they come, how long they get, how they end.

use std::time::Duration;

use serde::Serialize;
use thiserror::Error;

use crate::bounds::{MAX_PROMPT_TAIL, MAX_RUNNING, MAX_TOKENS_PER_STEP};
use crate::ids::Random;

/// A seeded load. The same load gives the same requests with the same ids, each time and everywhere; which rows share a
/// batch depends on the clock only where [`Arrivals::Rate`] meets no pace.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// Goes into every rid and every choice.
    pub seed: u64,
    /// How many requests.
    pub requests: u64,
    /// When they come, but for those of `bursts`.
    pub arrivals: Arrivals,
    /// Some of the requests: they come together.
    pub bursts: Vec<Burst>,
    /// How many may run at once: the rows of a batch, at the most. Those that come meanwhile wait their turn.
    pub max_running: u32,
    /// New tokens in a row, but for a request's last.
    pub tokens_per_step: u32,
    /// How many tokens a request gets.
    pub lengths: Lengths,
    /// Tokens of the prompt's end that a request's first row carries before its new ids (`decode_ids`).
    pub prompt_tail: u32,
    /// How requests end.
    pub endings: Endings,
    /// A row of SGLang's own health check in every so manieth step.
    pub health_every: Option<u64>,
    /// A batch without rows before every so manieth step.
    pub idle_every: Option<u64>,
    /// A control message (`FreezeGCReq`) before every so manieth step.
    pub control_every: Option<u64>,
}

/// When the requests of a load come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// All before the first step.
    AtOnce,
    /// So many in a second on average, at random times.
    Rate(f64),
    /// This fraction comes one by one over the first requests' steps, the rest before the first step (`--stagger` of
    /// `run_bench.py`).
    Staggered(f64),
}

/// Requests that come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// How many.
    pub requests: u64,
    /// So long after the start.
    pub at: Duration,
}

/// How many tokens a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// At least; at least one.
    pub low: u32,
    /// At the most.
    pub high: u32,
}

/// How often a request ends in which way, as weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endings {
    /// At its length.
    pub length: u32,
    /// At a stop token, anywhere up to its length.
    pub stop_token: u32,
    /// At a stop text, anywhere up to its length.
    pub stop_text: u32,
    /// Aborted, anywhere up to its length; the row that says so has no tokens.
    pub abort: u32,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// `{"type": "length"}`.
    Length,
    /// `{"type": "stop"}` with a token, or a list of them.
    StopToken,
    /// `{"type": "stop"}` with a text.
    StopText,
    /// `{"type": "abort"}`.
    Abort,
    /// Another reason.
    Other,
}

/// A load that cannot be.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum LoadError {
    /// A number outside its range.
    #[error("{what}: {value} is not from {low} to {high}")]
    Range {
        /// Which.
        what: &'static str,
        /// What was given.
        value: f64,
        /// The least.
        low: f64,
        /// The most.
        high: f64,
    },
    /// Lengths the wrong way round.
    #[error("lengths: {low} is more than {high}")]
    Lengths {
        /// The least.
        low: u32,
        /// The most.
        high: u32,
    },
    /// More than there are.
    #[error("bursts: {bursts} requests are more than {requests}")]
    Bursts {
        /// In the bursts.
        bursts: u64,
        /// In all.
        requests: u64,
    },
    /// No way to end.
    #[error("endings: every weight is 0")]
    NoEnding,
}

/// What one request of a load is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Its tokens in all.
    pub(crate) tokens: u32,
    pub(crate) prompt_tokens: u32,
    pub(crate) ending: Ending,
}

impl Load {
    /// A load of so many requests of so many tokens that all come at once and end at their length.
    pub fn new(requests: u64, tokens: u32) -> Load {
        Load {
            seed: 1,
            requests,
            arrivals: Arrivals::AtOnce,
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

    /// Whether it can be run.
    pub fn check(&self) -> Result<(), LoadError> {
        let range = |what, value: f64, low: f64, high: f64| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                Err(LoadError::Range { what, value, low, high })
            }
        };
        range("requests running", self.max_running.into(), 1.0, MAX_RUNNING.into())?;
        range("tokens per step", self.tokens_per_step.into(), 1.0, MAX_TOKENS_PER_STEP.into())?;
        range("prompt tail", self.prompt_tail.into(), 0.0, MAX_PROMPT_TAIL.into())?;
        range("tokens", self.lengths.low.into(), 1.0, f64::from(u32::MAX / 2))?;
        range("tokens", self.lengths.high.into(), 1.0, f64::from(u32::MAX / 2))?;
        match self.arrivals {
            Arrivals::AtOnce => {}
            Arrivals::Rate(rate) => range("requests per second", rate, 1e-3, 1e9)?,
            Arrivals::Staggered(fraction) => range("staggered fraction", fraction, 0.0, 1.0)?,
        }
        for every in [self.health_every, self.idle_every, self.control_every].into_iter().flatten() {
            range("steps between", every as f64, 1.0, f64::MAX)?;
        }
        if self.lengths.low > self.lengths.high {
            return Err(LoadError::Lengths { low: self.lengths.low, high: self.lengths.high });
        }
        let bursts = self.in_bursts();
        if bursts > self.requests {
            return Err(LoadError::Bursts { bursts, requests: self.requests });
        }
        if self.endings.total() == 0 {
            return Err(LoadError::NoEnding);
        }
        Ok(())
    }

    /// The tokens of all its requests. It takes a while where there are millions. The load was checked.
    pub fn tokens(&self) -> u64 {
        (0..self.requests).map(|index| u64::from(self.shape(index).tokens)).sum()
    }

    fn in_bursts(&self) -> u64 {
        self.bursts.iter().map(|burst| burst.requests).fold(0, u64::saturating_add)
    }

    /// Requests that come as [`Load::arrivals`] says.
    pub(crate) fn in_turn(&self) -> u64 {
        self.requests.saturating_sub(self.in_bursts())
    }

    /// Requests of bursts that have come by `now`.
    pub(crate) fn burst_by(&self, now: Duration) -> u64 {
        self.bursts.iter().filter(|burst| burst.at <= now).map(|burst| burst.requests).sum()
    }

    /// One request: it follows from the seed and its number alone. The load was checked.
    pub(crate) fn shape(&self, index: u64) -> Shape {
        let mut random = Random::new(self.seed, index);
        let length = random.between(self.lengths.low, self.lengths.high);
        let prompt_tokens = self.prompt_tail + random.between(1, 512);
        let ending = self.endings.pick(&mut random);
        let tokens = match ending {
            Ending::Length | Ending::Other => length,
            Ending::StopToken | Ending::StopText | Ending::Abort => random.between(1, length),
        };
        Shape { tokens, prompt_tokens, ending }
    }
}

impl Endings {
    /// Every request ends at its length.
    pub const LENGTH: Endings = Endings { length: 1, stop_token: 0, stop_text: 0, abort: 0 };
    /// Some of each.
    pub const MIXED: Endings = Endings { length: 5, stop_token: 3, stop_text: 1, abort: 1 };

    fn total(self) -> u64 {
        [self.length, self.stop_token, self.stop_text, self.abort].into_iter().map(u64::from).sum()
    }

    fn pick(self, random: &mut Random) -> Ending {
        let mut at = random.next() % self.total().max(1);
        for (weight, ending) in [
            (self.stop_token, Ending::StopToken),
            (self.stop_text, Ending::StopText),
            (self.abort, Ending::Abort),
        ] {
            let weight = u64::from(weight);
            if at < weight {
                return ending;
            }
            at -= weight;
        }
        Ending::Length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_out_of_range_is_refused_with_the_value_and_the_limit() {
        let mut load = Load::new(1, 8);
        load.max_running = 0;
        assert_eq!(load.check().unwrap_err().to_string(), "requests running: 0 is not from 1 to 65536");
        let mut load = Load::new(1, 8);
        load.arrivals = Arrivals::Staggered(1.5);
        assert_eq!(load.check().unwrap_err().to_string(), "staggered fraction: 1.5 is not from 0 to 1");
        let mut load = Load::new(1, 8);
        load.lengths = Lengths { low: 9, high: 8 };
        assert_eq!(load.check().unwrap_err().to_string(), "lengths: 9 is more than 8");
        let mut load = Load::new(1, 8);
        load.bursts = vec![Burst { requests: 2, at: Duration::ZERO }];
        assert_eq!(load.check().unwrap_err().to_string(), "bursts: 2 requests are more than 1");
        let mut load = Load::new(1, 8);
        load.endings = Endings { length: 0, stop_token: 0, stop_text: 0, abort: 0 };
        assert_eq!(load.check(), Err(LoadError::NoEnding));
        assert_eq!(Load::new(1, 8).check(), Ok(()));
    }

    #[test]
    fn endings_come_about_as_often_as_their_weights_say() {
        let mut load = Load::new(10_000, 100);
        load.endings = Endings::MIXED;
        let count = |ending| (0..10_000).filter(|&index| load.shape(index).ending == ending).count();
        for (ending, expected) in [
            (Ending::Length, 5_000),
            (Ending::StopToken, 3_000),
            (Ending::StopText, 1_000),
            (Ending::Abort, 1_000),
        ] {
            let count = count(ending);
            assert!(count.abs_diff(expected) < 300, "{ending:?}: {count}, not about {expected}");
        }
    }
}
