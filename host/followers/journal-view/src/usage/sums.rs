//! Sums of records, and their comparison with the scheduler's own counts.
//!
//! Quantiles are those of `quantile_cont` in SQL: between the two nearest values, in proportion.

use afterbay_types::Engine;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::usage::record::UsageRecord;

/// Most differences that are named. Further ones are counted.
const DIFFERENCES_MAX: usize = 1000;
/// Most groups. The records of further ones are summed in a last group.
const GROUPS_MAX: usize = 65_536;
/// Most times to the first token that are kept for quantiles: 128 MiB. Past it, there are no quantiles.
pub const FIRST_TOKENS_MAX: usize = 16_777_216;
/// Name of the group of records past that bound.
const OTHERS: &str = "(others)";
/// Name of the group of records without a value.
const NONE: &str = "(none)";

/// The value by which records are summed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bucket {
    /// The stream.
    Stream,
    /// The scheduler's finish reason.
    Reason,
    /// The hour of the last row (UTC).
    Hour,
    /// The day of the last row (UTC).
    Day,
    /// The attribute with this name: `tenant`, `model` or another.
    Attribute(String),
}

impl FromStr for Bucket {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Bucket, Infallible> {
        Ok(match text {
            "stream" => Bucket::Stream,
            "reason" => Bucket::Reason,
            "hour" => Bucket::Hour,
            "day" => Bucket::Day,
            attribute => Bucket::Attribute(attribute.to_owned()),
        })
    }
}

impl Bucket {
    /// The word for the value.
    #[must_use]
    pub fn word(&self) -> &str {
        match self {
            Bucket::Stream => "stream",
            Bucket::Reason => "reason",
            Bucket::Hour => "hour",
            Bucket::Day => "day",
            Bucket::Attribute(name) => name,
        }
    }

    fn value<'a>(&self, record: &'a UsageRecord) -> &'a str {
        let time = |bytes: usize| record.last_time.as_deref().and_then(|time| time.get(..bytes));
        let value = match self {
            Bucket::Stream => Some(record.stream.as_str()),
            Bucket::Reason => record.finish_reason.as_deref(),
            Bucket::Hour => time("2026-11-20T14".len()),
            Bucket::Day => time("2026-11-20".len()),
            Bucket::Attribute(name) => match name.as_str() {
                "tenant" => record.tenant.as_deref(),
                "model" => record.model.as_deref(),
                name => record.attributes.get(name).map(String::as_str),
            },
        };
        value.unwrap_or(NONE)
    }
}

/// The sums of the records with the same values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Group {
    /// Requests.
    pub requests: u64,
    /// Tokens of prompts, of the requests whose prompt the scheduler counted.
    pub prompt_tokens: u64,
    /// Tokens of prompts from the scheduler's cache, of the requests where the scheduler counted them.
    pub cached_tokens: u64,
    /// Tokens that the scheduler counted as reasoning.
    pub reasoning_tokens: u64,
    /// Tokens that a draft model proposed, of the requests where the scheduler counted them.
    pub drafted_tokens: u64,
    /// Tokens of a draft model that the model accepted, of the requests where the scheduler counted them.
    pub accepted_tokens: u64,
    /// Tokens received.
    pub tokens_received: u64,
    /// Tokens forwarded.
    pub tokens_forwarded: u64,
    /// Tokens received in rows whose ids were replaced.
    pub tokens_replaced: u64,
    /// Tokens received in rows that were dropped, including the swallowed ones.
    pub tokens_dropped: u64,
    /// Tokens received after the request had ended for its reader.
    pub tokens_swallowed: u64,
    /// The requests' part of the time for which the engine worked, in seconds.
    #[serde(rename = "gpu_seconds", serialize_with = "seconds")]
    pub gpu_ns: u64,
    /// Requests whose prompt the scheduler did not count.
    pub without_prompt_tokens: u64,
    /// Requests of which the scheduler did not say the time to the first token.
    pub without_first_token: u64,
    /// The times to the first token, of the other requests.
    #[serde(skip)]
    first_token_ns: Vec<u64>,
}

