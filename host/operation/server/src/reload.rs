//! Reloads the configuration: reads, checks and compiles it beside the running streams, then applies it between two batches of
//! each stream. A reload takes effect as a whole or not at all.
//!
//! This file decides the order: steps that can fail come first, and are undone if a later one fails. `changes.rs` compares two
//! configurations.

use crate::aborts::{AbortSocket, OpenChannel};
use crate::changes;
use crate::check::check_files;
use crate::config_file;
use crate::drain::drain;
use crate::loading::{Key, Loader};
use crate::reload_queue::ReloadRequest;
use crate::rendezvous::{self, StreamSockets};
use crate::shared::Shared;
use crate::start::Running;
use afterbay_config as config;
use afterbay_events::event::{ConfigCorrected, ConfigReloadFailed, ConfigReloaded, ConfigUnwatched};
use afterbay_runtime::{FileContents, FilesWatch, Watched};
use afterbay_stream::{Change, PluginChange};
use afterbay_supervision::fdstore::Inherited;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

/// Time for a stream to take a change. An importing plugin may use its deadline several times.
const CHANGE_MAX: Duration = Duration::from_secs(30);

/// The key of the health condition for a refused configuration.
const CONFIG: &str = "config";

/// The source of a configuration, and the requests to reload it.
pub(crate) struct Source<'a> {
    pub(crate) file: &'a Path,
    pub(crate) rendezvous: Option<&'a Path>,
    pub(crate) drain_timeout: Duration,
    pub(crate) requests: mpsc::Receiver<ReloadRequest>,
    pub(crate) hangup: Signal,
    watch: Option<(Vec<PathBuf>, FilesWatch)>,
}

