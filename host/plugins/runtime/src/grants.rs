//! The interfaces that an operator grants a plugin, with the host's side of each.

use std::sync::Arc;

use crate::columns::TokenId;
use crate::digest::Digest;
use crate::limits::Limits;

pub use crate::bindings::afterbay::plugin::store::StoreError;
pub use crate::bindings::afterbay::plugin::tokenizer::EncodeError;

/// The conditions under which a plugin is loaded.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// The limits of each instance.
    pub limits: Limits,
    /// The imports that the plugin may call.
    pub grants: Grants,
    /// The digest that its bytes must have. `None` allows any.
    pub digest: Option<Digest>,
    /// The operator's list of digests, of which its bytes must have one. `None` allows any.
    pub allowed: Option<Arc<[Digest]>>,
}

impl From<Limits> for Terms {
    fn from(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }
}

/// The interfaces of `afterbay:plugin` that a component may import. A component that imports another one is refused by name.
#[derive(Clone)]
pub struct Grants {
    /// `log`.
    pub log: bool,
    /// `metrics`, with the receiver of the plugin's metrics.
    pub metrics: Option<Arc<dyn Meter>>,
    /// `health`. The stream reads the mark ([`crate::Plugin::not_ready`]).
    pub health: bool,
    /// `store`, with the plugin's values.
    pub store: Option<Arc<dyn Store>>,
    /// `call`. The stream sends the calls ([`crate::Plugin::drain_calls`]) and passes the answers
    /// ([`crate::Plugin::answered`]).
    pub call: bool,
    /// `signals`, as the stream sets them ([`crate::Plugin::set_signals`]).
    pub signals: bool,
    /// `request`, as the stream sets the attributes ([`crate::Plugin::set_attributes`]).
    pub request: bool,
    /// `tokenizer`, with the model's tokens.
    pub tokenizer: Option<Arc<dyn Tokens>>,
}

impl Default for Grants {
    /// The grant of `log` only.
    fn default() -> Self {
        Self {
            log: true,
            metrics: None,
            health: false,
            store: None,
            call: false,
            signals: false,
            request: false,
            tokenizer: None,
        }
    }
}

impl std::fmt::Debug for Grants {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let granted = |name| self.has(name).then_some(name);
        f.debug_set().entries(INTERFACES.into_iter().filter_map(granted)).finish()
    }
}

/// The interfaces that can be granted, by their names in the package.
pub(crate) const INTERFACES: [&str; 8] =
    ["log", "metrics", "health", "store", "call", "signals", "request", "tokenizer"];

impl Grants {
    /// Whether this interface is granted.
    pub(crate) fn has(&self, interface: &str) -> bool {
        match interface {
            "log" => self.log,
            "metrics" => self.metrics.is_some(),
            "health" => self.health,
            "store" => self.store.is_some(),
            "call" => self.call,
            "signals" => self.signals,
            "request" => self.request,
            "tokenizer" => self.tokenizer.is_some(),
            _ => false,
        }
    }
}

/// The plugin's own labels of a value: names and values. The runtime has checked their number, names and lengths.
pub type Labels<'a> = &'a [(String, String)];

