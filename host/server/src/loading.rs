//! The plugins of a configuration, loaded: component, grants, settings, and the file to watch.

use crate::grants;
use crate::rendezvous::Rendezvous;
use afterbay_config as config;
use afterbay_events::Metrics;
use afterbay_plugin_loader::{Source, Tokenizers};
use afterbay_runtime::{Component, Host, Plugin, Terms, Watched};
use afterbay_stream::PluginSetup;
use anyhow::Context;
use std::path::PathBuf;
use std::sync::Arc;

/// A plugin's component, and the file to watch; `None` for a component that stays as it is: in this binary, or out of a registry.
pub(crate) fn load(
    host: &Host,
    plugin: &config::Plugin,
    terms: Terms,
) -> anyhow::Result<(Component, Option<PathBuf>)> {
    let name = plugin.name.as_str();
    let source = Source::of_config(name, &plugin.component).with_context(|| format!("plugin {name:?}"))?;
    let component = source.load(host, terms)?;
    Ok((component, source.file))
}

/// The settings of a plugin, as JSON text.
pub(crate) fn settings(plugin: &config::Plugin) -> String {
    serde_json::Value::Object(plugin.settings.clone()).to_string()
}

/// A plugin's place: its stream's name and its own.
pub(crate) type Key = (String, String);

/// What plugins are loaded with, also away from the streams.
#[derive(Clone)]
pub(crate) struct Loader {
    pub(crate) host: Host,
    pub(crate) tokenizers: Arc<Tokenizers>,
    pub(crate) metrics: Metrics,
}

impl Loader {
    /// A plugin, ready for its stream; and its file to be watched, where it is one.
    pub(crate) fn load(
        &self,
        stream: &config::Stream,
        plugin: &config::Plugin,
        met: Option<&Rendezvous>,
    ) -> anyhow::Result<(PluginSetup, Option<Watched<Key>>)> {
        let name = stream.name.to_string();
        let meter = grants::meter(&self.metrics, &name, plugin.name.as_str());
        let model = grants::model(stream, plugin, met, &self.tokenizers);
        let model = model.map_err(|why| anyhow::anyhow!("plugin {:?}: {why}", plugin.name.as_str()))?;
        let terms = grants::terms(plugin, meter, model);
        let (component, file) = load(&self.host, plugin, terms.clone())?;
        let settings = settings(plugin);
        let instance: Plugin = component.instantiate(&settings)?;
        let watched = file.map(|path| Watched {
            key: (name, plugin.name.to_string()),
            name: plugin.name.to_string(),
            path,
            terms,
            settings: settings.clone(),
            digest: component.digest(),
        });
        Ok((PluginSetup { config: plugin.clone(), settings, instance }, watched))
    }
}
