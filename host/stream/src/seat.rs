//! One plugin's place in the chain: its component, its instance, and how a fresh one takes over.
//!
//! Owns the instance and what happened to it. Knows nothing of the wire or of the other plugins.

use crate::ledger::{Ledger, Request};
use crate::telemetry::Telemetry;
use afterbay_events::event::{
    PluginDown, PluginFault, PluginLoaded, PluginLog, PluginReloadFailed, PluginReloaded,
};
use afterbay_events::{self as events, Name, PluginCounters, ReloadResult};
use afterbay_runtime::{
    Action, ColumnSet, Columns, Component, Fault, FaultKind, IdShape, Level, Opened, Plugin, ReloadError,
    Verdict,
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
        seat.take_over(plugin, ledger);
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

    pub(crate) fn open(&mut self, requests: &[Opened<'_>], ledger: &Ledger) {
        if !requests.is_empty() {
            self.call(ledger, |plugin| plugin.open(requests));
        }
    }

    pub(crate) fn process(&mut self, columns: &Columns<'_>, ledger: &Ledger) -> Vec<Verdict> {
        let begun = Instant::now();
        let answer = self.call(ledger, |plugin| plugin.process(columns));
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
            };
            self.counters.verdicts.add(label, 1);
        }
        verdicts
    }

    /// Tells of requests that have no more rows. A fresh instance after a fault here must not be told of them, so it waits
    /// for [`Seat::revive`].
    pub(crate) fn close(&mut self, requests: &[u64], ledger: &Ledger) {
        let Some(plugin) = &mut self.plugin else { return };
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
    pub(crate) fn revive(&mut self, ledger: &Ledger) {
        if std::mem::take(&mut self.died_closing) {
            self.restart(ledger);
        }
    }

    /// One call. `None` where there is no instance, or where it faulted: then a fresh one has taken over, which is told
    /// that it resumes after the batch in hand.
    fn call<T>(&mut self, ledger: &Ledger, call: impl FnOnce(&mut Plugin) -> Result<T, Fault>) -> Option<T> {
        let plugin = self.plugin.as_mut()?;
        let answer = call(plugin);
        if plugin.has_log() {
            self.drain_log(ledger);
        }
        match answer {
            Ok(answer) => Some(answer),
            Err(fault) => {
                self.tell_fault(&fault);
                self.restart(ledger);
                None
            }
        }
    }

    /// A fresh instance takes over.
    pub(crate) fn restart(&mut self, ledger: &Ledger) {
        self.plugin = None;
        match self.component.instantiate(&self.settings) {
            Ok(plugin) => self.take_over(plugin, ledger),
            Err(error) => {
                let (stream, plugin) = self.names();
                self.telemetry.publish(PluginDown { stream, plugin, why: error.to_string() });
                self.retry_at = Some(Instant::now() + START_RETRY);
            }
        }
    }

    /// A changed component, compiled and configured off the path, takes over between two batches.
    pub(crate) fn reload(&mut self, reloaded: Result<Plugin, ReloadError>, ledger: &Ledger) {
        let (stream, plugin) = self.names();
        match reloaded {
            Ok(instance) => {
                self.component = instance.component().clone();
                self.take_over(instance, ledger);
                self.counters.reloads.add(ReloadResult::Ok, 1);
                let (version, digest) = self.version();
                let resumed_requests = ledger.live() as u64;
                self.telemetry.publish(PluginReloaded { stream, plugin, version, digest, resumed_requests });
            }
            Err(error) => {
                self.counters.reloads.add(ReloadResult::Failed, 1);
                self.telemetry.publish(PluginReloadFailed { stream, plugin, why: error.to_string() });
            }
        }
    }

    /// When to call [`Seat::tick`].
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Tries again to start a plugin that could not be started. Between two batches only.
    pub(crate) fn tick(&mut self, now: Instant, ledger: &Ledger) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.restart(ledger);
        }
    }

    /// Seats an instance and tells it of every request that is alive.
    fn take_over(&mut self, mut plugin: Plugin, ledger: &Ledger) {
        let alive = ledger.requests().filter(|(_, request)| !request.ended_early());
        let resumed: Vec<Opened<'_>> = alive.map(|(rid, request)| resumed(rid, request)).collect();
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

fn resumed<'l>(rid: &'l str, request: &Request) -> Opened<'l> {
    Opened {
        request: request.kept.number().0,
        rid,
        prompt_tokens: request.prompt_tokens,
        received_tokens: request.received,
        resumed: true,
    }
}
