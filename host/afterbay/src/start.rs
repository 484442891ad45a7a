//! From a checked configuration to running streams: journal, plugins, sockets, in this order.
//!
//! Owns what several streams share: the journal's directory, the plugin host, the watch over component files.

use crate::aborts::{Aborts, Opened};
use crate::admin::{self, Admin};
use crate::attributes::Attributes;
use crate::dirs;
use crate::grants;
use crate::meeting::{self, Meeting};
use crate::plugins::{self, Plugins};
use crate::project::Project;
use crate::reload::Reloads;
use crate::rendezvous::Rendezvous;
use crate::screen::Busy;
use crate::signals::Signals;
use crate::sinks::{Sinks, sink_setup};
use crate::vocabularies::Vocabularies;
use afterbay_config as config;
use afterbay_events::event::{
    JournalCorrupt, JournalCut, JournalNotice, JournalRecovered, PluginReloadUnwatched, StreamStarted,
};
use afterbay_events::{Events, Health, Metrics};
use afterbay_http::redacted;
use afterbay_journal::{Directory, Options, Recovered, SyncPolicy, What};
use afterbay_oci::Reference;
use afterbay_runtime::limits::COMPONENT_BYTES_MAX;
use afterbay_runtime::{Component, Host, HostError, HostOptions, IdShape, Plugin, Terms, Watch, Watched};
use afterbay_stream::{Budget, Control, PluginSetup, Setup, SinkSetup, Stream, TapSetup};
use afterbay_wire::Layouts;
use anyhow::Context;
use std::collections::HashMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Reads and checks a configuration file. The problems are complete sentences.
pub(crate) fn load(file: &Path, has_rendezvous: bool) -> Result<config::Config, Vec<String>> {
    let names = match has_rendezvous {
        true => config::Names::FromRendezvous,
        false => config::Names::FromConfig,
    };
    with_env(names, |env| config::Config::load(file, env))
}

/// Reads the admin addresses of a configuration file, and token file.
pub(crate) fn load_admin(file: &Path) -> Result<config::Admin, Vec<String>> {
    with_env(config::Names::FromRendezvous, |env| config::Config::load_admin(file, env))
}

