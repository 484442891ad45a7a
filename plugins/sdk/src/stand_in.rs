//! A stand-in for the host outside of WebAssembly, one for each thread: it answers the functions that a plugin imports,
//! with the values that a test gave to the [harness](crate::testing).

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::abi::RequestId;
use crate::abi::afterbay::plugin::log::Level;
use crate::abi::afterbay::plugin::signals::{Queue, Snapshot};
use crate::abi::afterbay::plugin::types::{CallId, TokenId};

thread_local! {
    pub(crate) static HOST: RefCell<StandIn> = RefCell::new(StandIn::default());
}

/// The state of the host, as the harness of this thread set it.
#[derive(Default)]
pub(crate) struct StandIn {
    pub(crate) lines: Vec<Line>,
    pub(crate) signals: Option<Snapshot>,
    pub(crate) attributes: BTreeMap<RequestId, String>,
    pub(crate) asked: BTreeMap<RequestId, (String, Vec<TokenId>)>,
    /// The bytes of each token, by id; `None` for a special token.
    pub(crate) tokens: Vec<Option<Vec<u8>>>,
    pub(crate) metrics: BTreeMap<(String, Labels), Metric>,
    pub(crate) store: BTreeMap<String, Stored>,
    pub(crate) calls: Vec<SentCall>,
    pub(crate) last_call: CallId,
    pub(crate) not_ready: Option<String>,
    pub(crate) time_ms: u64,
    pub(crate) timers: BTreeMap<RequestId, u64>,
}

/// The labels of a metric: names and values.
pub(crate) type Labels = Vec<(String, String)>;

/// A value of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    Bytes(Vec<u8>),
    Number(i64),
}

/// A call that a plugin made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentCall {
    /// The number of the call, for [`Harness::answer`](crate::testing::Harness::answer).
    pub call: CallId,
    /// The endpoint's name.
    pub endpoint: String,
    /// The request that the call is about.
    pub request: RequestId,
    /// The body.
    pub body: Vec<u8>,
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

pub(crate) mod timer {
    pub(crate) fn set(request: crate::abi::RequestId, time_ms: u64) {
        super::HOST.with_borrow_mut(|host| host.timers.insert(request, time_ms));
    }

    pub(crate) fn clear(request: crate::abi::RequestId) {
        super::HOST.with_borrow_mut(|host| host.timers.remove(&request));
    }
}

pub(crate) mod request {
    pub(crate) fn attributes(request: crate::abi::RequestId) -> Option<String> {
        super::HOST.with_borrow(|host| host.attributes.get(&request).cloned())
    }

    pub(crate) fn asked(request: crate::abi::RequestId) -> Option<String> {
        super::HOST.with_borrow(|host| host.asked.get(&request).map(|(asked, _)| asked.clone()))
    }

    pub(crate) fn prompt_ids(request: crate::abi::RequestId) -> Option<Vec<super::TokenId>> {
        super::HOST.with_borrow(|host| host.asked.get(&request).map(|(_, ids)| ids.clone()))
    }
}

pub(crate) mod metrics {
    use super::{HOST, Labels, Metric};

    fn update(name: &str, labels: &[(String, String)], empty: Metric, add: impl FnOnce(&mut Metric)) {
        let key = (name.to_owned(), Labels::from(labels));
        HOST.with_borrow_mut(|host| add(host.metrics.entry(key).or_insert(empty)));
    }

    /// Like the host, ignores a name that is already used for another kind of metric.
    pub(crate) fn counter_add(name: &str, labels: &[(String, String)], delta: u64) {
        update(name, labels, Metric::Counter(0), |metric| {
            if let Metric::Counter(sum) = metric {
                *sum += delta;
            }
        });
    }

    pub(crate) fn gauge_set(name: &str, labels: &[(String, String)], value: f64) {
        update(name, labels, Metric::Gauge(value), |metric| {
            if let Metric::Gauge(last) = metric {
                *last = value;
            }
        });
    }

    pub(crate) fn histogram_observe(name: &str, labels: &[(String, String)], value: f64) {
        update(name, labels, Metric::Histogram(Vec::new()), |metric| {
            if let Metric::Histogram(values) = metric {
                values.push(value);
            }
        });
    }

    pub(crate) fn remove(name: &str, labels: &[(String, String)]) {
        let key = (name.to_owned(), Labels::from(labels));
        HOST.with_borrow_mut(|host| host.metrics.remove(&key));
    }
}

pub(crate) mod health {
    pub(crate) fn set_not_ready(reason: Option<&str>) {
        super::HOST.with_borrow_mut(|host| host.not_ready = reason.map(str::to_owned));
    }
}

pub(crate) mod call {
    use super::{CallId, HOST, RequestId, SentCall};

    pub(crate) fn send(endpoint: &str, request: RequestId, body: &[u8]) -> CallId {
        HOST.with_borrow_mut(|host| {
            host.last_call += 1;
            let call = host.last_call;
            host.calls.push(SentCall { call, endpoint: endpoint.to_owned(), request, body: body.to_vec() });
            call
        })
    }
}

/// The store without its bounds on all keys together.
pub(crate) mod store {
    use super::{HOST, Stored};
    use crate::abi::afterbay::plugin::store::StoreError;

    const KEY_BYTES_MAX: usize = 256;
    const VALUE_BYTES_MAX: usize = 64 << 10;
    const KEYS_LISTED_MAX: usize = 1000;

    fn check(key: &str) -> Result<(), StoreError> {
        if (1..=KEY_BYTES_MAX).contains(&key.len()) { Ok(()) } else { Err(StoreError::BadKey) }
    }

    pub(crate) fn get(key: &str) -> Option<Vec<u8>> {
        HOST.with_borrow(|host| {
            Some(match host.store.get(key)? {
                Stored::Bytes(bytes) => bytes.clone(),
                Stored::Number(number) => number.to_le_bytes().to_vec(),
            })
        })
    }

    pub(crate) fn set(key: &str, value: &[u8]) -> Result<(), StoreError> {
        check(key)?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(StoreError::Full);
        }
        HOST.with_borrow_mut(|host| host.store.insert(key.to_owned(), Stored::Bytes(value.to_vec())));
        Ok(())
    }

    pub(crate) fn delete(key: &str) {
        HOST.with_borrow_mut(|host| host.store.remove(key));
    }

    pub(crate) fn increment(key: &str, delta: i64) -> Result<i64, StoreError> {
        check(key)?;
        HOST.with_borrow_mut(|host| match host.store.get_mut(key) {
            Some(Stored::Bytes(_)) => Err(StoreError::NotANumber),
            Some(Stored::Number(number)) => {
                *number = number.saturating_add(delta);
                Ok(*number)
            }
            None => {
                if delta != 0 {
                    host.store.insert(key.to_owned(), Stored::Number(delta));
                }
                Ok(delta)
            }
        })
    }

    pub(crate) fn list_keys(prefix: &str, after: Option<&str>) -> Vec<String> {
        HOST.with_borrow(|host| {
            let keys = host.store.keys().filter(|key| key.starts_with(prefix));
            keys.filter(|key| after.is_none_or(|after| key.as_str() > after))
                .take(KEYS_LISTED_MAX)
                .cloned()
                .collect()
        })
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
