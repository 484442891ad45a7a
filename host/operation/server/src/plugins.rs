//! The plugins of all streams for the admin address: their status, and the steps that an operator can take.
//!
//! Streams answer between two batches; this file decides which streams are asked and how long it waits.

use crate::refusal::Refusal;
use afterbay_config as config;
use afterbay_events::Metrics;
use afterbay_stream::{Difference, PluginState, PluginStatus, Reload, StreamHandle};
use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::oneshot;
use tokio::time::error::Elapsed;

/// Time for a stream to answer. Shorter than the command line waits.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// The running streams and their plugins. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Plugins(Arc<Mutex<Vec<StreamPlugins>>>);

/// A running stream, and its plugins as configured.
#[derive(Clone)]
struct StreamPlugins {
    stream: String,
    plugins: Vec<config::Plugin>,
    handle: StreamHandle,
}

/// A plugin, as `/v1/plugins` shows it. Figures have the same names as on `/metrics`.
#[derive(Debug, Serialize)]
pub(crate) struct PluginView {
    stream: String,
    plugin: String,
    /// `builtin:NAME`, `oci://…`, or a path.
    source: String,
    /// The component's own name and version.
    component: String,
    version: String,
    digest: String,
    /// The digest of a new version that is catching up and will take over.
    next_digest: Option<String>,
    /// `live`, `shadow`, `down`, `quarantined`.
    state: &'static str,
    /// The reason for `down` or `quarantined`.
    why: Option<String>,
    /// The reason why the stream is not ready, as the plugin says.
    not_ready: Option<String>,
    /// `live`, or `shadow`, as configured.
    mode: &'static str,
    on_fault: &'static str,
    deadline_us: u64,
    memory_max_bytes: u64,
    memory_bytes: u64,
    requests_open: u64,
    calls: u64,
    rows: u64,
    /// `null` before the first row.
    ns_per_row: Option<f64>,
    verdicts: BTreeMap<&'static str, u64>,
    faults: BTreeMap<&'static str, u64>,
    bypassed_batches: u64,
    terminated_rows: u64,
    /// `null` if the plugin is as at the start.
    last_reload: Option<LastReload>,
    /// The last 20 reloads since the start, the newest first.
    reloads: Vec<ReloadView>,
    /// The last 100 rows on which this shadow and its live plugin differed, the newest first. `null` for whoever may not read the
    /// rids of requests.
    differences: Option<Vec<DifferenceView>>,
}

#[derive(Debug, Serialize)]
struct LastReload {
    ago_s: u64,
    /// The reason why the previous version stayed; `null` if the new one took over.
    refused: Option<String>,
}

#[derive(Debug, Serialize)]
struct ReloadView {
    time: String,
    from_digest: String,
    /// `null` if the component was refused before its digest was known.
    to_digest: Option<String>,
    version: Option<String>,
    refused: Option<String>,
}

#[derive(Debug, Serialize)]
struct DifferenceView {
    /// The receive time of the row's frame.
    time: String,
    rid: String,
    frame: u64,
    /// The decision in words, without ids.
    live: String,
    shadow: String,
}

impl From<&Reload> for ReloadView {
    fn from(Reload { at, from, to, version, refused }: &Reload) -> ReloadView {
        ReloadView {
            time: rfc3339(*at),
            from_digest: from.to_string(),
            to_digest: to.as_ref().map(ToString::to_string),
            version: version.clone(),
            refused: refused.clone(),
        }
    }
}

impl From<&Difference> for DifferenceView {
    fn from(Difference { at, rid, frame, live, shadow }: &Difference) -> DifferenceView {
        DifferenceView {
            time: rfc3339(*at),
            rid: rid.clone(),
            frame: *frame,
            live: live.clone(),
            shadow: shadow.clone(),
        }
    }
}

/// A time for JSON, in milliseconds.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    DateTime::<Utc>::from(time).to_rfc3339_opts(SecondsFormat::Millis, true)
}

impl PluginView {
    /// Whether a new version has not taken over yet.
    pub(crate) fn is_catching_up(&self) -> bool {
        self.next_digest.is_some()
    }

