//! What the operator grants a plugin, one interface at a time, and where the host gets it from.

use std::sync::Arc;

use crate::batch::TokenId;
use crate::component::Digest;
use crate::limits::Limits;

pub use crate::bindings::afterbay::plugin::tokenizer::EncodeError;

/// What a plugin is loaded on: what it may use, and what it is given.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// What each of its instances may use.
    pub limits: Limits,
    /// The imports that it may call.
    pub grants: Grants,
    /// What its bytes must be; `None`: whatever they are.
    pub digest: Option<Digest>,
}

impl From<Limits> for Terms {
    fn from(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }
}

/// The interfaces of `afterbay:plugin` that a component may import. One that imports another is refused by name.
#[derive(Clone)]
pub struct Grants {
    /// `log`.
    pub log: bool,
    /// `metrics`: where they go.
    pub metrics: Option<Arc<dyn Meter>>,
    /// `signals`: as the stream sets them ([`crate::Plugin::set_signals`]).
    pub signals: bool,
    /// `request`: as the stream sets them ([`crate::Plugin::set_attributes`]).
    pub request: bool,
    /// `tokenizer`: the model's.
    pub tokenizer: Option<Arc<dyn Tokens>>,
}

impl Default for Grants {
    /// The log.
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

/// What may be granted, by its name in the package.
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

/// Where a plugin's own figures go. Names are checked by the host; one that cannot be had is an error, once told.
pub trait Meter: Send + Sync {
    /// Adds to a counter.
    ///
    /// # Errors
    /// If there is no room for one more name, or the name is another kind's.
    fn add(&self, name: &str, delta: u64) -> Result<(), MeterError>;
    /// Sets a gauge.
    ///
    /// # Errors
    /// As [`Meter::add`].
    fn set(&self, name: &str, value: f64) -> Result<(), MeterError>;
    /// Enters a value into a histogram.
    ///
    /// # Errors
    /// As [`Meter::add`], or if the value is infinite or no number.
    fn observe(&self, name: &str, value: f64) -> Result<(), MeterError>;
}

/// To nobody: of a plugin that is only tried.
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

/// Why a figure is not counted.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum MeterError {
    /// There are too many names.
    #[error("it has {limit} names already, the limit")]
    Full {
        /// The limit.
        limit: usize,
    },
    /// The name is taken.
    #[error("it is of another kind already")]
    OtherKind,
    /// A histogram's sum would never be a number again.
    #[error("its value is {value}, a histogram takes finite numbers only")]
    NotFinite {
        /// The value.
        value: f64,
    },
}

/// A model's tokens.
pub trait Tokens: Send + Sync {
    /// How many ids there are.
    fn size(&self) -> u32;
    /// A token's bytes as they stand in a text; empty for a special one and for what is none.
    fn bytes(&self, id: TokenId) -> &[u8];
    /// The special tokens, ascending.
    fn special(&self) -> &[TokenId];
    /// Those that end a text, ascending.
    fn end_of_text(&self) -> &[TokenId];
    /// The ids of a text, without special tokens added around it.
    ///
    /// # Errors
    /// If it is too long, or the tokenizer fails at it.
    fn encode(&self, text: &str) -> Result<Vec<TokenId>, EncodeError>;
}