impl Group {
    fn add(&mut self, record: &UsageRecord) {
        self.requests += 1;
        self.prompt_tokens += record.prompt_tokens.unwrap_or(0);
        self.cached_tokens += record.cached_tokens.unwrap_or(0);
        self.reasoning_tokens += record.reasoning_tokens.unwrap_or(0);
        self.drafted_tokens += record.drafted_tokens.unwrap_or(0);
        self.accepted_tokens += record.accepted_tokens.unwrap_or(0);
        self.tokens_received += record.tokens_received;
        self.tokens_forwarded += record.tokens_forwarded;
        self.tokens_replaced += record.tokens_replaced;
        self.tokens_dropped += record.tokens_dropped;
        self.tokens_swallowed += record.tokens_swallowed;
        self.gpu_ns += record.gpu_ns;
        self.without_prompt_tokens += u64::from(record.prompt_tokens.is_none());
        self.without_first_token += u64::from(record.first_token_ns.is_none());
    }

    /// The quantiles 0.5 and 0.95 of the time to the first token, in milliseconds. `None` if no time is known, or if too many are.
    pub fn first_token_ms(&mut self) -> Option<[f64; 2]> {
        self.first_token_ns.sort_unstable();
        let last = self.first_token_ns.len().checked_sub(1)?;
        Some([0.5, 0.95].map(|at| {
            let place = at * last as f64;
            let value = |index: f64| self.first_token_ns[index as usize] as f64;
            let (low, high) = (value(place.floor()), value(place.ceil()));
            (low + (high - low) * place.fract()) / 1e6
        }))
    }
}

fn seconds<S: Serializer>(ns: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(*ns as f64 / 1e9)
}

/// A request of which the scheduler counted another number of tokens than were received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Name of the stream.
    pub stream: String,
    /// Number of the request.
    pub request: u64,
    /// Rid of the request.
    pub rid: String,
    /// Tokens received.
    pub tokens_received: u64,
    /// Tokens that the scheduler counted.
    pub completion_tokens: u64,
}

/// A request of which the scheduler counted another number of tokens of the prompt than its record has ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PromptDifference {
    /// Name of the stream.
    pub stream: String,
    /// Number of the request.
    pub request: u64,
    /// Rid of the request.
    pub rid: String,
    /// Ids of the prompt in the record.
    pub prompt_ids: u64,
    /// Tokens that the scheduler counted.
    pub prompt_tokens: u64,
}

/// The reason why a request cannot be compared with a count of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Uncounted {
    /// The engine writes no count of tokens.
    EngineCountsNothing,
    /// The scheduler sent no last row: the client left, or Afterbay stopped waiting for one.
    NoLastRow,
    /// The scheduler's last row has no count.
    NoCountInLastRow,
}

impl Uncounted {
    /// The reason in words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Uncounted::EngineCountsNothing => "the engine writes no count of tokens",
            Uncounted::NoLastRow => "the scheduler sent no last row",
            Uncounted::NoCountInLastRow => "the scheduler's last row has no count",
        }
    }
}

/// The comparison with the scheduler's own counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reconciliation {
    /// Requests of which the scheduler counted as many tokens as were received.
    pub equal: u64,
    /// Requests of which it counted another number.
    pub different: u64,
    /// Those requests, at most 1,000.
    pub differences: Vec<Difference>,
    /// Requests of which the scheduler counted as many tokens of the prompt as the record has ids.
    pub prompts_equal: u64,
    /// Requests of which it counted another number.
    pub prompts_different: u64,
    /// Those requests, at most 1,000.
    pub prompt_differences: Vec<PromptDifference>,
    /// Requests that cannot be compared, by reason.
    pub uncounted: BTreeMap<Uncounted, u64>,
}

/// Sums of records.
#[derive(Clone, Debug)]
pub struct Sums {
    by: Vec<Bucket>,
    /// The sums by values, one of each kind, in the order of the values.
    pub groups: BTreeMap<Vec<String>, Group>,
    /// The sums of all records, without times to the first token.
    total: Group,
    /// The comparison of all records.
    pub reconciliation: Reconciliation,
    /// Requests with a time to the first token. The groups have these times up to `first_tokens_max` of them, and none past it.
    first_tokens: usize,
    first_tokens_max: usize,
}

impl Sums {
    /// Sums by these values.
    #[must_use]
    pub fn new(by: Vec<Bucket>) -> Sums {
        Sums {
            by,
            groups: BTreeMap::new(),
            total: Group::default(),
            reconciliation: Reconciliation::default(),
            first_tokens: 0,
            first_tokens_max: FIRST_TOKENS_MAX,
        }
    }

