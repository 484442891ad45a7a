//! The grants of a plugin, by its configuration.

use crate::rendezvous::RendezvousFile;
use afterbay_config as config;
use afterbay_events::{Metrics, OWN_NAMES_MAX, OwnError, OwnMetrics};
use afterbay_plugin_loader::{ModelTokens, PluginStore, Tokenizers};
use afterbay_plugin_services::store::StoreDirectory;
use afterbay_runtime::{Digest, Grants, Labels, Limits, Meter, MeterError, Store, Terms, Tokens};
use std::path::PathBuf;
use std::sync::Arc;

/// The limits and grants of a plugin. Its own metrics go to `meter`.
pub(crate) fn terms(
    plugin: &config::Plugin,
    meter: Arc<dyn Meter>,
    store: Option<Arc<dyn Store>>,
    model: Option<Arc<ModelTokens>>,
) -> Terms {
    let config::Limits { memory_bytes, deadline, hold } = plugin.limits;
    let limits = Limits { memory_bytes, deadline, hold, ..Limits::default() };
    let has = |grant| plugin.grant.contains(&grant);
    let grants = Grants {
        log: has(config::Grant::Log),
        metrics: has(config::Grant::Metrics).then_some(meter),
        health: has(config::Grant::Health),
        store,
        call: has(config::Grant::Call),
        signals: has(config::Grant::Signals),
        request: has(config::Grant::Request),
        tokenizer: model.map(|model| model as Arc<dyn Tokens>),
    };
    let allowed = plugin.allowed.as_ref().map(|allowed| allowed.iter().copied().map(Digest).collect());
    Terms { limits, grants, digest: plugin.sha256.map(Digest), allowed }
}

/// The tokenizer of the stream's model: the one that a sink names first, else that of the rendezvous file.
pub(crate) fn tokenizer(stream: &config::Stream, rendezvous: Option<&RendezvousFile>) -> Option<PathBuf> {
    let named = stream.sinks.iter().find_map(|sink| sink.tokenizer.clone());
    let found = rendezvous.and_then(|file| file.tokenizer_path.as_ref().or(file.model_path.as_ref()));
    named.or_else(|| found.map(PathBuf::from))
}

/// The tokens of the stream's model, if the plugin is granted the tokenizer. The error is a sentence for the operator.
pub(crate) fn model(
    stream: &config::Stream,
    plugin: &config::Plugin,
    rendezvous: Option<&RendezvousFile>,
    tokenizers: &Tokenizers,
) -> Result<Option<Arc<ModelTokens>>, String> {
    if !plugin.grant.contains(&config::Grant::Tokenizer) {
        return Ok(None);
    }
    let path = tokenizer(stream, rendezvous);
    let path = path.ok_or("is granted the tokenizer, and no sink of its stream names one: sink.tokenizer")?;
    tokenizers.tokens(&path).map(Some).map_err(|error| format!("tokenizer: {error}"))
}

/// The store of a plugin, if it is granted. All streams share it.
pub(crate) fn store(
    stores: &StoreDirectory,
    stream: &config::Stream,
    plugin: &config::Plugin,
) -> Result<Option<Arc<dyn Store>>, afterbay_plugin_services::store::OpenError> {
    if !plugin.grant.contains(&config::Grant::Store) {
        return Ok(None);
    }
    let store = stores.store(plugin.name.as_str())?;
    Ok(Some(Arc::new(PluginStore::new(&store, stream.name.as_str()))))
}

/// An empty store for a plugin that is only checked, if it is granted.
pub(crate) fn store_of_check(plugin: &config::Plugin) -> Option<Arc<dyn Store>> {
    let is_granted = plugin.grant.contains(&config::Grant::Store);
    is_granted.then(|| Arc::new(PluginStore::in_memory()) as Arc<dyn Store>)
}

/// Counts a plugin's own metrics for `/metrics`.
pub(crate) fn meter(metrics: &Metrics, stream: &str, plugin: &str) -> Arc<dyn Meter> {
    Arc::new(Own(metrics.own(stream, plugin)))
}

struct Own(OwnMetrics);

fn refused(error: OwnError) -> MeterError {
    match error {
        OwnError::Full => MeterError::Full { limit: OWN_NAMES_MAX },
        OwnError::OtherKind => MeterError::OtherKind,
        OwnError::NotFinite { value } => MeterError::NotFinite { value },
    }
}

impl Meter for Own {
    fn add(&self, name: &str, labels: Labels<'_>, delta: u64) -> Result<(), MeterError> {
        self.0.add(name, labels, delta).map_err(refused)
    }

    fn set(&self, name: &str, labels: Labels<'_>, value: f64) -> Result<(), MeterError> {
        self.0.set(name, labels, value).map_err(refused)
    }

    fn observe(&self, name: &str, labels: Labels<'_>, value: f64) -> Result<(), MeterError> {
        self.0.observe(name, labels, value).map_err(refused)
    }

    fn remove(&self, name: &str, labels: Labels<'_>) {
        self.0.remove(name, labels);
    }
}
