//! The host's functions, available with the operator's grants. Outside of WebAssembly the
//! [testing](crate::testing) harness replaces the host.

use crate::abi::afterbay::plugin::signals::Snapshot;
use crate::{RequestId, TokenId};

#[cfg(target_arch = "wasm32")]
use crate::abi::afterbay::plugin as host;
#[cfg(not(target_arch = "wasm32"))]
use crate::stand_in as host;

/// The state of the stream, its readers and the scheduler. It does not change within one call of the plugin
/// and is at most about 100 ms old. Grant: `signals`.
#[must_use]
pub fn signals() -> Snapshot {
    host::signals::read()
}

/// The request's attributes as a JSON object. The operator's rules and `PUT /v1/requests/RID/attributes` set
/// them. `None` if nobody set any, or if the request is not open. Grant: `request`.
#[must_use]
pub fn attributes(request: RequestId) -> Option<String> {
    host::request::attributes(request)
}

/// The record of what the scheduler was asked for, as a JSON object: `prompt_tokens`, `sampling`, `grammar`, `lora` and more. `None` if the
/// engine's connector did not say, or if the request is not open. Grant: `request`.
///
/// Each call reads Afterbay's journal: call it at [`open`](crate::Plugin::opened) and keep what is needed.
#[must_use]
pub fn asked(request: RequestId) -> Option<String> {
    host::request::asked(request)
}

/// The ids of the request's prompt. `None` as for [`asked`], and if Afterbay does not keep the ids. Grant: `request`.
#[must_use]
pub fn prompt_ids(request: RequestId) -> Option<Vec<TokenId>> {
    host::request::prompt_ids(request)
}

/// Calls at a time that the plugin chooses. The plugin must ask for [`Calls::TIMER`](crate::Calls::TIMER).
pub mod timer {
    use super::{RequestId, host};

    /// Sets the timer of an open request to this time, in milliseconds since 1970-01-01 UTC as
    /// [`Batch::time_ms`](crate::Batch::time_ms), in place of the time before. [`Plugin::due`](crate::Plugin::due)
    /// is called at that time, or at once if it has passed. Each request has one timer, which ends with the
    /// request and with the instance: one that takes over sets its own.
    pub fn set(request: RequestId, time_ms: u64) {
        host::timer::set(request, time_ms);
    }

    /// Removes the timer of a request.
    pub fn clear(request: RequestId) {
        host::timer::clear(request);
    }
}

/// The plugin's own metrics on Afterbay's `/metrics`: `afterbay_plugin_own_NAME`. Grant: `metrics`.
///
/// A name has 1 to 64 bytes of `a-z`, `0-9` and `_` and does not start with a digit. A plugin may use 64
/// names. Afterbay ignores other names and logs each of them once.
///
/// A metric has up to 4 labels beside Afterbay's own (`stream`, `plugin`). The rule for names holds for the
/// names of labels. A label's value is cut at 128 bytes. A plugin may use 1,000 combinations of a name and
/// label values in a stream. Further values go to the combination with the only label
/// `otel_metric_overflow="true"`.
///
/// ```
/// use afterbay_plugin::metrics;
///
/// metrics::counter_add("rows", &[], 1);
/// metrics::counter_add("tokens", &[("tenant", "a")], 17);
/// ```
pub mod metrics {
    use super::host;

    /// Adds to the counter `NAME_total`.
    pub fn counter_add(name: &str, labels: &[(&str, &str)], delta: u64) {
        host::metrics::counter_add(name, &owned(labels), delta);
    }

    /// Sets a gauge.
    pub fn gauge_set(name: &str, labels: &[(&str, &str)], value: f64) {
        host::metrics::gauge_set(name, &owned(labels), value);
    }

    /// Adds a value to a histogram with bounds at 1, 2 and 5 times each power of ten from 0.000001 to 1000.
    pub fn histogram_observe(name: &str, labels: &[(&str, &str)], value: f64) {
        host::metrics::histogram_observe(name, &owned(labels), value);
    }

    /// Removes the value with these labels. Its place is free for another combination.
    pub fn remove(name: &str, labels: &[(&str, &str)]) {
        host::metrics::remove(name, &owned(labels));
    }

    fn owned(labels: &[(&str, &str)]) -> Vec<(String, String)> {
        labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }
}

/// The readiness of the stream. Grant: `health`.
pub mod health {
    use super::host;