    /// The values by which the records are summed.
    #[must_use]
    pub fn by(&self) -> &[Bucket] {
        &self.by
    }

    /// The sums of all records.
    #[must_use]
    pub fn total(&self) -> Group {
        let first_token_ns = self.groups.values().flat_map(|group| &group.first_token_ns).copied().collect();
        Group { first_token_ns, ..self.total.clone() }
    }

    /// Whether the quantiles are left out, because more than [`FIRST_TOKENS_MAX`] requests have a time to the first token.
    #[must_use]
    pub fn is_past_quantiles(&self) -> bool {
        self.first_tokens > self.first_tokens_max
    }

    /// Adds a record.
    pub fn add(&mut self, record: &UsageRecord) {
        let mut values: Vec<String> = self.by.iter().map(|by| by.value(record).to_owned()).collect();
        if self.groups.len() >= GROUPS_MAX && !self.groups.contains_key(&values) {
            values = vec![OTHERS.to_owned(); self.by.len()];
        }
        let group = self.groups.entry(values).or_default();
        group.add(record);
        self.total.add(record);
        if let Some(first_token_ns) = record.first_token_ns {
            self.first_tokens += 1;
            if self.first_tokens <= self.first_tokens_max {
                group.first_token_ns.push(first_token_ns);
            } else if self.first_tokens == self.first_tokens_max + 1 {
                self.groups.values_mut().for_each(|group| group.first_token_ns = Vec::new());
            }
        }
        self.reconciliation.add(record);
    }
}

impl Reconciliation {
    fn add(&mut self, record: &UsageRecord) {
        match record.prompt_tokens.zip(record.prompt_ids) {
            Some((counted, ids)) if counted == ids => self.prompts_equal += 1,
            Some((prompt_tokens, prompt_ids)) => {
                self.prompts_different += 1;
                if self.prompt_differences.len() < DIFFERENCES_MAX {
                    let (stream, rid) = (record.stream.clone(), record.rid.clone());
                    let request = record.request;
                    self.prompt_differences.push(PromptDifference {
                        stream,
                        request,
                        rid,
                        prompt_ids,
                        prompt_tokens,
                    });
                }
            }
            None => {}
        }
        match record.completion_tokens {
            Some(counted) if counted == record.tokens_received => self.equal += 1,
            Some(counted) => {
                self.different += 1;
                if self.differences.len() < DIFFERENCES_MAX {
                    self.differences.push(Difference {
                        stream: record.stream.clone(),
                        request: record.request,
                        rid: record.rid.clone(),
                        tokens_received: record.tokens_received,
                        completion_tokens: counted,
                    });
                }
            }
            None => {
                let why = match (&record.finish_reason, record.engine.as_deref()) {
                    (_, Some(engine)) if !counts_tokens(engine) => Uncounted::EngineCountsNothing,
                    (None, _) => Uncounted::NoLastRow,
                    (Some(_), _) => Uncounted::NoCountInLastRow,
                };
                *self.uncounted.entry(why).or_default() += 1;
            }
        }
    }
}

