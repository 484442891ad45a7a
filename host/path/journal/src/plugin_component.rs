//! The component that a plugin's name stands for.

use serde::{Deserialize, Serialize};

/// The component whose verdicts a stream records under a plugin's name, from a place in the journal on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PluginComponent {
    /// Name of the plugin in the configuration.
    pub plugin: String,
    /// The version that the component gives itself. May be empty.
    pub version: String,
    /// The SHA-256 of the component's bytes.
    pub sha256: [u8; 32],
}

impl PluginComponent {
    /// The SHA-256 in hexadecimal.
    #[must_use]
    pub fn sha256_text(&self) -> String {
        self.sha256.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