/// The receiver of a plugin's own metrics. The runtime checks the names. Each refused name is logged once.
pub trait Meter: Send + Sync {
    /// Adds to a counter.
    ///
    /// # Errors
    /// If the plugin has too many names, or the name has another kind.
    fn add(&self, name: &str, labels: Labels<'_>, delta: u64) -> Result<(), MeterError>;
    /// Sets a gauge.
    ///
    /// # Errors
    /// As [`Meter::add`].
    fn set(&self, name: &str, labels: Labels<'_>, value: f64) -> Result<(), MeterError>;
    /// Adds a value to a histogram.
    ///
    /// # Errors
    /// As [`Meter::add`], or if the value is infinite or not a number.
    fn observe(&self, name: &str, labels: Labels<'_>, value: f64) -> Result<(), MeterError>;
    /// Removes the value of these labels.
    fn remove(&self, name: &str, labels: Labels<'_>);
}

/// A meter that ignores everything, for a plugin under test.
impl Meter for () {
    fn add(&self, _: &str, _: Labels<'_>, _: u64) -> Result<(), MeterError> {
        Ok(())
    }

    fn set(&self, _: &str, _: Labels<'_>, _: f64) -> Result<(), MeterError> {
        Ok(())
    }

    fn observe(&self, _: &str, _: Labels<'_>, _: f64) -> Result<(), MeterError> {
        Ok(())
    }

    fn remove(&self, _: &str, _: Labels<'_>) {}
}

/// The reason why a metric is refused.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum MeterError {
    /// The plugin has too many names.
    #[error("it has {limit} names already, the limit")]
    Full {
        /// The limit.
        limit: usize,
    },
    /// The name has another kind already.
    #[error("it is of another kind already")]
    OtherKind,
    /// The value is infinite or not a number, from which a histogram's sum could not recover.
    #[error("its value is {value}, a histogram takes finite numbers only")]
    NotFinite {
        /// The refused value.
        value: f64,
    },
}

/// A plugin's store: values that outlive the instance and the process. Each function is atomic, and called on the stream's
/// thread, so it must not wait for a disk.
///
/// The runtime checks the lengths of keys and values, and calls no function that changes something for an instance that is
/// not on the path.
pub trait Store: Send + Sync {
    /// The value of a key. The value of a number is its 8 bytes, little-endian.
    fn get(&self, key: &str) -> Option<Vec<u8>>;
    /// Sets the value of a key.
    ///
    /// # Errors
    /// If the store has no room.
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError>;
    /// Removes a key.
    fn delete(&self, key: &str);
    /// Adds to the number of a key, which is 0 if the key does not exist. Returns the sum. A delta of 0 changes nothing.
    ///
    /// # Errors
    /// If the value is not a number that this function wrote, or the store has no room.
    fn increment(&self, key: &str, delta: i64) -> Result<i64, StoreError>;
    /// At most `count` keys with this prefix, ascending, after the key `after`.
    fn keys(&self, prefix: &str, after: Option<&str>, count: usize) -> Vec<String>;
    /// Begins a batch of the stream: the changes from now on belong to it. `is_repeated`: an earlier run of the process may
    /// have run the batch. If that run finished the batch, the changes have no effect.
    fn begin_batch(&self, batch: u64, is_repeated: bool) {
        let _ = (batch, is_repeated);
    }
    /// Ends the batch: its changes outlive the process from now on.
    fn end_batch(&self) {}
}

/// A store that is always empty, for a plugin under test.
impl Store for () {
    fn get(&self, _: &str) -> Option<Vec<u8>> {
        None
    }

    fn set(&self, _: &str, _: &[u8]) -> Result<(), StoreError> {
        Ok(())
    }

    fn delete(&self, _: &str) {}

    fn increment(&self, _: &str, delta: i64) -> Result<i64, StoreError> {
        Ok(delta)
    }

    fn keys(&self, _: &str, _: Option<&str>, _: usize) -> Vec<String> {
        Vec::new()
    }
}

/// The tokens of a model.
pub trait Tokens: Send + Sync {
    /// The number of ids.
    fn size(&self) -> u32;
    /// The bytes of a token in a text. Empty for special tokens and unknown ids.
    fn bytes(&self, id: TokenId) -> &[u8];
    /// The special tokens, ascending.
    fn special(&self) -> &[TokenId];
    /// The tokens that end a text, ascending.
    fn end_of_text(&self) -> &[TokenId];
    /// The ids of a text, without special tokens around it.
    ///
    /// # Errors
    /// If the text is too long, or the tokenizer fails.
    fn encode(&self, text: &str) -> Result<Vec<TokenId>, EncodeError>;
}