fn counts_tokens(engine: &str) -> bool {
    Engine::of_word(engine).is_none_or(|engine| engine.traits().counts_tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(tenant: Option<&str>, received: u64, counted: Option<u64>) -> UsageRecord {
        let line = serde_json::json!({
            "key": "i/s/1", "instance": "i", "stream": "s", "request": 1, "rid": "r", "tenant": tenant, "attributes": {"tier": "2"},
            "prompt_tokens": 10, "cached_tokens": null, "completion_tokens": counted, "tokens_received": received, "gpu_ns": received * 1_000_000,
            "tokens_forwarded": received - 1, "tokens_replaced": 0, "tokens_dropped": 1, "tokens_swallowed": 1, "dropped": [],
            "first_token_ns": counted.map(|counted| counted * 1_000_000), "gaps": 0, "rows": 3, "rows_missing": 0, "first_time": null, "last_time": "2026-11-20T14:05:06.000000000Z",
            "ended_by": "model", "finish_reason": counted.map(|_| "stop"),
        });
        serde_json::from_value(line).unwrap()
    }

    #[test]
    fn records_are_summed_by_each_kind_of_value() {
        for (by, names) in [
            ("tenant", &["(none)", "a", "b"][..]),
            ("tier", &["2"]),
            ("hour", &["2026-11-20T14"]),
            ("day", &["2026-11-20"]),
            ("stream", &["s"]),
            ("reason", &["(none)", "stop"]),
            ("absent", &["(none)"]),
        ] {
            let mut sums = Sums::new(vec![by.parse().unwrap()]);
            sums.add(&record(Some("a"), 5, Some(5)));
            sums.add(&record(Some("a"), 7, Some(7)));
            sums.add(&record(Some("b"), 3, None));
            sums.add(&record(None, 2, Some(2)));
            assert_eq!(sums.groups.keys().flatten().collect::<Vec<_>>(), names, "{by}");
            assert_eq!(sums.groups.values().map(|group| group.tokens_received).sum::<u64>(), 17);
            let total = sums.total();
            assert_eq!((total.requests, total.prompt_tokens, total.tokens_forwarded), (4, 40, 13));
            assert_eq!(serde_json::to_value(&total).unwrap()["gpu_seconds"], 0.017);
        }
    }

    #[test]
    fn records_are_summed_by_several_values_at_once() {
        let mut sums = Sums::new(["tenant", "hour"].map(|by| by.parse().unwrap()).to_vec());
        for (tenant, received) in [("b", 5), ("a", 7), ("b", 3)] {
            sums.add(&record(Some(tenant), received, None));
        }
        let groups = sums.groups.iter().map(|(values, group)| (values.join(" "), group.tokens_received));
        let expected = [("a 2026-11-20T14", 7), ("b 2026-11-20T14", 8)];
        assert_eq!(groups.collect::<Vec<_>>(), expected.map(|(values, sum)| (values.to_owned(), sum)));
    }

    #[test]
    fn quantiles_of_the_first_token_lie_between_the_nearest_values_and_are_left_out_past_their_bound() {
        let mut sums = Sums::new(vec![Bucket::Attribute("tenant".into())]);
        for counted in [4, 1, 3, 2] {
            sums.add(&record(Some("a"), counted, Some(counted)));
        }
        sums.add(&record(Some("b"), 5, None));
        let shown = |group: &mut Group| group.first_token_ms().map(|ms| ms.map(|ms| format!("{ms:.6}")));
        let quantiles = |sums: &mut Sums| sums.groups.values_mut().map(shown).collect::<Vec<_>>();
        let expected = Some(["2.500000", "3.850000"].map(str::to_owned));
        assert_eq!(quantiles(&mut sums), [expected.clone(), None]);
        assert_eq!((shown(&mut sums.total()), sums.total().without_first_token), (expected, 1));
        sums.first_tokens_max = 4;
        assert!(!sums.is_past_quantiles());
        for _ in 0..2 {
            sums.add(&record(Some("b"), 5, Some(5)));
            assert!(sums.is_past_quantiles());
            assert_eq!(quantiles(&mut sums), [None, None]);
        }
    }

    #[test]
    fn a_difference_of_one_token_is_named_and_a_request_without_a_count_is_no_difference() {
        let mut sums = Sums::new(vec![Bucket::Stream]);
        sums.add(&record(None, 5, Some(5)));
        sums.add(&record(None, 5, Some(6)));
        sums.add(&record(None, 5, None));
        let Reconciliation { equal, different, differences, uncounted, .. } = sums.reconciliation;
        assert_eq!((equal, different, uncounted), (1, 1, BTreeMap::from([(Uncounted::NoLastRow, 1)])));
        assert_eq!((differences[0].tokens_received, differences[0].completion_tokens), (5, 6));
    }

    #[test]
    fn a_prompt_of_which_the_scheduler_counts_other_tokens_than_the_record_has_ids_is_named() {
        let mut sums = Sums::new(vec![Bucket::Stream]);
        for prompt_ids in [Some(10), Some(9), None] {
            sums.add(&UsageRecord { prompt_ids, ..record(None, 5, Some(5)) });
        }
        let of = &sums.reconciliation;
        assert_eq!((of.prompts_equal, of.prompts_different), (1, 1));
        assert_eq!((of.prompt_differences[0].prompt_ids, of.prompt_differences[0].prompt_tokens), (9, 10));
    }
}