impl<'a> Source<'a> {
    pub(crate) fn new(
        file: &'a Path,
        rendezvous: Option<&'a Path>,
        drain_timeout: Duration,
        requests: mpsc::Receiver<ReloadRequest>,
    ) -> std::io::Result<Source<'a>> {
        let hangup = signal(SignalKind::hangup())?;
        Ok(Source { file, rendezvous, drain_timeout, requests, hangup, watch: None })
    }

    /// Watches the configuration file and the files that its settings name.
    pub(crate) fn watch(&mut self, shared: &Shared) -> anyhow::Result<()> {
        let plugins = shared.config.streams.iter().flat_map(|stream| &stream.plugins);
        let of_plugins = plugins.flat_map(|plugin| plugin.files.iter());
        let of_calls = shared.config.calls.iter().flat_map(|call| &call.files);
        let named = of_plugins.chain(of_calls).cloned();
        let mut files: Vec<PathBuf> = named.chain([self.file.to_owned()]).collect();
        files.sort_unstable();
        files.dedup();
        if self.watch.as_ref().is_some_and(|(watched, _)| *watched == files) {
            return Ok(());
        }
        let reloads = shared.reloads.clone();
        let watch = FilesWatch::start(files.clone(), move |has_changed| reloads.checked(has_changed))?;
        for without in watch.without_events() {
            let (directory, why) = (without.directory.display().to_string(), without.message.clone());
            shared.events.publish(ConfigUnwatched { directory, why });
        }
        self.watch = Some((files, watch));
        // A change between reading the file and this watch counts, too: compiling may have taken seconds.
        shared.reloads.changed();
        Ok(())
    }

    /// Answers every waiting request: this process hands over. The new process reads the configuration itself.
    pub(crate) fn refuse_waiting(&mut self) {
        let why = "a hand-over to a new process is under way, which reads the configuration itself";
        while let Ok(request) = self.requests.try_recv() {
            request.answer(&Err(vec![why.to_owned()]));
        }
    }

    /// Reloads, reports the outcome, and answers every waiting request. Returns false if a stop was requested while plugins
    /// compiled; then nothing has changed.
    pub(crate) async fn reload(
        &mut self,
        first: Option<ReloadRequest>,
        shared: &mut Shared,
        running: &mut Running,
        sockets: &mut Vec<StreamSockets>,
        stop: impl Future<Output = ()>,
    ) -> bool {
        let held = self.watch.as_ref().map(|(files, _)| FileContents::read(files));
        shared.reloads.begin(held.as_ref());
        let mut requests: Vec<ReloadRequest> = first.into_iter().collect();
        requests.extend(std::iter::from_fn(|| self.requests.try_recv().ok()));
        let Some(outcome) = self.apply(shared, running, sockets, stop).await.transpose() else {
            return false;
        };
        shared.metrics.config_reloaded(outcome.is_ok());
        match &outcome {
            Ok(changed) => {
                let was_refused = shared.health.clear(CONFIG);
                if !changed.is_empty() {
                    shared.events.publish(ConfigReloaded { changed: changed.join("; ") });
                } else if was_refused {
                    shared.events.publish(ConfigCorrected { file: self.file.display().to_string() });
                }
            }
            Err(why) => {
                shared.events.publish(ConfigReloadFailed { why: why.join("; ") });
                let text = format!(
                    "the last reload was refused, the previous configuration runs: {}",
                    why.join("; ")
                );
                shared.health.degraded(CONFIG, text, SystemTime::now());
            }
        }
        shared.reloads.end(held, &outcome);
        requests.into_iter().for_each(|request| request.answer(&outcome));
        if let Err(error) = self.watch(shared) {
            tracing::error!(target: "afterbay", "config: the files cannot be watched, so a change needs `afterbay reload`: {error}");
        }
        true
    }

    /// Applies the configuration. Returns what changed; `None` if a stop was requested.
    async fn apply(
        &self,
        shared: &mut Shared,
        running: &mut Running,
        sockets: &mut Vec<StreamSockets>,
        stop: impl Future<Output = ()>,
    ) -> Result<Option<Vec<String>>, Vec<String>> {
        let after = config_file::load(self.file, self.rendezvous.is_some())?;
        let changed = changes::differences(&shared.config, &after);
        let refused = changes::refused(&shared.config, &after);
        if !refused.is_empty() {
            return Err(refused);
        }
        if changed.is_empty() {
            return Ok(Some(changed));
        }
        let after_sockets =
            rendezvous::find(&after, self.rendezvous).map_err(|error| vec![error.to_string()])?;
        let after_sockets =
            after_sockets.ok_or_else(|| vec!["the scheduler's rendezvous file is missing".to_owned()])?;
        let after_sockets = rendezvous::keep_running(&shared.config, sockets, &after, after_sockets);
        // Without watches, no component is swapped meanwhile.
        let watches = std::mem::take(&mut running.watches);
        let loader = shared.loader();
        let before = shared.config.clone();
        let runs = running.streams.iter().map(|stream| stream.name().to_owned()).collect();
        let after_too = after.clone();
        let ready = tokio::task::spawn_blocking({
            let after_sockets = after_sockets.clone();
            move || {
                drop(watches);
                ready_plugins(&loader, &before, &after_too, &after_sockets, runs)
            }
        });
        // Compiling takes seconds, a registry may take minutes.
        let ready = tokio::select! {
            ready = ready => ready.unwrap_or_else(|error| Err(vec![error.to_string()])),
            () = stop => return Ok(None),
        };
        let outcome = match ready {
            Ok(ready) => self
                .swap(after, after_sockets, ready, shared, running, sockets)
                .await
                .map_err(|error| vec![format!("{error:#}")]),
            Err(problems) => Err(problems),
        };
        running.refresh().await;
        if let Err(error) = running.watch_all(shared) {
            tracing::error!(target: "afterbay", "plugins: the component files cannot be watched, so a new version needs a restart: {error}");
        }
        outcome.map(|()| Some(changed))
    }

    /// Does what the system can refuse, then what it cannot.
    async fn swap(
        &self,
        after: config::Config,
        after_sockets: Vec<StreamSockets>,
        ready: Vec<Ready>,
        shared: &mut Shared,
        running: &mut Running,
        sockets: &mut Vec<StreamSockets>,
    ) -> anyhow::Result<()> {
        let nothing = &mut Inherited::default();
        let bound = shared.admin.bind(&after.admin, &shared.fdstore, nothing).await?;
        let mut changes = Vec::new();
        for ready in ready {
            changes.push(ready.change(shared)?);
        }
        if let Err(error) = shared.follow(&after) {
            shared.follow(&shared.config)?;
            return Err(error);
        }
        let before = std::mem::replace(&mut shared.config, after);
        shared.attributes.follow(&shared.config);
        shared.records.follow(&shared.config);
        shared.signals.follow(&shared.config, &shared.metrics);
        let ran = running.streams.len();
        if let Err(error) = running.start(shared, &after_sockets) {
            let begun = running.streams.split_off(ran);
            let names: Vec<String> = begun.iter().map(|stream| stream.name().to_owned()).collect();
            drop(drain(begun, &shared.config.streams, shared, Duration::ZERO).await);
            names.iter().for_each(|name| running.forget_stream(shared, name));
            running.watches.clear();
            shared.config = before;
            shared.attributes.follow(&shared.config);
            shared.records.follow(&shared.config);
            shared.follow(&shared.config)?;
            shared.signals.follow(&shared.config, &shared.metrics);
            shared.signals.attach(&shared.config, sockets)?;
            return Err(error);
        }
        running.watches.clear();
        // From here on nothing can fail.
        for changed in changes {
            changed.apply(shared, running).await;
        }
        let is_gone = |name: &str| shared.config.streams.iter().all(|stream| stream.name.as_str() != name);
        let (gone, stay) =
            std::mem::take(&mut running.streams).into_iter().partition(|stream| is_gone(stream.name()));
        running.streams = stay;
        let names: Vec<String> = before
            .streams
            .iter()
            .map(|stream| stream.name.to_string())
            .filter(|name| is_gone(name))
            .collect();
        // Each stream publishes how it ended.
        drop(drain(gone, &before.streams, shared, self.drain_timeout).await);
        names.iter().for_each(|name| running.forget_stream(shared, name));
        let state = shared.admin_state();
        shared.admin.serve(&shared.config.admin, &state, bound)?;
        *sockets = after_sockets;
        rendezvous::report(&shared.config, sockets, &shared.events, &shared.health);
        Ok(())
    }
}

