//! What the host gives, where the operator grants it. Outside of WebAssembly the [testing](crate::testing) harness stands for
//! the host.

use crate::abi::afterbay::plugin::signals::Snapshot;
use crate::{RequestId, TokenId};

#[cfg(target_arch = "wasm32")]
use crate::abi::afterbay::plugin as host;
#[cfg(not(target_arch = "wasm32"))]
use crate::testing as host;

/// How the stream, its readers and the scheduler stand. Within one call of the plugin it is always the same, and never older
/// than some 100 ms. Grant: `signals`.
#[must_use]
pub fn signals() -> Snapshot {
    host::signals::read()
}

/// The request's attributes, a JSON object, as the operator's rules and `PUT /v1/requests/RID/attributes` have set them;
/// none where nobody did, or where the request is not open. Grant: `request`.
#[must_use]
pub fn attributes(request: RequestId) -> Option<String> {
    host::request::attributes(request)
}

/// The plugin's own figures on Afterbay's `/metrics`, as `afterbay_plugin_own_NAME`. Grant: `metrics`.
///
/// A name has 1 to 64 bytes of `a-z`, `0-9` and `_`, the first no digit; a plugin has at most 64 of them. One that may not be is
/// not counted, and told once in the log.
pub mod metrics {
    use super::host;

    /// Adds to a counter: `_total` is put behind its name.
    pub fn counter_add(name: &str, delta: u64) {
        host::metrics::counter_add(name, delta);
    }

    /// Sets a gauge.
    pub fn gauge_set(name: &str, value: f64) {
        host::metrics::gauge_set(name, value);
    }

    /// Enters a value into a histogram with bounds at 1, 2 and 5 times each power of ten from 0.000001 to 1000.
    pub fn histogram_observe(name: &str, value: f64) {
        host::metrics::histogram_observe(name, value);
    }
}

/// The tokens of the stream's model. Grant: `tokenizer`; the stream's config must name one.
pub mod tokenizer {
    use super::{TokenId, host};

    pub use crate::abi::afterbay::plugin::tokenizer::EncodeError;

    /// How many ids there are: each id is less.
    #[must_use]
    pub fn size() -> u32 {
        host::tokenizer::size()
    }

    /// The bytes of these tokens, one after another, as they stand in the text. Special tokens have none.
    #[must_use]
    pub fn decode(ids: &[TokenId]) -> Vec<u8> {
        host::tokenizer::decode(ids)
    }

    /// The bytes of each of `count` tokens from `first` on.
    #[must_use]
    pub fn token_bytes(first: TokenId, count: u32) -> Vec<Vec<u8>> {
        host::tokenizer::token_bytes(first, count)
    }

    /// The ids of the special tokens, ascending.
    #[must_use]
    pub fn special() -> Vec<TokenId> {
        host::tokenizer::special()
    }

    /// The ids that end a text, ascending; none where the model's files do not say.
    #[must_use]
    pub fn end_of_text() -> Vec<TokenId> {
        host::tokenizer::end_of_text()
    }

    /// The ids of a text, without special tokens added around it.
    ///
    /// # Errors
    /// If it is longer than the host takes, or the model's tokenizer fails at it.
    pub fn encode(text: &str) -> Result<Vec<TokenId>, EncodeError> {
        host::tokenizer::encode(text)
    }
}
