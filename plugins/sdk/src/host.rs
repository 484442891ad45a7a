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

/// The plugin's own metrics on Afterbay's `/metrics`: `afterbay_plugin_own_NAME`. Grant: `metrics`.
///
/// A name has 1 to 64 bytes of `a-z`, `0-9` and `_` and does not start with a digit. A plugin may use 64
/// names. Afterbay ignores other names and logs each of them once.
pub mod metrics {
    use super::host;

    /// Adds to the counter `NAME_total`.
    pub fn counter_add(name: &str, delta: u64) {
        host::metrics::counter_add(name, delta);
    }

    /// Sets a gauge.
    pub fn gauge_set(name: &str, value: f64) {
        host::metrics::gauge_set(name, value);
    }

    /// Adds a value to a histogram with bounds at 1, 2 and 5 times each power of ten from 0.000001 to 1000.
    pub fn histogram_observe(name: &str, value: f64) {
        host::metrics::histogram_observe(name, value);
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
