//! A plugin that is ready for its slot.

use afterbay_config as config;
use afterbay_runtime::Plugin;

/// One plugin of a stream.
pub struct PluginSetup {
    /// The checked configuration of the plugin.
    pub config: config::Plugin,
    /// Its settings, JSON text: given to the instances that follow this one.
    pub settings: String,
    /// Configured; its next call is `open`.
    pub instance: Plugin,
}
