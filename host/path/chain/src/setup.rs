//! The plugins of a stream as the chain receives them.

use afterbay_config as config;
use afterbay_events::{Health, Metrics, StreamTelemetry};
use afterbay_runtime::Plugin;

/// One plugin of a stream.
pub struct PluginSetup {
    /// The checked configuration of the plugin.
    pub config: config::Plugin,
    /// The settings of this instance and of later instances, as JSON.
    pub settings: String,
    /// A configured instance. Its next call is `open`.
    pub instance: Plugin,
    /// The reason why the plugin has no component yet. `instance` is then a stand-in that is never called, and `on_fault`
    /// decides about each batch until a reload.
    pub awaits: Option<String>,
}

/// A plugin of a chain that changes.
#[expect(clippy::large_enum_variant, reason = "a stream has few plugins")]
pub enum PluginChange {
    /// The plugin keeps its instance. The treatment of its faults and its mode may change.
    Stays(config::Plugin),
    /// The instance replaces the plugin of this name, or is a further plugin.
    New(PluginSetup),
}

/// The events, metrics and health conditions of a stream's plugins.
pub struct ChainTelemetry {
    /// The events of the stream.
    pub stream: StreamTelemetry,
    /// The metrics of the process.
    pub metrics: Metrics,
    /// The health conditions of the process.
    pub health: Health,
}