/// Calls with what a configuration is checked against. The problems have no passwords in them.
fn with_env<T>(
    names: config::Names,
    load: impl FnOnce(&config::Env<'_>) -> Result<T, config::Problems>,
) -> Result<T, Vec<String>> {
    let builtins: Vec<&str> = afterbay_bundled::names().collect();
    let versions = Layouts::versions();
    let reference = |text: &str| Reference::parse(text).map(drop).map_err(|error| error.to_string());
    // What is in it is told with the plugins' problems.
    let tokenizer =
        |path: &Path| std::fs::metadata(path).map(drop).map_err(|error| format!("cannot be read: {error}"));
    let env = config::Env::of_process(names, &builtins, &reference, &tokenizer, &versions);
    load(&env).map_err(|problems| problems.iter().map(|problem| redacted(&problem.to_string())).collect())
}

/// The plugin host of a command that somebody waits for.
pub(crate) fn plugin_host() -> Result<Host, HostError> {
    Host::new(host_options())
}

/// Of that host.
pub(crate) fn host_options() -> HostOptions {
    // A file there is code that is run, so it is the user's own.
    let cache_dir = dirs::cache().map(|cache| cache.join("compiled"));
    HostOptions { cache_dir, compiles_in_parallel: true, ..HostOptions::default() }
}

/// Makes the directories of a configuration's journal and of the sockets that it listens on, where they are missing. Only
/// their owner may look into them.
pub(crate) fn make_dirs(config: &config::Config) -> anyhow::Result<()> {
    let mut dirs = vec![config.journal.dir.as_path()];
    let mut listens: Vec<&config::Endpoint> = Vec::new();
    for stream in &config.streams {
        listens.push(&stream.listen);
        if let Some(config::Abort::Push(listen)) = &stream.abort {
            listens.push(listen);
        }
        for tap in &stream.taps {
            if let config::TapSocket::Pub { listen, .. } = &tap.socket {
                listens.push(listen);
            }
        }
    }
    for listen in listens {
        if let config::Endpoint::Ipc(path) = listen {
            dirs.extend(path.parent());
        }
    }
    for dir in dirs {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.with_context(|| dir.display().to_string())?;
    }
    Ok(())
}

/// A component out of a registry, or out of the cache. It waits for the registry.
pub(crate) fn of_registry(reference: &str) -> anyhow::Result<Vec<u8>> {
    let kept = dirs::cache().map(|cache| cache.join("components"));
    Ok(afterbay_oci::fetch(&Reference::parse(reference)?, kept.as_deref(), COMPONENT_BYTES_MAX)?)
}

/// A plugin's component, and its file to be watched; none where it is in this binary, or out of a registry, where it stays as it is.
fn load_plugin(
    host: &Host,
    plugin: &config::Plugin,
    terms: Terms,
) -> anyhow::Result<(Component, Option<PathBuf>)> {
    let name = plugin.name.as_str();
    let file = match &plugin.component {
        config::Component::Builtin(builtin) => {
            let component = afterbay_bundled::component(builtin).unwrap_or_default();
            return Ok((host.load(name, component, terms)?, None));
        }
        config::Component::Registry(reference) => {
            let component = of_registry(reference).with_context(|| format!("plugin {name:?}"))?;
            return Ok((host.load(name, &component, terms)?, None));
        }
        config::Component::File(file) => file.clone(),
        config::Component::Project(dir) => {
            let file = Project::of_dir(dir).and_then(|project| project.component());
            file.with_context(|| format!("plugin {name:?}"))?
        }
    };
    Ok((host.load_file(name, &file, terms)?, Some(file)))
}

fn settings(plugin: &config::Plugin) -> String {
    serde_json::Value::Object(plugin.settings.clone()).to_string()
}

/// Compiles every plugin and tries its settings, and reads every tokenizer. A line for each, or every problem.
pub(crate) fn check_files(
    config: &config::Config,
    host: &Host,
    vocabularies: &Vocabularies,
) -> Result<Vec<String>, Vec<String>> {
    let (mut lines, mut problems) = (Vec::new(), Vec::new());
    if let Some(file) = &config.admin.token_file
        && let Err(why) = admin::token(file)
    {
        problems.push(format!("admin.token_file: {} {why}", file.display()));
    }
    for stream in &config.streams {
        for sink in &stream.sinks {
            match sink.tokenizer.as_deref().map(|path| vocabularies.load(path)) {
                Some(Ok(vocabulary)) => lines.push(format!(
                    "stream {}: sink {}: {} tokens ({})",
                    stream.name,
                    sink.name,
                    vocabulary.tokens(),
                    vocabulary.kind()
                )),
                Some(Err(error)) => {
                    problems.push(format!("stream {}: sink {}: tokenizer: {error}", stream.name, sink.name));
                }
                None => {}
            }
        }
        for plugin in &stream.plugins {
            // It comes with the connector.
            let is_met = stream.sinks.iter().any(|sink| sink.connect.is_none());
            let model = match grants::model(stream, plugin, None, vocabularies) {
                Ok(model) => model,
                Err(_) if is_met => {
                    lines.push(format!(
                        "stream {}: plugin {}: is tried at the start, with the tokenizer that the rendezvous names",
                        stream.name, plugin.name
                    ));
                    continue;
                }
                Err(why) => {
                    problems.push(format!(
                        "stream {}: plugin {:?}: {why}",
                        stream.name,
                        plugin.name.as_str()
                    ));
                    continue;
                }
            };
            let terms = grants::terms(plugin, Arc::new(()), model);
            let _busy = Busy::new(format!("plugin {}: is compiled and started", plugin.name));
            let tried = load_plugin(host, plugin, terms).map_err(|error| format!("{error:#}")).and_then(|(component, _)| {
                component.instantiate(&settings(plugin)).map_err(|error| error.to_string())?;
                match next_leg(config, stream) {
                    Some(next) if component.description().writes == IdShape::Cumulative => Err(format!(
                        "plugin {}: writes cumulative ids, and stream {next} after it counts each token once: give \
                         the plugin to {next}",
                        plugin.name
                    )),
                    _ => Ok(component),
                }
            });
            match tried {
                Ok(component) => lines.push(format!(
                    "stream {}: plugin {}: {} {}, sha256 {}",
                    stream.name,
                    plugin.name,
                    component.description().name,
                    component.description().version,
                    component.digest()
                )),
                Err(problem) => problems.push(format!("stream {}: {problem}", stream.name)),
            }
        }
    }
    if problems.is_empty() { Ok(lines) } else { Err(problems) }
}

/// The stream that comes after this one.
fn next_leg<'c>(config: &'c config::Config, stream: &config::Stream) -> Option<&'c config::Name> {
    let next = config.streams.iter().find(|next| next.after.contains(&stream.name))?;
    Some(&next.name)
}

