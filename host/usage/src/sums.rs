//! Sums of records, and their comparison with the scheduler's own counts.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::str::FromStr;

use serde::Serialize;

use crate::record::UsageRecord;

/// Most differences that are named. Further ones are counted.
const DIFFERENCES_MAX: usize = 1000;
/// Most groups. The records of further ones are summed in a last group.
const GROUPS_MAX: usize = 65_536;
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

/// The sums of the records with one value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Group {
    /// Requests.
    pub requests: u64,
    /// Tokens of prompts, of the requests whose prompt the scheduler counted.
    pub prompt_tokens: u64,
    /// Tokens of prompts from the scheduler's cache, of the requests where the scheduler counted them.
    pub cached_tokens: u64,
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
    /// Requests whose prompt the scheduler did not count.
    pub without_prompt_tokens: u64,
}

impl Group {
    fn add(&mut self, record: &UsageRecord) {
        self.requests += 1;
        self.prompt_tokens += record.prompt_tokens.unwrap_or(0);
        self.cached_tokens += record.cached_tokens.unwrap_or(0);
        self.tokens_received += record.tokens_received;
        self.tokens_forwarded += record.tokens_forwarded;
        self.tokens_replaced += record.tokens_replaced;
        self.tokens_dropped += record.tokens_dropped;
        self.tokens_swallowed += record.tokens_swallowed;
        self.without_prompt_tokens += u64::from(record.prompt_tokens.is_none());
    }
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

/// The reason why a request cannot be compared with a count of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Uncounted {
    /// vLLM's engine writes no count of tokens.
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
            Uncounted::EngineCountsNothing => "vLLM's engine writes no count of tokens",
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
    /// Requests that cannot be compared, by reason.
    pub uncounted: BTreeMap<Uncounted, u64>,
}

/// Sums of records.
#[derive(Clone, Debug, Serialize)]
pub struct Sums {
    #[serde(skip)]
    by: Bucket,
    /// The sums by value, in the order of the values.
    pub groups: BTreeMap<String, Group>,
    /// The sums of all records.
    pub total: Group,
    /// The comparison of all records.
    pub reconciliation: Reconciliation,
}

impl Sums {
    /// Sums by this value.
    #[must_use]
    pub fn new(by: Bucket) -> Sums {
        Sums {
            by,
            groups: BTreeMap::new(),
            total: Group::default(),
            reconciliation: Reconciliation::default(),
        }
    }

    /// The value by which the records are summed.
    #[must_use]
    pub fn by(&self) -> &Bucket {
        &self.by
    }

    /// Adds a record.
    pub fn add(&mut self, record: &UsageRecord) {
        let value = self.by.value(record);
        let is_past_bound = self.groups.len() >= GROUPS_MAX && !self.groups.contains_key(value);
        let value = if is_past_bound { OTHERS } else { value };
        match self.groups.get_mut(value) {
            Some(group) => group.add(record),
            None => self.groups.entry(value.to_owned()).or_default().add(record),
        }
        self.total.add(record);
        self.reconciliation.add(record);
    }
}

impl Reconciliation {
    fn add(&mut self, record: &UsageRecord) {
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
                    (_, Some("vllm")) => Uncounted::EngineCountsNothing,
                    (None, _) => Uncounted::NoLastRow,
                    (Some(_), _) => Uncounted::NoCountInLastRow,
                };
                *self.uncounted.entry(why).or_default() += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(tenant: Option<&str>, received: u64, counted: Option<u64>) -> UsageRecord {
        let line = serde_json::json!({
            "key": "i/s/1", "instance": "i", "stream": "s", "request": 1, "rid": "r", "tenant": tenant, "attributes": {"tier": "2"},
            "prompt_tokens": 10, "cached_tokens": null, "completion_tokens": counted, "tokens_received": received,
            "tokens_forwarded": received - 1, "tokens_replaced": 0, "tokens_dropped": 1, "tokens_swallowed": 1, "dropped": [],
            "gaps": 0, "rows": 3, "rows_missing": 0, "first_time": null, "last_time": "2026-11-20T14:05:06.000000000Z",
            "ended_by": "scheduler", "finish_reason": counted.map(|_| "stop"),
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
            let mut sums = Sums::new(by.parse().unwrap());
            sums.add(&record(Some("a"), 5, Some(5)));
            sums.add(&record(Some("a"), 7, Some(7)));
            sums.add(&record(Some("b"), 3, None));
            sums.add(&record(None, 2, Some(2)));
            assert_eq!(sums.groups.keys().collect::<Vec<_>>(), names, "{by}");
            assert_eq!(sums.groups.values().map(|group| group.tokens_received).sum::<u64>(), 17);
            assert_eq!(
                (sums.total.requests, sums.total.prompt_tokens, sums.total.tokens_forwarded),
                (4, 40, 13)
            );
        }
    }

    #[test]
    fn a_difference_of_one_token_is_named_and_a_request_without_a_count_is_no_difference() {
        let mut sums = Sums::new(Bucket::Stream);
        sums.add(&record(None, 5, Some(5)));
        sums.add(&record(None, 5, Some(6)));
        sums.add(&record(None, 5, None));
        let Reconciliation { equal, different, differences, uncounted } = sums.reconciliation;
        assert_eq!((equal, different, uncounted), (1, 1, BTreeMap::from([(Uncounted::NoLastRow, 1)])));
        assert_eq!((differences[0].tokens_received, differences[0].completion_tokens), (5, 6));
    }
}
