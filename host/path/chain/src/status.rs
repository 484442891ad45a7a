//! The status of a plugin, for the operator.

use crate::history::{Difference, Reload};
use afterbay_runtime::Digest;
use std::sync::Arc;

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
    /// The last [`RELOADS_MAX`](crate::RELOADS_MAX) reloads since the process or the plugin started, the earliest first.
    pub reloads: Vec<Arc<Reload>>,
    /// The last [`DIFFERENCES_MAX`](crate::DIFFERENCES_MAX) rows on which this shadow and its live plugin differed, the earliest
    /// first. Empty for a plugin that never was a shadow.
    pub differences: Vec<Arc<Difference>>,
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