    /// Why the last version was refused, if that was at `begun` or later.
    pub(crate) fn refused_since(&self, begun: &str) -> Option<String> {
        let last = self.reloads.first().filter(|last| last.time.as_str() >= begun)?;
        let why = last.refused.as_ref()?;
        Some(format!(
            "plugin {:?} of {:?}: refused, the component before it stays: {why}",
            self.plugin, self.stream
        ))
    }

    /// Leaves out what has rids of requests.
    pub(crate) fn hide_contents(&mut self) {
        self.differences = None;
    }

    fn new(
        stream: &str,
        config: Option<&config::Plugin>,
        status: PluginStatus,
        metrics: &Metrics,
    ) -> PluginView {
        let PluginStatus { plugin, component, version, digest, state, why, not_ready, .. } = status;
        let counters = metrics.plugin(stream, &plugin);
        let rows = counters.rows.get();
        let counted = |each: &mut dyn Iterator<Item = (&'static str, u64)>| {
            each.filter(|(_, count)| *count > 0).collect::<BTreeMap<_, _>>()
        };
        PluginView {
            source: config.map_or_else(String::new, |config| match &config.component {
                config::Component::Builtin(name) => format!("builtin:{name}"),
                config::Component::Registry(reference) => reference.clone(),
                config::Component::File(path) | config::Component::Project(path) => {
                    path.display().to_string()
                }
            }),
            component,
            version,
            digest: digest.to_string(),
            next_digest: status.next.as_ref().map(ToString::to_string),
            state: match state {
                PluginState::Live => "live",
                PluginState::Shadow => "shadow",
                PluginState::Down => "down",
                PluginState::Quarantined => "quarantined",
            },
            why,
            not_ready,
            mode: match config.map(|config| &config.mode) {
                Some(config::Mode::Shadow { .. }) => "shadow",
                _ => "live",
            },
            on_fault: match config.map(|config| config.on_fault).unwrap_or_default() {
                config::OnFault::Bypass => "bypass",
                config::OnFault::Terminate => "terminate",
            },
            deadline_us: config.map_or(0, |config| config.limits.deadline.as_micros() as u64),
            memory_max_bytes: config.map_or(0, |config| config.limits.memory_bytes),
            memory_bytes: status.memory_bytes,
            requests_open: status.requests_open,
            calls: counters.batch_seconds.count(),
            rows,
            ns_per_row: (rows > 0).then(|| {
                // The clock is not more exact than a tenth of a nanosecond a row.
                (counters.batch_seconds.sum().as_nanos() as f64 / rows as f64 * 10.0).round() / 10.0
            }),
            verdicts: counted(&mut counters.verdicts.each()),
            faults: counted(&mut counters.faults.each()),
            bypassed_batches: counters.bypassed_batches.get(),
            terminated_rows: counters.terminated_rows.get(),
            last_reload: status.reloads.last().map(|last| LastReload {
                ago_s: last.at.elapsed().unwrap_or_default().as_secs(),
                refused: last.refused.clone(),
            }),
            reloads: status.reloads.iter().rev().map(|reload| (&**reload).into()).collect(),
            differences: Some(status.differences.iter().rev().map(|each| (&**each).into()).collect()),
            stream: stream.to_owned(),
            plugin,
        }
    }
}

fn no_answer(stream: &str) -> Refusal {
    let why = format!("stream {stream:?} does not answer in {} s", ANSWER_MAX.as_secs());
    Refusal::unavailable("no_answer", why)
}

/// A step that an operator can take with a plugin.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// Out of quarantine.
    Reinstate,
    /// Make a shadow live.
    Promote,
}

/// The streams whose plugin was changed.
#[derive(Debug, Serialize)]
pub(crate) struct Changed {
    plugin: String,
    streams: Vec<String>,
}

/// Asks a stream for the status of its plugins; the request is sent before the first poll. `None`: the stream has ended.
///
/// # Errors
/// The stream does not answer in time.
pub(crate) fn statuses(
    handle: &StreamHandle,
) -> impl Future<Output = Result<Option<Vec<PluginStatus>>, Elapsed>> + use<> {
    let (reply, answer) = oneshot::channel();
    // The send fails if nobody waits any more.
    handle.statuses(move |statuses| drop(reply.send(statuses)));
    let answer = tokio::time::timeout(ANSWER_MAX, answer);
    async move { answer.await.map(Result::ok) }
}

