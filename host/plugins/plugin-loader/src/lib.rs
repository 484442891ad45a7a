//! From a plugin's name to a compiled component: built in, a file, a project or a registry; and the model's tokenizer and
//! the store for it.
//!
//! Both `afterbay run` and the author's tools load plugins through this crate. It knows nothing of streams.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod oci;
mod plugin_store;
pub mod project;
mod registry;
mod source;
mod tokenizers;

pub use plugin_store::PluginStore;
pub use registry::RegistryError;
pub use source::{Source, SourceError};
pub use tokenizers::{ModelTokens, Tokenizers};

use afterbay_config::user_dirs;
use afterbay_runtime::{Host, HostError, HostOptions};

/// The plugin host of a command whose user waits for it.
///
/// # Errors
/// The engine cannot be made.
pub fn plugin_host() -> Result<Host, HostError> {
    Host::new(host_options())
}

/// The options of [`plugin_host`]: compiled code is cached, and compiling uses all processors.
#[must_use]
pub fn host_options() -> HostOptions {
    // A file in the cache is code that runs, so the cache is in the user's own directory.
    let cache_dir = user_dirs::cache().map(|cache| cache.join("compiled"));
    HostOptions { cache_dir, compiles_in_parallel: true, ..HostOptions::default() }
}
