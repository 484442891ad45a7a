//! A plugin that is ready for its slot.

use afterbay_config as config;
use afterbay_runtime::Plugin;

/// One plugin of a stream.
pub struct PluginSetup {
    /// The checked configuration of the plugin.
    pub config: config::Plugin,
    /// The settings of this instance and of later instances, as JSON.
    pub settings: String,
    /// A configured instance. Its next call is `open`.
    pub instance: Plugin,
}
