//! The guest `holds` in a configuration, and the token ids that it obeys.

mod ids;

use std::path::Path;

pub use ids::*;

use crate::components::guest;
use crate::sandbox::{Config, Sandbox};

/// Settings with a hold time that no test reaches.
pub const LONG: &str = "millis = 60000";

/// A tokenizer and the guest `holds`.
pub fn holding(sandbox: &Sandbox, settings: &str) -> Config {
    holds(sandbox.config().sink("reader = \"tokenizer\"\ntool_calls = \"joined\""), "holds", settings)
}

/// The configuration with the guest `holds` as a further plugin.
pub fn holds(config: Config, name: &str, settings: &str) -> Config {
    holds_by(&guest("holds"), config, name, settings)
}

/// The configuration with this component of the guest `holds` as a further plugin.
pub fn holds_by(component: &Path, config: Config, name: &str, settings: &str) -> Config {
    config.plugin_with(name, component.to_str().unwrap(), settings, "deadline = \"10s\", hold = \"60s\"")
}
