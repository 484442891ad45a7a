//! How a plugin of a stream stands, as an operator sees it.

use afterbay_runtime::Digest;
use std::time::SystemTime;

/// How a plugin stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginStatus {
    /// Its name in the config.
    pub plugin: String,
    /// Its own name.
    pub component: String,
    /// Its version, as its author counts.
    pub version: String,
    /// The sha256 of the component that runs, or ran last.
    pub digest: Digest,
    /// That of the component which takes over once it knows what that one knows.
    pub next: Option<Digest>,
    /// Whether it is in the chain.
    pub state: PluginState,
    /// Why it is not, for people.
    pub why: Option<String>,
    /// Requests that it was told of and that have not ended.
    pub requests_open: u64,
    /// Bytes of linear memory of its instance.
    pub memory_bytes: u64,
    /// When it was changed last, or should have been.
    pub last_reload: Option<LastReload>,
}

/// Whether a plugin is in the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PluginState {
    /// It is.
    Live,
    /// It sees what the chain sees, and what it says is not done.
    Shadow,
    /// No instance could be started; it is tried again every second.
    Down,
    /// It has faulted too often.
    Quarantined,
}

/// A change of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastReload {
    /// When.
    pub at: SystemTime,
    /// Why the one before has stayed; `None`: the new one took over.
    pub refused: Option<String>,
}
