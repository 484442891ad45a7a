//! Another configuration for the streams that run: read, checked, compiled and started off the path, then brought into force
//! between two batches of each stream. The whole of it or nothing.
//!
//! Owns the order: what can be refused comes first, and what is begun by then is taken back. What differs between two
//! configurations is in `changes.rs`, what a stream does about it in the stream.

use crate::aborts::Opened;
use crate::changes;
use crate::check::check_files;
use crate::config_file;
use crate::drain::drain;
use crate::loading::{Key, Loader};
use crate::reload_queue::ReloadRequest;
use crate::rendezvous::{self, Meeting};
use crate::shared::Shared;
use crate::start::{self, Running};
use afterbay_config as config;
use afterbay_events::event::{ConfigReloadFailed, ConfigReloaded, ConfigUnwatched};
use afterbay_runtime::{FilesWatch, Held, Watched};
use afterbay_stream::{Change, PluginChange, RunningTap, TapChange};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

/// A stream that has not changed by then does not turn. A plugin that is handed its state may take its deadline several times.
const CHANGE_MAX: Duration = Duration::from_secs(30);

/// Key of the health condition of a configuration that was refused.
const CONFIG: &str = "config";

/// Where a configuration comes from, and what waits for its reload.
pub(crate) struct Source<'a> {
    pub(crate) file: &'a Path,
    pub(crate) rendezvous: Option<&'a Path>,
    pub(crate) drain_timeout: Duration,
    pub(crate) asked: mpsc::Receiver<ReloadRequest>,
    pub(crate) hangup: Signal,
    watch: Option<(Vec<PathBuf>, FilesWatch)>,
}