    /// Marks the stream as unable to serve, with a reason for the operator, or as able with `None`. While any
    /// plugin marks a stream, `/readyz` answers 503 with the reason, which is cut at 256 bytes. The mark ends
    /// with the instance that set it, and 5 minutes after the plugin last set it: a stream without traffic makes
    /// no call in which the plugin could remove its mark. A shadow's mark has no effect.
    pub fn set_not_ready(reason: Option<&str>) {
        host::health::set_not_ready(reason);
    }
}

/// Values that outlive the instance and the process: whatever a replay of the live requests cannot rebuild.
/// Grant: `store`.
///
/// Plugins of the same name in several streams of one Afterbay share one store. Each function is atomic. A
/// store has up to 10,000 keys and 4 MiB of keys and values. During a replay and off the path, [`set`],
/// [`delete`] and [`increment`] change nothing.
///
/// [`set`]: store::set
/// [`delete`]: store::delete
/// [`increment`]: store::increment
pub mod store {
    use super::host;

    pub use crate::abi::afterbay::plugin::store::StoreError;

    /// The value of a key. The value of a number is its 8 bytes, little-endian.
    #[must_use]
    pub fn get(key: &str) -> Option<Vec<u8>> {
        host::store::get(key)
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// If the key has 0 or more than 256 bytes or the value more than 64 KiB, or the store has no room.
    pub fn set(key: &str, value: &[u8]) -> Result<(), StoreError> {
        host::store::set(key, value)
    }

    /// The number of a key; 0 if the key does not exist.
    ///
    /// # Errors
    /// If the key has 0 or more than 256 bytes, or the value is not a number that [`increment`] wrote.
    pub fn number(key: &str) -> Result<i64, StoreError> {
        host::store::increment(key, 0)
    }

    /// Removes a key.
    pub fn delete(key: &str) {
        host::store::delete(key);
    }

    /// Adds to the number of a key, which is 0 if the key does not exist, and returns the sum.
    ///
    /// # Errors
    /// As [`set`], or if the value is not a number that this function wrote.
    pub fn increment(key: &str, delta: i64) -> Result<i64, StoreError> {
        host::store::increment(key, delta)
    }

    /// The keys with this prefix in ascending order, at most 1,000, after the key `after`.
    #[must_use]
    pub fn list_keys(prefix: &str, after: Option<&str>) -> Vec<String> {
        host::store::list_keys(prefix, after)
    }
}

/// Calls to the operator's services. Grant: `call`.
///
/// The operator names each endpoint in `[[call]]`, with its URL, headers, time limit and bounds. No row waits
/// for a call unless the plugin holds the row.
pub mod call {
    use super::{RequestId, host};

    pub use crate::abi::afterbay::plugin::types::CallId;
    pub use crate::abi::{Answer, CallError, Response};

    /// Starts a POST of this body (`application/json`) to the endpoint of this name, and returns at once.
    /// [`Plugin::answered`](crate::Plugin::answered) gets the outcome, also if the call cannot be made.
    pub fn send(endpoint: &str, request: RequestId, body: &[u8]) -> CallId {
        host::call::send(endpoint, request, body)
    }
}

/// The tokens of the stream's model. Grant: `tokenizer`; the stream's configuration must name a tokenizer.
pub mod tokenizer {
    use super::{TokenId, host};

    pub use crate::abi::afterbay::plugin::tokenizer::EncodeError;

    /// The number of ids. Every id is lower than this number.
    #[must_use]
    pub fn size() -> u32 {
        host::tokenizer::size()
    }

    /// The bytes of these tokens, one after another, as they appear in the text. Special tokens have no
    /// bytes.
    #[must_use]
    pub fn decode(ids: &[TokenId]) -> Vec<u8> {
        host::tokenizer::decode(ids)
    }

    /// The bytes of each of `count` tokens, starting at id `first`.
    #[must_use]
    pub fn token_bytes(first: TokenId, count: u32) -> Vec<Vec<u8>> {
        host::tokenizer::token_bytes(first, count)
    }

    /// The ids of the special tokens, in ascending order.
    #[must_use]
    pub fn special() -> Vec<TokenId> {
        host::tokenizer::special()
    }

    /// The ids that end a text, in ascending order; empty if the model's files do not name any.
    #[must_use]
    pub fn end_of_text() -> Vec<TokenId> {
        host::tokenizer::end_of_text()
    }

    /// The ids of a text, without special tokens added around it.
    ///
    /// # Errors
    /// If the text is longer than the host accepts, or the model's tokenizer fails.
    pub fn encode(text: &str) -> Result<Vec<TokenId>, EncodeError> {
        host::tokenizer::encode(text)
    }
}
