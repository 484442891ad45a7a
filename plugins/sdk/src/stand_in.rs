//! A stand-in for the host outside of WebAssembly, one for each thread: it answers the functions that a plugin imports,
//! with the values that a test gave to the [harness](crate::testing).

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::abi::RequestId;
use crate::abi::afterbay::plugin::log::Level;
use crate::abi::afterbay::plugin::signals::{Queue, Snapshot};

thread_local! {
    pub(crate) static HOST: RefCell<StandIn> = RefCell::new(StandIn::default());
}

/// The state of the host, as the harness of this thread set it.
#[derive(Default)]
pub(crate) struct StandIn {
    pub(crate) lines: Vec<Line>,
    pub(crate) signals: Option<Snapshot>,
    pub(crate) attributes: BTreeMap<RequestId, String>,
    /// The bytes of each token, by id; `None` for a special token.
    pub(crate) tokens: Vec<Option<Vec<u8>>>,
    pub(crate) metrics: BTreeMap<String, Metric>,
}

/// The values of a plugin's metric.
#[derive(Clone, Debug, PartialEq)]
pub enum Metric {
    /// The sum of all additions.
    Counter(u64),
    /// The last value.
    Gauge(f64),
    /// All values, in order.
    Histogram(Vec<f64>),
}

/// A line that a plugin logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The severity.
    pub level: Level,
    /// The request that the line names.
    pub request: Option<RequestId>,
    /// The text.
    pub message: String,
}

/// A stream with empty queues, no sinks and no scheduler load: the signals before
/// [`Harness::set_signals`](crate::testing::Harness::set_signals).
#[must_use]
pub fn nothing_waits() -> Snapshot {
    let ingress = Queue { frames: 0, rows: 0, bytes: 0, oldest_age_ms: 0 };
    Snapshot { ingress, sinks: Vec::new(), live_requests: 0, scheduler: None }
}

pub(crate) fn record_line(level: Level, request: Option<RequestId>, message: &str) {
    HOST.with_borrow_mut(|host| host.lines.push(Line { level, request, message: message.to_owned() }));
}

pub(crate) mod signals {
    pub(crate) fn read() -> crate::abi::afterbay::plugin::signals::Snapshot {
        super::HOST.with_borrow(|host| host.signals.clone()).unwrap_or_else(super::nothing_waits)
    }
}

pub(crate) mod request {
    pub(crate) fn attributes(request: crate::abi::RequestId) -> Option<String> {
        super::HOST.with_borrow(|host| host.attributes.get(&request).cloned())
    }
}

pub(crate) mod metrics {
    use super::{HOST, Metric};

    fn update(name: &str, empty: Metric, add: impl FnOnce(&mut Metric)) {
        HOST.with_borrow_mut(|host| add(host.metrics.entry(name.to_owned()).or_insert(empty)));
    }

    /// Like the host, ignores a name that is already used for another kind of metric.
    pub(crate) fn counter_add(name: &str, delta: u64) {
        update(name, Metric::Counter(0), |metric| {
            if let Metric::Counter(sum) = metric {
                *sum += delta;
            }
        });
    }

    pub(crate) fn gauge_set(name: &str, value: f64) {
        update(name, Metric::Gauge(value), |metric| {
            if let Metric::Gauge(last) = metric {
                *last = value;
            }
        });
    }

    pub(crate) fn histogram_observe(name: &str, value: f64) {
        update(name, Metric::Histogram(Vec::new()), |metric| {
            if let Metric::Histogram(values) = metric {
                values.push(value);
            }
        });
    }
}

pub(crate) mod tokenizer {
    use super::HOST;
    use crate::abi::afterbay::plugin::tokenizer::EncodeError;
    use crate::abi::afterbay::plugin::types::TokenId;

    fn bytes(tokens: &[Option<Vec<u8>>], id: TokenId) -> &[u8] {
        let token = usize::try_from(id).ok().and_then(|id| tokens.get(id));
        token.and_then(Option::as_deref).unwrap_or_default()
    }

    pub(crate) fn size() -> u32 {
        HOST.with_borrow(|host| host.tokens.len() as u32)
    }

    pub(crate) fn decode(ids: &[TokenId]) -> Vec<u8> {
        HOST.with_borrow(|host| ids.iter().flat_map(|id| bytes(&host.tokens, *id)).copied().collect())
    }

    pub(crate) fn token_bytes(first: TokenId, count: u32) -> Vec<Vec<u8>> {
        let end = (first + TokenId::from(count)).min(size().into());
        HOST.with_borrow(|host| (first..end).map(|id| bytes(&host.tokens, id).to_vec()).collect())
    }

    pub(crate) fn special() -> Vec<TokenId> {
        let is_special = |(id, token): (usize, &Option<Vec<u8>>)| token.is_none().then_some(id as TokenId);
        HOST.with_borrow(|host| host.tokens.iter().enumerate().filter_map(is_special).collect())
    }

    /// The stand-in's tokenizer names no such id.
    pub(crate) fn end_of_text() -> Vec<TokenId> {
        Vec::new()
    }

    /// Takes the longest matching token at each position.
    pub(crate) fn encode(text: &str) -> Result<Vec<TokenId>, EncodeError> {
        HOST.with_borrow(|host| {
            let (mut rest, mut ids) = (text.as_bytes(), Vec::new());
            while !rest.is_empty() {
                let matches = |token: &&Vec<u8>| !token.is_empty() && rest.starts_with(token);
                let tokens = host.tokens.iter().enumerate();
                let matching =
                    tokens.filter_map(|(id, token)| Some((id, token.as_ref().filter(matches)?.len())));
                let Some((id, length)) = matching.max_by_key(|(_, length)| *length) else {
                    let rest = String::from_utf8_lossy(rest).into_owned();
                    return Err(EncodeError::Failed(format!("no token starts {rest:?}")));
                };
                ids.push(id as TokenId);
                rest = &rest[length..];
            }
            Ok(ids)
        })
    }
}