/// A running stream that will change, and its loaded plugins.
struct Ready {
    before: config::Stream,
    stream: config::Stream,
    sockets: StreamSockets,
    plugins: Vec<PluginChange>,
    watched: Vec<Watched<Key>>,
}

/// A stream's change, after everything that can fail.
struct Prepared {
    stream: config::Stream,
    change: Change,
    abort_channel: Option<OpenChannel>,
    watched: Vec<Watched<Key>>,
}

/// Tries every plugin, and loads new plugins of running streams.
fn ready_plugins(
    loader: &Loader,
    before: &config::Config,
    after: &config::Config,
    after_sockets: &[StreamSockets],
    runs: Vec<String>,
) -> Result<Vec<Ready>, Vec<String>> {
    check_files(after, &loader.host, &loader.tokenizers, loader.awaits_builds, drop)?;
    let mut ready = Vec::new();
    let changed = after.streams.iter().zip(after_sockets).filter_map(|(stream, sockets)| {
        let known = before.streams.iter().find(|known| known.name == stream.name)?;
        (runs.iter().any(|name| name == stream.name.as_str()) && known != stream)
            .then_some((known, stream, sockets))
    });
    for (known, stream, sockets) in changed {
        let (mut plugins, mut watched) = (Vec::new(), Vec::new());
        for plugin in &stream.plugins {
            let stays =
                known.plugins.iter().any(|known| known.name == plugin.name && changes::stays(known, plugin));
            if stays {
                plugins.push(PluginChange::Stays(plugin.clone()));
                continue;
            }
            let loaded = loader.load(stream, plugin, sockets.file());
            let (setup, file) =
                loaded.map_err(|error| vec![format!("stream {:?}: {error:#}", stream.name.as_str())])?;
            watched.extend(file);
            plugins.push(PluginChange::New(setup));
        }
        let (before, stream, sockets) = (known.clone(), stream.clone(), sockets.clone());
        ready.push(Ready { before, stream, sockets, plugins, watched });
    }
    Ok(ready)
}

impl Ready {
    fn change(self, shared: &Shared) -> anyhow::Result<Prepared> {
        let Ready { before, stream, sockets, plugins, watched } = self;
        let mut abort_channel = match before.abort != stream.abort {
            true => {
                let socket = AbortSocket { store: &shared.fdstore, inherited: None };
                Some(OpenChannel::new(&stream, sockets.file(), &shared.events, socket)?)
            }
            false => None,
        };
        let change = Change {
            plugins,
            upstream: abort_channel.as_mut().map(OpenChannel::tell_scheduler),
            attributes: shared.attributes.of(&stream),
            config: stream.clone(),
        };
        Ok(Prepared { stream, change, abort_channel, watched })
    }
}

impl Prepared {
    async fn apply(self, shared: &Shared, running: &mut Running) {
        let Prepared { stream, change, abort_channel, watched } = self;
        let name = stream.name.as_str();
        let Some(runs) = running.streams.iter().find(|runs| runs.name() == name) else { return };
        let handle = runs.handle();
        let (done, is_done) = oneshot::channel();
        handle.change(change, move || {
            let _sent = done.send(());
        });
        if tokio::time::timeout(CHANGE_MAX, is_done).await.is_err() {
            tracing::error!(target: "afterbay", "config: stream {name:?} has not taken the change in {CHANGE_MAX:?}; it does when its current batch is done");
        }
        if let Some(channel) = abort_channel {
            shared.aborts.add(name, handle.clone(), channel);
        }
        let is_known =
            |key: &Key| key.0 != name || stream.plugins.iter().any(|plugin| plugin.name.as_str() == key.1);
        let is_new = |key: &Key| watched.iter().any(|watched| watched.key == *key);
        running.watched.retain(|known| is_known(&known.key) && !is_new(&known.key));
        running.watched.extend(watched);
        shared.plugins.replace(name, &stream.plugins, handle, &shared.metrics);
    }
}
