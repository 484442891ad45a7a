//! The status of a plugin, for the operator.

use afterbay_runtime::Digest;
use std::time::SystemTime;

/// The status of a plugin of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginStatus {
    /// The plugin's name in the configuration.
    pub plugin: String,
    /// The name that the component gives itself.
    pub component: String,
    /// The version that the component gives itself.
    pub version: String,
    /// The SHA-256 of the component of the current or last instance.
    pub digest: Digest,
    /// The SHA-256 of the successor's component, during a reload.
    pub next: Option<Digest>,
    /// Whether the plugin is in the chain.
    pub state: PluginState,
    /// The reason why the plugin has no instance.
    pub why: Option<String>,
    /// The reason why the stream is not ready, as the plugin says.
    pub not_ready: Option<String>,
    /// Requests that the instance was told of and that have not ended.
    pub requests_open: u64,
    /// Linear memory of the instance, in bytes.
    pub memory_bytes: u64,
    /// The last reload, if there was one.
    pub last_reload: Option<LastReload>,
}

/// Whether a plugin is in the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PluginState {
    /// The plugin's verdicts are applied.
    Live,
    /// The plugin sees every batch, and its verdicts are only compared.
    Shadow,
    /// No instance could be started. Afterbay tries again every second.
    Down,
    /// The plugin faulted too often and stays without an instance until it is reinstated or reloaded.
    Quarantined,
}

/// A reload of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastReload {
    /// The time of the reload.
    pub at: SystemTime,
    /// The reason why the reload failed. `None` if the new instance took over.
    pub refused: Option<String>,
}
