//! The interfaces that an operator grants a plugin, with the host's side of each.

use std::sync::Arc;

use crate::columns::TokenId;
use crate::digest::Digest;
use crate::limits::Limits;

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
        Self { log: true, metrics: None, signals: false, request: false, tokenizer: None }
    }
}

impl std::fmt::Debug for Grants {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let granted = |name| self.has(name).then_some(name);
        f.debug_set().entries(INTERFACES.into_iter().filter_map(granted)).finish()
    }
}

/// The interfaces that can be granted, by their names in the package.
pub(crate) const INTERFACES: [&str; 5] = ["log", "metrics", "signals", "request", "tokenizer"];

impl Grants {
    /// Whether this interface is granted.
    pub(crate) fn has(&self, interface: &str) -> bool {
        match interface {
            "log" => self.log,
            "metrics" => self.metrics.is_some(),
            "signals" => self.signals,
            "request" => self.request,
            "tokenizer" => self.tokenizer.is_some(),
            _ => false,
        }
    }
}

/// The receiver of a plugin's own metrics. The host checks the names. Each refused name is logged once.
pub trait Meter: Send + Sync {
    /// Adds to a counter.
    ///
    /// # Errors
    /// If the plugin has too many names, or the name has another kind.
    fn add(&self, name: &str, delta: u64) -> Result<(), MeterError>;
    /// Sets a gauge.
    ///
    /// # Errors
    /// As [`Meter::add`].
    fn set(&self, name: &str, value: f64) -> Result<(), MeterError>;
    /// Adds a value to a histogram.
    ///
    /// # Errors
    /// As [`Meter::add`], or if the value is infinite or not a number.
    fn observe(&self, name: &str, value: f64) -> Result<(), MeterError>;
}

/// A meter that ignores everything, for a plugin under test.
impl Meter for () {
    fn add(&self, _: &str, _: u64) -> Result<(), MeterError> {
        Ok(())
    }

    fn set(&self, _: &str, _: f64) -> Result<(), MeterError> {
        Ok(())
    }

    fn observe(&self, _: &str, _: f64) -> Result<(), MeterError> {
        Ok(())
    }
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