impl Plugins {
    /// Adds a running stream, or replaces its plugins.
    pub(crate) fn add(&self, stream: &str, plugins: &[config::Plugin], handle: StreamHandle) {
        let mut all = self.lock();
        let plugins = plugins.to_vec();
        match all.iter_mut().find(|asked| asked.stream == stream) {
            Some(asked) => (asked.plugins, asked.handle) = (plugins, handle),
            None => all.push(StreamPlugins { stream: stream.to_owned(), plugins, handle }),
        }
    }

    /// Replaces the plugins of a stream, and forgets the metrics of removed plugins.
    pub(crate) fn replace(
        &self,
        stream: &str,
        plugins: &[config::Plugin],
        handle: StreamHandle,
        metrics: &Metrics,
    ) {
        let before = self.lock().iter().find(|asked| asked.stream == stream).cloned();
        self.add(stream, plugins, handle);
        let before = before.map(|asked| asked.plugins).unwrap_or_default();
        let gone = before.iter().filter(|known| plugins.iter().all(|plugin| plugin.name != known.name));
        gone.for_each(|plugin| metrics.forget_plugin(stream, plugin.name.as_str()));
    }

    /// Forgets a stream that has ended.
    pub(crate) fn remove(&self, stream: &str) {
        self.lock().retain(|asked| asked.stream != stream);
    }

    /// The status of every plugin, stream by stream, in the order of each chain.
    pub(crate) async fn list(&self, metrics: &Metrics) -> Result<Vec<PluginView>, Refusal> {
        let asked = self.lock().clone();
        let asked: Vec<_> = asked
            .into_iter()
            .map(|asked| {
                let answer = statuses(&asked.handle);
                (asked, answer)
            })
            .collect();
        let mut views = Vec::new();
        for (StreamPlugins { stream, plugins, .. }, answer) in asked {
            let Ok(statuses) = answer.await else { return Err(no_answer(&stream)) };
            views.extend(statuses.into_iter().flatten().map(|status| {
                let config = plugins.iter().find(|plugin| plugin.name.as_str() == status.plugin);
                PluginView::new(&stream, config, status, metrics)
            }));
        }
        Ok(views)
    }

    /// Forgets every stream, after all have ended.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<StreamPlugins>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a step with a plugin, in one stream, or in every stream that has a plugin of that name.
    pub(crate) async fn change(
        &self,
        step: Step,
        plugin: &str,
        stream: Option<&str>,
    ) -> Result<Changed, Refusal> {
        let asked: Vec<(String, oneshot::Receiver<Option<bool>>)> = self
            .lock()
            .iter()
            .filter(|asked| stream.is_none_or(|stream| stream == asked.stream))
            .map(|StreamPlugins { stream: name, handle, .. }| {
                let (reply, answer) = oneshot::channel();
                // The send fails if nobody waits any more.
                let reply = move |changed| _ = reply.send(changed);
                match step {
                    Step::Reinstate => handle.reinstate(plugin, reply),
                    Step::Promote => handle.promote(plugin, reply),
                }
                (name.clone(), answer)
            })
            .collect();
        let (mut streams, mut is_known) = (Vec::new(), false);
        for (name, answer) in asked {
            match tokio::time::timeout(ANSWER_MAX, answer).await {
                Ok(Ok(Some(has_changed))) => {
                    is_known = true;
                    if has_changed {
                        streams.push(name);
                    }
                }
                // The stream has no plugin of that name, or has ended.
                Ok(Ok(None) | Err(_)) => {}
                Err(_) => return Err(no_answer(&name)),
            }
        }
        let of = stream.map_or_else(String::new, |stream| format!(" of stream {stream:?}"));
        match (streams.is_empty(), is_known, step) {
            (false, ..) => Ok(Changed { plugin: plugin.to_owned(), streams }),
            (true, false, _) => {
                Err(Refusal::not_found("unknown", format!("there is no plugin {plugin:?}{of}")))
            }
            (true, true, Step::Reinstate) => {
                Err(Refusal::conflict("not_quarantined", format!("plugin {plugin:?}{of} is not quarantined")))
            }
            (true, true, Step::Promote) => {
                Err(Refusal::conflict("not_shadow", format!("plugin {plugin:?}{of} is no shadow")))
            }
        }
    }
}