/// What all streams of a process share.
pub(crate) struct Shared {
    pub(crate) config: config::Config,
    pub(crate) directory: Arc<Directory>,
    pub(crate) host: Host,
    pub(crate) vocabularies: Arc<Vocabularies>,
    pub(crate) events: Events,
    pub(crate) metrics: Metrics,
    pub(crate) health: Health,
    pub(crate) signals: Signals,
    pub(crate) sinks: Sinks,
    pub(crate) budget: Budget,
    pub(crate) aborts: Aborts,
    pub(crate) attributes: Attributes,
    pub(crate) plugins: Plugins,
    pub(crate) reloads: Reloads,
    /// The tasks that answer on the admin addresses.
    pub(crate) admin: Admin,
}

/// A plugin's place: its stream's name and its own.
pub(crate) type Key = (String, String);

/// What plugins are loaded with, also away from the streams.
#[derive(Clone)]
pub(crate) struct Loader {
    pub(crate) host: Host,
    pub(crate) vocabularies: Arc<Vocabularies>,
    metrics: Metrics,
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
        let model = grants::model(stream, plugin, met, &self.vocabularies);
        let model = model.map_err(|why| anyhow::anyhow!("plugin {:?}: {why}", plugin.name.as_str()))?;
        let terms = grants::terms(plugin, meter, model);
        let (component, file) = load_plugin(&self.host, plugin, terms.clone())?;
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

impl Shared {
    pub(crate) fn loader(&self) -> Loader {
        let (host, vocabularies) = (self.host.clone(), self.vocabularies.clone());
        Loader { host, vocabularies, metrics: self.metrics.clone() }
    }

    /// Every stream has ended.
    pub(crate) fn clear(&self) {
        self.aborts.clear();
        self.attributes.clear();
        self.plugins.clear();
        self.vocabularies.forget();
        self.sinks.clear();
    }

    /// A stream is configured no longer, and has ended.
    pub(crate) fn forget_stream(&self, stream: &str, running: &mut Running) {
        self.aborts.remove(stream);
        self.attributes.remove(stream);
        self.plugins.remove(stream);
        self.sinks.forget_stream(stream);
        self.metrics.forget_stream(stream);
        self.health.clear_stream(stream);
        running.watched.retain(|watched| watched.key.0 != stream);
    }

