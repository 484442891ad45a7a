//! Loads the plugins of a configuration: component, grants, settings, and the file to watch.

use crate::grants;
use crate::rendezvous::RendezvousFile;
use afterbay_config as config;
use afterbay_events::event::PluginRefused;
use afterbay_events::{Events, Metrics};
use afterbay_plugin_loader::project::Project;
use afterbay_plugin_loader::{Source, Tokenizers};
use afterbay_plugin_services::store::StoreDirectory;
use afterbay_runtime::{Component, Grants, Host, LoadError, Plugin, Terms, Watched};
use afterbay_stream::PluginSetup;
use anyhow::Context;
use std::path::PathBuf;
use std::sync::Arc;

/// Loads a plugin's component. Returns the file to watch, too; a component in this binary or out of a registry has none.
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

/// The component file of a plugin whose project is not built yet.
pub(crate) fn unbuilt(plugin: &config::Plugin) -> Option<PathBuf> {
    // The file of another component was found when the configuration was read.
    let config::Component::Project(dir) = &plugin.component else { return None };
    let file = Project::of_dir(dir).ok()?.component().ok()?;
    (!file.exists()).then_some(file)
}

/// The stand-in of a plugin that is not built yet: a component without imports that need a grant. It is never called.
fn stand_in(host: &Host, name: &str) -> anyhow::Result<Component> {
    let floor = afterbay_bundled::find("floor").context("the stand-in is not bundled")?;
    let grants = Grants { log: true, metrics: Some(Arc::new(())), ..Grants::default() };
    Ok(host.load(name, floor.component, Terms { grants, ..Terms::default() })?)
}

/// The settings of a plugin, as JSON text.
pub(crate) fn settings(plugin: &config::Plugin) -> String {
    serde_json::Value::Object(plugin.settings.clone()).to_string()
}

/// The names of a stream and of one of its plugins.
pub(crate) type Key = (String, String);

/// Loads plugins. A clone can do so on another thread.
#[derive(Clone)]
pub(crate) struct Loader {
    pub(crate) host: Host,
    pub(crate) tokenizers: Arc<Tokenizers>,
    pub(crate) metrics: Metrics,
    /// Whether a plugin whose component file is missing awaits its first build (`run --dev`). Otherwise it is an error.
    pub(crate) awaits_builds: bool,
    pub(crate) stores: Arc<StoreDirectory>,
    pub(crate) events: Events,
}

impl Loader {
    /// Loads a plugin and starts an instance for its stream. Returns the component file to watch, too, if there is one.
    pub(crate) fn load(
        &self,
        stream: &config::Stream,
        plugin: &config::Plugin,
        rendezvous: Option<&RendezvousFile>,
    ) -> anyhow::Result<(PluginSetup, Option<Watched<Key>>)> {
        let name = stream.name.to_string();
        let meter = grants::meter(&self.metrics, &name, plugin.name.as_str());
        let model = grants::model(stream, plugin, rendezvous, &self.tokenizers);
        let model = model.map_err(|why| anyhow::anyhow!("plugin {:?}: {why}", plugin.name.as_str()))?;
        let store = grants::store(&self.stores, stream, plugin)
            .with_context(|| format!("plugin {:?}", plugin.name.as_str()))?;
        let terms = grants::terms(plugin, meter, store, model);
        let unbuilt = unbuilt(plugin).filter(|_| self.awaits_builds);
        let settings = settings(plugin);
        let (component, file, instance, awaits): (_, _, Plugin, _) = match unbuilt {
            Some(file) => {
                let component = stand_in(&self.host, plugin.name.as_str())?;
                let instance = component.instantiate("{}")?;
                (component, Some(file), instance, Some("its first build is not done".to_owned()))
            }
            None => {
                let loaded = load(&self.host, plugin, terms.clone());
                let (component, file) =
                    loaded.inspect_err(|error| self.report_refusal(&name, plugin, error))?;
                let instance = component.instantiate(&settings)?;
                (component, file, instance, None)
            }
        };
        let watched = file.map(|path| Watched {
            key: (name, plugin.name.to_string()),
            name: plugin.name.to_string(),
            path,
            terms,
            settings: settings.clone(),
            digest: component.digest(),
        });
        Ok((PluginSetup { config: plugin.clone(), settings, instance, awaits }, watched))
    }

    fn report_refusal(&self, stream: &str, plugin: &config::Plugin, error: &anyhow::Error) {
        if let Some(LoadError::NotAllowed { digest, .. }) = error.downcast_ref() {
            let (stream, plugin) = (stream.into(), plugin.name.as_str().into());
            self.events.publish(PluginRefused { stream, plugin, digest: digest.to_string() });
        }
    }
}