impl<'a> Source<'a> {
    pub(crate) fn new(
        file: &'a Path,
        rendezvous: Option<&'a Path>,
        drain_timeout: Duration,
        asked: mpsc::Receiver<ReloadRequest>,
    ) -> std::io::Result<Source<'a>> {
        let hangup = signal(SignalKind::hangup())?;
        Ok(Source { file, rendezvous, drain_timeout, asked, hangup, watch: None })
    }

    /// Watches the file and those that its settings name.
    pub(crate) fn watch(&mut self, shared: &Shared) -> anyhow::Result<()> {
        let plugins = shared.config.streams.iter().flat_map(|stream| &stream.plugins);
        let named = plugins.flat_map(|plugin| plugin.files.iter().cloned());
        let mut files: Vec<PathBuf> = named.chain([self.file.to_owned()]).collect();
        files.sort_unstable();
        files.dedup();
        if self.watch.as_ref().is_some_and(|(watched, _)| *watched == files) {
            return Ok(());
        }
        let reloads = shared.reloads.clone();
        let watch = FilesWatch::start(files.clone(), move |has_changed| reloads.looked(has_changed))?;
        for without in watch.without_events() {
            let (directory, why) = (without.directory.display().to_string(), without.message.clone());
            shared.events.publish(ConfigUnwatched { directory, why });
        }
        self.watch = Some((files, watch));
        // What was changed between its being read and this is seen, too: compiling may have taken seconds.
        shared.reloads.changed();
        Ok(())
    }

    /// Reloads, tells of it, and answers all who have asked by then. False: it was to stop while the new configuration was
    /// made ready, and nothing has changed.
    pub(crate) async fn reload(
        &mut self,
        first: Option<ReloadRequest>,
        shared: &mut Shared,
        running: &mut Running,
        meetings: &mut Vec<Meeting>,
        stop: impl Future<Output = ()>,
    ) -> bool {
        let held = self.watch.as_ref().map(|(files, _)| Held::by(files));
        shared.reloads.begin(held.as_ref());
        let mut asked: Vec<ReloadRequest> = first.into_iter().collect();
        asked.extend(std::iter::from_fn(|| self.asked.try_recv().ok()));
        let Some(outcome) = self.bring(shared, running, meetings, stop).await.transpose() else {
            return false;
        };
        match &outcome {
            Ok(changed) if changed.is_empty() => {}
            Ok(changed) => shared.events.publish(ConfigReloaded { changed: changed.join("; ") }),
            Err(why) => shared.events.publish(ConfigReloadFailed { why: why.join("; ") }),
        }
        shared.metrics.config_reloaded(outcome.is_ok());
        match &outcome {
            Ok(_) => _ = shared.health.clear(CONFIG),
            Err(why) => {
                let text =
                    format!("the last reload was refused, the configuration before runs: {}", why.join("; "));
                shared.health.degraded(CONFIG, text, SystemTime::now());
            }
        }
        shared.reloads.end(held, &outcome);
        asked.into_iter().for_each(|asked| asked.answer(&outcome));
        if let Err(error) = self.watch(shared) {
            tracing::error!(target: "afterbay", "config: its files cannot be watched: {error}");
        }
        true
    }

    /// What has changed; `None` where it was to stop.
    async fn bring(
        &self,
        shared: &mut Shared,
        running: &mut Running,
        meetings: &mut Vec<Meeting>,
        stop: impl Future<Output = ()>,
    ) -> Result<Option<Vec<String>>, Vec<String>> {
        let after = config_file::load(self.file, self.rendezvous.is_some())?;
        let told = changes::told(&shared.config, &after);
        let refused = changes::refused(&shared.config, &after);
        if !refused.is_empty() {
            return Err(refused);
        }
        if told.is_empty() {
            return Ok(Some(told));
        }
        let met = rendezvous::look(&after, self.rendezvous).map_err(|error| vec![error.to_string()])?;
        let met = met.ok_or_else(|| vec!["the scheduler's rendezvous file is gone".to_owned()])?;
        let met = rendezvous::of_those_that_run(&shared.config, meetings, &after, met);
        // No component is swapped meanwhile.
        let watches = std::mem::take(&mut running.watches);
        let loader = shared.loader();
        let before = shared.config.clone();
        let runs = running.streams.iter().map(|stream| stream.name().to_owned()).collect();
        let after_too = after.clone();
        let ready = tokio::task::spawn_blocking({
            let met = met.clone();
            move || {
                drop(watches);
                ready_plugins(&loader, &before, &after_too, &met, runs)
            }
        });
        // Compiling takes seconds, a registry may take minutes.
        let ready = tokio::select! {
            ready = ready => ready.unwrap_or_else(|error| Err(vec![error.to_string()])),
            () = stop => return Ok(None),
        };
        let outcome = match ready {
            Ok(ready) => self
                .swap(after, met, ready, shared, running, meetings)
                .await
                .map_err(|error| vec![format!("{error:#}")]),
            Err(problems) => Err(problems),
        };
        running.refresh().await;
        if let Err(error) = running.watch_all(shared) {
            tracing::error!(target: "afterbay", "plugins: their files cannot be watched: {error}");
        }
        outcome.map(|()| Some(told))
    }

    /// What can be refused by the system, then what cannot.
    async fn swap(
        &self,
        after: config::Config,
        met: Vec<Meeting>,
        ready: Vec<Ready>,
        shared: &mut Shared,
        running: &mut Running,
        meetings: &mut Vec<Meeting>,
    ) -> anyhow::Result<()> {
        let bound = shared.admin.bind(&after.admin).await?;
        let mut changes = Vec::new();
        for ready in ready {
            changes.push(ready.change(shared)?);
        }
        let before = std::mem::replace(&mut shared.config, after);
        shared.signals.follow(&shared.config, &shared.metrics, &shared.sinks);
        let ran = running.streams.len();
        if let Err(error) = running.start(shared, &met) {
            let begun = running.streams.split_off(ran);
            let names: Vec<String> = begun.iter().map(|stream| stream.name().to_owned()).collect();
            drop(drain(begun, &shared.config.streams, shared, Duration::ZERO).await);
            names.iter().for_each(|name| running.forget_stream(shared, name));
            running.watches.clear();
            shared.config = before;
            shared.signals.follow(&shared.config, &shared.metrics, &shared.sinks);
            shared.signals.meet(&shared.config, meetings)?;
            return Err(error);
        }
        running.watches.clear();
        // From here on nothing is refused.
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
        // What they received is sent, or stays in the journal; each tells how it ended.
        drop(drain(gone, &before.streams, shared, self.drain_timeout).await);
        names.iter().for_each(|name| running.forget_stream(shared, name));
        let state = shared.admin_state();
        shared.admin.serve(&shared.config.admin, &state, bound)?;
        *meetings = met;
        rendezvous::tell(&shared.config, meetings, &shared.events, &shared.health);
        Ok(())
    }
}

/// A stream that runs and is to be otherwise, with the plugins that it is to have.
struct Ready {
    before: config::Stream,
    stream: config::Stream,
    meeting: Meeting,
    plugins: Vec<PluginChange>,
    watched: Vec<Watched<Key>>,
}