    /// Opens (and locks) the journal.
    pub(crate) fn open(
        config: config::Config,
        host: Host,
        vocabularies: Vocabularies,
        reloads: Reloads,
    ) -> anyhow::Result<Shared> {
        let (events, health) = (Events::new(), Health::default());
        let metrics = Metrics::new(events.clone(), health.clone());
        let directory = Arc::new(Directory::open(&config.journal.dir, journal_options(&config))?);
        let sinks = Sinks::default();
        let signals = Signals::new(&config, &metrics, &sinks);
        let budget = Budget::new(config.memory.waiting);
        let aborts = Aborts::new(&events, &metrics);
        let (attributes, plugins) = (Attributes::default(), Plugins::default());
        Ok(Shared {
            budget,
            config,
            directory,
            host,
            vocabularies: Arc::new(vocabularies),
            events,
            metrics,
            health,
            signals,
            sinks,
            aborts,
            attributes,
            plugins,
            reloads,
            admin: Admin::default(),
        })
    }
}

fn journal_options(config: &config::Config) -> Options {
    let journal = &config.journal;
    let max_frame_bytes = config.streams.iter().map(|stream| stream.max_message_bytes).max().unwrap_or(0);
    Options {
        sync: match journal.sync {
            config::Sync::None => SyncPolicy::None,
            config::Sync::Interval => SyncPolicy::Interval(journal.sync_interval),
            config::Sync::Always => SyncPolicy::Always,
        },
        segment_bytes: journal.segment_bytes,
        retain_bytes: journal.retain.bytes,
        retain_age: journal.retain.age,
        abandon_after: journal.abandon_after,
        max_frame_bytes: usize::try_from(max_frame_bytes).unwrap_or(usize::MAX),
    }
}

/// The streams of a process, and the watches over their components.
#[derive(Default)]
pub(crate) struct Running {
    pub(crate) streams: Vec<Stream>,
    /// Over the components of streams that run.
    pub(crate) watches: Vec<Watch>,
    /// The files that they watch.
    pub(crate) watched: Vec<Watched<Key>>,
}

impl Running {
    /// Starts every stream that has its sockets and does not run.
    pub(crate) fn start(&mut self, shared: &Shared, meetings: &[Meeting]) -> anyhow::Result<()> {
        shared.signals.meet(&shared.config, meetings)?;
        let before = self.streams.len();
        let mut watched = Vec::new();
        for (stream, meeting) in shared.config.streams.iter().zip(meetings) {
            let runs = self.streams.iter().any(|running| running.name() == stream.name.as_str());
            if runs || !meeting.has_sockets() {
                continue;
            }
            let mut setup = setup(shared, stream, meeting.met(), &mut watched)?;
            let mut opened = Opened::new(stream, meeting.met(), &shared.events)?;
            setup.upstream = opened.tell_scheduler();
            let started = Stream::start(setup)?;
            shared.aborts.add(started.name(), started.control(), opened);
            shared.attributes.add(started.name(), started.control());
            shared.plugins.add(started.name(), &stream.plugins, started.control());
            shared.events.publish(StreamStarted {
                stream: started.name().into(),
                listen: started.listen().to_string(),
            });
            self.streams.push(started);
        }
        self.watched.extend(watched.iter().cloned());
        self.watch(shared, watched, before)
    }

    /// Watches all components anew, as those that run now.
    pub(crate) fn watch_all(&mut self, shared: &Shared) -> anyhow::Result<()> {
        self.watches.clear();
        self.watch(shared, self.watched.clone(), 0)
    }

    /// What each stream runs by now, or is about to: the same bytes are no reload.
    pub(crate) async fn refresh(&mut self) {
        let asked: Vec<_> =
            self.streams.iter().map(|it| (it.name(), plugins::standings(&it.control()))).collect();
        for (stream, standings) in asked {
            // One that has ended runs nothing, and of one that does not turn nobody can say.
            for standing in standings.await.ok().flatten().unwrap_or_default() {
                let is_it =
                    |known: &&mut Watched<Key>| known.key.0 == stream && known.key.1 == standing.plugin;
                if let Some(known) = self.watched.iter_mut().find(is_it) {
                    known.digest = standing.next.unwrap_or(standing.digest);
                }
            }
        }
    }

