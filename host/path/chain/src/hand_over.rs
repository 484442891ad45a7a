//! The plugins' part of a hand-over: what the next process must know to continue a stream's plugins.
//!
//! Each plugin exports its state, if it can. A plugin that cannot is shown the rows of the live requests again.

use crate::setup::PluginSetup;
use afterbay_config::Mode;
use afterbay_runtime::{Ending, Failure, FinishReason, Replacement};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes of the states and of the calls that the plugins of a stream hand over together. A plugin without room hands over no
/// state, and is shown the rows of the live requests again.
pub const HANDED_BYTES_MAX: usize = 64 << 20;

/// The plugins of a stream at a hand-over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainState {
    /// In the order of the chain.
    pub(crate) plugins: Vec<HandedPlugin>,
}

/// One plugin at a hand-over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HandedPlugin {
    pub(crate) plugin: String,
    /// The version that the component gives itself.
    pub(crate) version: String,
    /// The SHA-256 of the component.
    pub(crate) digest: String,
    /// The SHA-256 of the settings.
    pub(crate) settings: String,
    /// Whether an operator has promoted the configured shadow.
    pub(crate) is_promoted: bool,
    pub(crate) status: HandedStatus,
    /// The number of the last call to a service.
    pub(crate) last_call: u64,
    /// The calls whose answers the instance does not have.
    pub(crate) open_calls: Vec<HandedCall>,
    /// The ends of requests that have no last row yet.
    pub(crate) ends: Vec<(u64, HandedEnd)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HandedStatus {
    /// The plugin had an instance.
    Running {
        /// The exported state. `None` if the instance exports none.
        state: Option<HandedBytes>,
    },
    /// The plugin was about to start.
    Down,
    /// The plugin had faulted too often.
    Quarantined { why: String },
}

/// A call to a service whose answer the instance does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HandedCall {
    pub(crate) call: u64,
    pub(crate) request: u64,
    pub(crate) endpoint: String,
    /// `None`: the call cannot be asked again, and is cancelled.
    pub(crate) body: Option<HandedBytes>,
}

/// The end of a request, decided between two batches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HandedEnd {
    Stop { matched: String, replacement: Option<HandedReplacement> },
    Length { replacement: Option<HandedReplacement> },
    Abort { message: String, replacement: Option<HandedReplacement> },
    Error { status: u16, message: String, replacement: Option<HandedReplacement> },
    Terminate { message: String },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HandedReplacement {
    ids: Vec<i64>,
    text: Option<String>,
}

/// Bytes, as base64 in text formats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HandedBytes(pub(crate) Vec<u8>);

impl Serialize for HandedBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for HandedBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<HandedBytes, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(text).map(HandedBytes).map_err(serde::de::Error::custom)
    }
}

impl HandedEnd {
    pub(crate) fn of(ending: &Ending) -> HandedEnd {
        let replacement = ending.replacement.as_ref();
        let replacement = replacement
            .map(|Replacement { ids, text }| HandedReplacement { ids: ids.clone(), text: text.clone() });
        match &ending.reason {
            FinishReason::Stop(matched) => HandedEnd::Stop { matched: matched.clone(), replacement },
            FinishReason::Length => HandedEnd::Length { replacement },
            FinishReason::Abort(message) => HandedEnd::Abort { message: message.clone(), replacement },
            FinishReason::Error(Failure { status, message }) => {
                HandedEnd::Error { status: *status, message: message.clone(), replacement }
            }
        }
    }

    /// The ending of a plugin, or the message with which a failed call terminates the request.
    pub(crate) fn into_ending(self) -> Result<Ending, String> {
        let (reason, replacement) = match self {
            HandedEnd::Stop { matched, replacement } => (FinishReason::Stop(matched), replacement),
            HandedEnd::Length { replacement } => (FinishReason::Length, replacement),
            HandedEnd::Abort { message, replacement } => (FinishReason::Abort(message), replacement),
            HandedEnd::Error { status, message, replacement } => {
                (FinishReason::Error(Failure { status, message }), replacement)
            }
            HandedEnd::Terminate { message } => return Err(message),
        };
        let replacement = replacement.map(|HandedReplacement { ids, text }| Replacement { ids, text });
        Ok(Ending { reason, replacement })
    }
}

impl ChainState {
    /// Takes the state of this plugin.
    pub(crate) fn remove(&mut self, plugin: &str) -> Option<HandedPlugin> {
        let index = self.plugins.iter().position(|handed| handed.plugin == plugin)?;
        Some(self.plugins.remove(index))
    }

    /// Puts promoted shadows in the places of their live plugins, which leave the chain, as the operator's command did.
    pub(crate) fn promote(&self, plugins: &mut Vec<PluginSetup>) {
        for handed in self.plugins.iter().filter(|handed| handed.is_promoted) {
            let index_of = |plugins: &[PluginSetup], name: &str| {
                plugins.iter().position(|setup| setup.config.name.as_str() == name)
            };
            let Some(shadow) = index_of(plugins, &handed.plugin) else { continue };
            let Mode::Shadow { of } = &plugins[shadow].config.mode else { continue };
            let live = of.as_ref().and_then(|of| index_of(plugins, of));
            if let Some(live) = live {
                plugins.swap(shadow, live);
                plugins.remove(shadow);
            }
        }
    }
}
