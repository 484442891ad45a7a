//! One plugin's place in the chain: its component, its instance, and how a fresh one takes over.
//!
//! Owns the instance and what happened to it. Knows nothing of the wire or of the other plugins.

use crate::about::Abouts;
use crate::ledger::{Ledger, Request};
use crate::telemetry::Telemetry;
use afterbay_events::event::{
    PluginDown, PluginFault, PluginLoaded, PluginLog, PluginReloadFailed, PluginReloaded, PluginStateLost,
};
use afterbay_events::{self as events, Name, PluginCounters, ReloadResult};
use afterbay_runtime::signals::Snapshot;
use afterbay_runtime::{
    Action, ColumnSet, Columns, Component, Fault, FaultKind, IdShape, Level, Opened, Plugin, ReloadError,
    StateError, Verdict,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a plugin that could not be started is left alone before the next try.
const START_RETRY: Duration = Duration::from_secs(1);

/// A plugin's place in the chain.
pub(crate) struct Seat {
    name: Name,
    settings: String,
    component: Component,
    plugin: Option<Plugin>,
    retry_at: Option<Instant>,
    /// It faulted as requests were closed, and no fresh one has taken over yet.
    died_closing: bool,
    telemetry: Telemetry,
    counters: Arc<PluginCounters>,
}

impl Seat {
    /// Seats an instance that is configured; `settings` (JSON) are given to those that follow it.
    pub(crate) fn new(
        name: &str,
        settings: String,
        plugin: Plugin,
        telemetry: Telemetry,
        counters: Arc<PluginCounters>,
        ledger: &Ledger,
        abouts: &Abouts,
    ) -> Seat {
        let component = plugin.component().clone();
        let mut seat = Seat {
            name: name.into(),
            settings,
            component,
            plugin: None,
            retry_at: None,
            died_closing: false,
            telemetry,
            counters,
        };
        seat.take_over(plugin, ledger, abouts);
        let (stream, plugin) = seat.names();
        let (version, digest) = seat.version();
        seat.telemetry.publish(PluginLoaded { stream, plugin, version, digest });
        seat
    }

    fn names(&self) -> (Name, Name) {
        (self.telemetry.stream.clone(), self.name.clone())
    }

    fn version(&self) -> (String, String) {
        (self.component.description().version.clone(), self.component.digest().to_string())
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn wants(&self) -> ColumnSet {
        self.component.description().columns
    }

    pub(crate) fn writes(&self) -> IdShape {
        self.component.description().writes
    }

    /// Whether it is to be told how the stream stands.
    pub(crate) fn wants_signals(&self) -> bool {
        self.component.grants().signals
    }

    pub(crate) fn open(&mut self, requests: &[Opened<'_>], ledger: &Ledger, abouts: &Abouts) {
        if !requests.is_empty() {
            self.call(ledger, abouts, |plugin| {
                tell_attributes(plugin, requests, abouts);
                plugin.open(requests)
            });
        }
    }

    /// The attributes of an open request are others now.
    pub(crate) fn changed(&mut self, request: u64, ledger: &Ledger, abouts: &Abouts) {
        if self.component.grants().request {
            self.call(ledger, abouts, |plugin| {
                plugin
                    .set_attributes(request, abouts.get(request).and_then(|about| about.attributes.clone()));
                plugin.changed(&[request])
            });
        }
    }

    /// How the stream stands; `is_news`: otherwise than it was told last.
    pub(crate) fn stands(&mut self, now: &Snapshot, is_news: bool, ledger: &Ledger, abouts: &Abouts) {
        self.call(ledger, abouts, |plugin| {
            plugin.set_signals(now.clone());
            if is_news { plugin.pressure() } else { Ok(()) }
        });
    }

    pub(crate) fn process(
        &mut self,
        columns: &Columns<'_>,
        ledger: &Ledger,
        abouts: &Abouts,
    ) -> Vec<Verdict> {
        let begun = Instant::now();
        let answer = self.call(ledger, abouts, |plugin| plugin.process(columns));
        self.counters.calls.add(1);
        self.counters.rows.add(columns.requests.len() as u64);
        self.counters.seconds.add(begun.elapsed());
        let Some(verdicts) = answer else {
            self.counters.bypassed_batches.add(1);
            return Vec::new();
        };
        for verdict in &verdicts {
            let label = match verdict.action {
                Action::Replace(_) => events::Verdict::Replace,
                Action::Drop(_) => events::Verdict::Drop,
                Action::Finish(_) => events::Verdict::Finish,
                Action::Abort(_) => events::Verdict::Abort,
                Action::Annotate(_) => events::Verdict::Annotate,
                Action::Route(_) => events::Verdict::Route,
                Action::SkipDetokenization => events::Verdict::SkipDetokenization,
            };
            self.counters.verdicts.add(label, 1);
        }
        verdicts
    }

    /// Tells of requests that have no more rows. A fresh instance after a fault here must not be told of them, so it waits
    /// for [`Seat::revive`].
    pub(crate) fn close(&mut self, requests: &[u64], ledger: &Ledger) {
        let Some(plugin) = &mut self.plugin else { return };
        requests.iter().for_each(|request| plugin.set_attributes(*request, None));
        let closed = plugin.close(requests);
        if plugin.has_log() {
            self.drain_log(ledger);
        }
        if let Err(fault) = closed {
            self.tell_fault(&fault);
            self.plugin = None;
            self.died_closing = true;
        }
    }

    /// Between two batches: a fresh instance in place of one that faulted as requests were closed.
    pub(crate) fn revive(&mut self, ledger: &Ledger, abouts: &Abouts) {
        if std::mem::take(&mut self.died_closing) {
            self.restart(ledger, abouts);
        }
    }

    /// One call. `None` where there is no instance, or where it faulted: then a fresh one has taken over, which is told
    /// that it resumes after the batch in hand.
    fn call<T>(
        &mut self,
        ledger: &Ledger,
        abouts: &Abouts,
        call: impl FnOnce(&mut Plugin) -> Result<T, Fault>,
    ) -> Option<T> {
        let plugin = self.plugin.as_mut()?;
        let answer = call(plugin);
        if plugin.has_log() {
            self.drain_log(ledger);
        }
        match answer {
            Ok(answer) => Some(answer),
            Err(fault) => {
                self.tell_fault(&fault);
                self.restart(ledger, abouts);
                None
            }
        }
    }

    /// A fresh instance takes over.
    pub(crate) fn restart(&mut self, ledger: &Ledger, abouts: &Abouts) {
        self.plugin = None;
        match self.component.instantiate(&self.settings) {
            Ok(plugin) => self.take_over(plugin, ledger, abouts),
            Err(error) => {
                let (stream, plugin) = self.names();
                self.telemetry.publish(PluginDown { stream, plugin, why: error.to_string() });
                self.retry_at = Some(Instant::now() + START_RETRY);
            }
        }
    }

    /// A changed component, compiled and configured off the path, takes over between two batches.
    pub(crate) fn reload(&mut self, reloaded: Result<Plugin, ReloadError>, ledger: &Ledger, abouts: &Abouts) {
        let (stream, plugin) = self.names();
        match reloaded {
            Ok(mut instance) => {
                let handed = self.hand_over(&mut instance);
                if !instance.is_alive() {
                    // It died of the state; without it, it may live.
                    match instance.component().instantiate(&self.settings) {
                        Ok(fresh) => instance = fresh,
                        Err(error) => return self.not_reloaded(error.to_string()),
                    }
                }
                self.component = instance.component().clone();
                self.take_over(instance, ledger, abouts);
                self.counters.reloads.add(ReloadResult::Ok, 1);
                let (version, digest) = self.version();
                let resumed_requests = ledger.live() as u64;
                let state_bytes = handed.unwrap_or(Ok(0)).unwrap_or_else(|why| {
                    let (stream, plugin) = self.names();
                    self.telemetry.publish(PluginStateLost { stream, plugin, why });
                    0
                }) as u64;
                self.telemetry.publish(PluginReloaded {
                    stream,
                    plugin,
                    version,
                    digest,
                    resumed_requests,
                    state_bytes,
                });
            }
            Err(error) => self.not_reloaded(error.to_string()),
        }
    }

    fn not_reloaded(&self, why: String) {
        let (stream, plugin) = self.names();
        self.counters.reloads.add(ReloadResult::Failed, 1);
        self.telemetry.publish(PluginReloadFailed { stream, plugin, why });
    }

    /// Gives the instance that takes over what the one before it knows of its requests. `None` where they have no such calls.
    fn hand_over(&mut self, next: &mut Plugin) -> Option<Result<usize, String>> {
        let (before, version) = (self.plugin.as_mut()?, self.component.description().version.clone());
        if !next.component().description().wants.state {
            return None;
        }
        let state = match before.export_state() {
            Ok(state) => state?,
            Err(fault) => return Some(Err(fault.to_string())),
        };
        let imported = match next.import_state(&version, &state) {
            Ok(imported) => imported?,
            Err(fault) => return Some(Err(fault.to_string())),
        };
        Some(match imported {
            Ok(()) => Ok(state.len()),
            Err(StateError::UnknownVersion) => {
                Err(format!("it does not know the state of version {version}"))
            }
            Err(StateError::Corrupt) => Err(format!("it cannot read the state of version {version}")),
        })
    }

    /// When to call [`Seat::tick`].
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Tries again to start a plugin that could not be started. Between two batches only.
    pub(crate) fn tick(&mut self, now: Instant, ledger: &Ledger, abouts: &Abouts) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.restart(ledger, abouts);
        }
    }

    /// Seats an instance and tells it of every request that is alive.
    fn take_over(&mut self, mut plugin: Plugin, ledger: &Ledger, abouts: &Abouts) {
        let alive = ledger.requests().filter(|(_, request)| !request.ended_early());
        let resumed: Vec<Opened<'_>> = alive.map(|(rid, request)| resumed(rid, request, abouts)).collect();
        tell_attributes(&mut plugin, &resumed, abouts);
        let opened = plugin.open(&resumed);
        self.plugin = Some(plugin);
        self.retry_at = None;
        self.drain_log(ledger);
        if let Err(fault) = opened {
            // Not restarted at once: it would fault again, for ever.
            self.tell_fault(&fault);
            self.plugin = None;
            self.retry_at = Some(Instant::now() + START_RETRY);
        }
    }

    fn drain_log(&mut self, ledger: &Ledger) {
        let Some(plugin) = &mut self.plugin else { return };
        for line in plugin.drain_log() {
            let (stream, plugin) = self.names();
            let rid = line.request.and_then(|number| ledger.rid_of(number)).map(str::to_owned);
            let severity = match line.level {
                Level::Debug => tracing::Level::DEBUG,
                Level::Info => tracing::Level::INFO,
                Level::Warn => tracing::Level::WARN,
                Level::Error => tracing::Level::ERROR,
            };
            self.telemetry.publish(PluginLog { stream, plugin, severity, rid, line: line.message });
        }
    }

    fn tell_fault(&self, fault: &Fault) {
        let label = match fault.kind {
            FaultKind::Trap { .. } => events::FaultKind::Trap,
            FaultKind::Deadline { .. } => events::FaultKind::Deadline,
            FaultKind::Memory { .. } => events::FaultKind::Memory,
            FaultKind::Malformed { .. } => events::FaultKind::Malformed,
            FaultKind::Dead => events::FaultKind::Dead,
        };
        self.counters.faults.add(label, 1);
        let (stream, plugin) = self.names();
        self.telemetry.publish(PluginFault {
            stream,
            plugin,
            kind: fault.kind.label(),
            why: fault.to_string(),
        });
    }

    /// Publishes what is read now and then.
    pub(crate) fn publish_gauges(&self) {
        self.counters.memory_bytes.set(self.plugin.as_ref().map_or(0, Plugin::memory_bytes));
    }
}

/// What `request.attributes` is to say of these requests.
fn tell_attributes(plugin: &mut Plugin, requests: &[Opened<'_>], abouts: &Abouts) {
    if !plugin.component().grants().request {
        return;
    }
    for request in requests {
        let about = abouts.get(request.request);
        plugin.set_attributes(request.request, about.and_then(|about| about.attributes.clone()));
    }
}

fn resumed<'l>(rid: &'l str, request: &Request, abouts: &'l Abouts) -> Opened<'l> {
    let number = request.kept.number().0;
    Opened {
        request: number,
        rid,
        http_worker_ipc: abouts.get(number).map_or("", |about| &about.worker),
        prompt_tokens: request.prompt_tokens,
        received_tokens: request.received,
        resumed: true,
    }
}