    /// Watches components of the streams from `first` on.
    fn watch(&mut self, shared: &Shared, watched: Vec<Watched<Key>>, first: usize) -> anyhow::Result<()> {
        if watched.is_empty() {
            return Ok(());
        }
        let controls: HashMap<String, Control> =
            self.streams[first..].iter().map(|stream| (stream.name().to_owned(), stream.control())).collect();
        let reloads = shared.reloads.clone();
        let has_more_changed = move || reloads.is_due();
        let watch = Watch::start(shared.host.clone(), watched, has_more_changed, move |reloaded| {
            let (stream, plugin): Key = reloaded.key;
            if let Some(control) = controls.get(&stream) {
                control.reload(&plugin, reloaded.result);
            }
        })?;
        for without in watch.without_events() {
            let (directory, why) = (without.directory.display().to_string(), without.message.clone());
            shared.events.publish(PluginReloadUnwatched { directory, why });
        }
        self.watches.push(watch);
        Ok(())
    }
}

fn setup(
    shared: &Shared,
    stream: &config::Stream,
    met: Option<&Rendezvous>,
    watched: &mut Vec<Watched<Key>>,
) -> anyhow::Result<Setup> {
    let name = stream.name.to_string();
    let journal = shared.directory.stream(&name)?;
    let after: Vec<String> = stream.after.iter().map(ToString::to_string).collect();
    if let Err(error) = shared.directory.set_after(&name, &after) {
        if !error.is_full() {
            return Err(error.into());
        }
        let what = format!("which streams it comes after is not kept: {error}");
        shared.events.publish(JournalNotice { stream: name.as_str().into(), is_wrong: true, what });
    }
    tell_recovered(shared, &name, &journal.1);
    let mut plugins = Vec::new();
    let loader = shared.loader();
    for plugin in &stream.plugins {
        let (setup, file) = loader.load(stream, plugin, met)?;
        watched.extend(file);
        plugins.push(setup);
    }
    let workers = meeting::workers(stream, met)?;
    let sinks = stream.sinks.iter().chain(&workers);
    let sinks = sinks.map(|sink| sink_setup(shared, &shared.config, stream, sink, met));
    let taps = stream.taps.iter().map(tap_setup);
    let sinks: Vec<SinkSetup> = sinks.collect::<anyhow::Result<_>>()?;
    Ok(Setup {
        taps: taps.collect::<anyhow::Result<_>>()?,
        listen: stream.listen.clone(),
        sinks,
        layouts: layouts(stream, met)?,
        journal,
        reopen: {
            let (directory, name) = (shared.directory.clone(), name.clone());
            Box::new(move || directory.stream(&name))
        },
        on_error: shared.config.journal.on_error,
        durable_first: shared.config.journal.sync == config::Sync::Always,
        abandon_after: shared.config.journal.abandon_after,
        budget: shared.budget.clone(),
        spill_max: shared.config.journal.retain.bytes.unwrap_or(u64::MAX),
        plugins,
        attributes: shared.attributes.of(&stream.attributes),
        scheduler: shared.signals.load_of(&name),
        upstream: None,
        events: shared.events.clone(),
        metrics: shared.metrics.clone(),
        health: shared.health.clone(),
        config: stream.clone(),
    })
}

/// One tap of a stream.
pub(crate) fn tap_setup(tap: &config::Tap) -> anyhow::Result<TapSetup> {
    let (config::TapSocket::Push(endpoint) | config::TapSocket::Pub { listen: endpoint, .. }) = &tap.socket;
    Ok(TapSetup { config: tap.clone(), endpoint: endpoint.clone() })
}

fn layouts(stream: &config::Stream, met: Option<&Rendezvous>) -> anyhow::Result<Layouts> {
    Ok(match (&stream.layout, met.and_then(|met| met.layout.as_ref())) {
        (config::Layout::Auto, Some(layout)) => Layouts::from_json("rendezvous", &layout.to_string())?,
        (config::Layout::Auto, None) => Layouts::builtin(),
        (config::Layout::Version(version), _) => Layouts::version(version)?,
        (config::Layout::File(path), _) => Layouts::load(&path.to_string_lossy())?,
    })
}

fn tell_recovered(shared: &Shared, stream: &str, recovered: &Recovered) {
    let name: afterbay_events::Name = stream.into();
    for cut in &recovered.cut {
        let (stream, segment) = (name.clone(), cut.segment.to_string());
        shared.events.publish(JournalCut { stream, segment, cut_bytes: cut.bytes });
    }
    for corrupt in &recovered.corrupt {
        let what = format!("{} bytes from byte {} on are no record", corrupt.bytes, corrupt.offset);
        let (stream, segment) = (name.clone(), corrupt.segment.to_string());
        shared.events.publish(JournalCorrupt { stream, segment, what });
    }
    if let Some(missing) = &recovered.missing {
        let what = What::MissingSegments(*missing).to_string();
        shared.events.publish(JournalNotice { stream: name.clone(), is_wrong: true, what });
    }
    shared.events.publish(JournalRecovered {
        stream: name,
        segments: recovered.segments as u64,
        bytes: recovered.bytes,
        last_frame: recovered.last_frame.0,
        live_requests: recovered.live.len() as u64,
        unaccounted_frames: recovered.unfinished.len(),
    });
}