/// A stream's change with all that could be refused behind it.
struct Prepared {
    stream: config::Stream,
    change: Change,
    way: Option<Opened>,
    watched: Vec<Watched<Key>>,
    /// Taps that it has no longer.
    taps_gone: Vec<String>,
}

/// Tries every plugin, and loads those that are new in streams that run. Or every problem.
fn ready_plugins(
    loader: &Loader,
    before: &config::Config,
    after: &config::Config,
    met: &[Meeting],
    runs: Vec<String>,
) -> Result<Vec<Ready>, Vec<String>> {
    check_files(after, &loader.host, &loader.tokenizers, drop)?;
    let mut ready = Vec::new();
    let changed = after.streams.iter().zip(met).filter_map(|(stream, meeting)| {
        let known = before.streams.iter().find(|known| known.name == stream.name)?;
        (runs.iter().any(|name| name == stream.name.as_str()) && known != stream)
            .then_some((known, stream, meeting))
    });
    for (known, stream, meeting) in changed {
        let (mut plugins, mut watched) = (Vec::new(), Vec::new());
        for plugin in &stream.plugins {
            let stays =
                known.plugins.iter().any(|known| known.name == plugin.name && changes::stays(known, plugin));
            if stays {
                plugins.push(PluginChange::Stays(plugin.clone()));
                continue;
            }
            let loaded = loader.load(stream, plugin, meeting.met());
            let (setup, file) =
                loaded.map_err(|error| vec![format!("stream {:?}: {error:#}", stream.name.as_str())])?;
            watched.extend(file);
            plugins.push(PluginChange::New(setup));
        }
        let (before, stream, meeting) = (known.clone(), stream.clone(), meeting.clone());
        ready.push(Ready { before, stream, meeting, plugins, watched });
    }
    Ok(ready)
}

impl Ready {
    fn change(self, shared: &Shared) -> anyhow::Result<Prepared> {
        let Ready { before, stream, meeting, plugins, watched } = self;
        let mut way = match before.abort != stream.abort {
            true => Some(Opened::new(&stream, meeting.met(), &shared.events)?),
            false => None,
        };
        let mut taps = Vec::new();
        for tap in &stream.taps {
            taps.push(match before.taps.contains(tap) {
                true => TapChange::Stays(tap.name.to_string()),
                false => {
                    let setup = start::tap_setup(tap)?;
                    TapChange::New(RunningTap::start(
                        stream.name.as_str(),
                        setup,
                        &shared.events,
                        &shared.metrics,
                    )?)
                }
            });
        }
        let change = Change {
            plugins,
            taps,
            upstream: way.as_mut().map(Opened::tell_scheduler),
            attributes: shared.attributes.of(&stream.attributes),
            config: stream.clone(),
        };
        let known = before.taps.iter().map(|tap| tap.name.to_string());
        let taps_gone =
            known.filter(|name| stream.taps.iter().all(|tap| tap.name.as_str() != name)).collect();
        Ok(Prepared { stream, change, way, watched, taps_gone })
    }
}

impl Prepared {
    async fn apply(self, shared: &Shared, running: &mut Running) {
        let Prepared { stream, change, way, watched, taps_gone } = self;
        let name = stream.name.as_str();
        let Some(runs) = running.streams.iter().find(|runs| runs.name() == name) else { return };
        let control = runs.control();
        let (done, is_done) = oneshot::channel();
        control.change(change, move || {
            let _asked = done.send(());
        });
        if tokio::time::timeout(CHANGE_MAX, is_done).await.is_err() {
            tracing::error!(target: "afterbay", "config: stream {name:?} has not changed in {CHANGE_MAX:?}, and does when it turns");
        }
        if let Some(way) = way {
            shared.aborts.add(name, control.clone(), way);
        }
        let is_known =
            |key: &Key| key.0 != name || stream.plugins.iter().any(|plugin| plugin.name.as_str() == key.1);
        let is_new = |key: &Key| watched.iter().any(|watched| watched.key == *key);
        running.watched.retain(|known| is_known(&known.key) && !is_new(&known.key));
        running.watched.extend(watched);
        taps_gone.iter().for_each(|tap| shared.metrics.forget_tap(name, tap));
        shared.plugins.replace(name, &stream.plugins, control, &shared.metrics);
    }
}
