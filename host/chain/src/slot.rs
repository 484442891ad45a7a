//! One plugin's place in the chain: its component, its instance, and how a fresh one takes over.
//!
//! Owns the instance and what happened to it. Knows nothing of the wire or of the other plugins.

mod faults;
mod holding;
mod swap;

use crate::context::ChainContext;
use crate::quarantine::Faults;
use crate::resumed;
use crate::setup::PluginSetup;
use crate::shadow;
use crate::status::{LastReload, PluginState, PluginStatus};
use afterbay_batch::{Accounted, Timestamp};
use afterbay_config::{self as config, Mode, OnFault};
use afterbay_events as events;
use afterbay_events::StreamTelemetry;
use afterbay_events::event::{PluginDown, PluginLoaded, PluginLog, PluginPromoted};
use afterbay_events::{Health, Name, PluginCounters, Severity};
use afterbay_runtime::signals::Snapshot;
use afterbay_runtime::{ColumnSet, Columns, Component, Fault, IdShape, Level, Opened, Plugin, Verdict};
use std::sync::Arc;
use std::time::{Duration, Instant};
use swap::Successor;
pub use swap::{Behind, Wanted};

/// How long a plugin that could not be started is left alone before the next try.
const START_RETRY: Duration = Duration::from_secs(1);
/// Calls for one batch where `on_fault` is `retry`. Later batches wait until the last of them returns.
const RETRY_TRIES: u32 = 2;
/// The consequence of a fault in a batch that is tried again.
const AGAIN: &str = "the batch is tried once more on a fresh instance";
/// The consequence of a fault between two batches.
const TAKES_OVER: &str = "a fresh instance takes over";

/// What a plugin made of a batch.
pub enum Answer {
    /// What is to be done with its rows.
    Verdicts(Vec<Verdict>),
    /// It goes on as it came.
    Unjudged,
    /// Its requests end, with this message.
    Ended(String),
}

/// What a plugin's place is made of.
pub struct Parts {
    pub setup: PluginSetup,
    pub telemetry: StreamTelemetry,
    pub counters: Arc<PluginCounters>,
    pub health: Health,
}

/// A plugin's place in the chain.
pub struct PluginSlot {
    name: Name,
    settings: String,
    component: Component,
    on_fault: OnFault,
    mode: Mode,
    /// The instance that takes over once it knows the live requests.
    successor: Option<Successor>,
    /// Number of successors so far: the number of the latest.
    successors: u64,
    /// As the configuration says; it may have been promoted since.
    configured: Mode,
    plugin: Option<Plugin>,
    /// Why there is none, for people.
    absent: Option<String>,
    /// When to try again to start one. `None` too where there is one, and in quarantine.
    retry_at: Option<Instant>,
    faults: Faults,
    is_quarantined: bool,
    /// The instance faulted in `close`, and no fresh instance has taken over yet.
    died_closing: bool,
    requests_open: u64,
    last_reload: Option<LastReload>,
    /// Another instance took over, and the rows that the previous instance held are not released yet.
    is_lost: bool,
    /// That it holds for longer than it may was told.
    told_cut: bool,
    telemetry: StreamTelemetry,
    counters: Arc<PluginCounters>,
    health: Health,
}

impl PluginSlot {
    /// Seats an instance that is configured; its settings are given to those that follow it.
    pub fn new(parts: Parts, context: ChainContext<'_>) -> PluginSlot {
        let Parts { setup, telemetry, counters, health } = parts;
        let PluginSetup { config, settings, instance } = setup;
        let mut slot = PluginSlot {
            name: config.name.as_str().into(),
            settings,
            component: instance.component().clone(),
            on_fault: config.on_fault,
            configured: config.mode.clone(),
            mode: config.mode,
            successor: None,
            successors: 0,
            plugin: None,
            absent: None,
            retry_at: None,
            faults: Faults::new(config.quarantine),
            is_quarantined: false,
            died_closing: false,
            requests_open: 0,
            last_reload: None,
            is_lost: false,
            told_cut: false,
            telemetry,
            counters,
            health,
        };
        slot.take_over(instance, &resumed::now(context.ledger), context);
        let (stream, plugin) = slot.names();
        let (version, digest) = slot.version();
        slot.telemetry.publish(PluginLoaded { stream, plugin, version, digest });
        slot
    }

    fn names(&self) -> (Name, Name) {
        (self.telemetry.stream.clone(), self.name.clone())
    }

    fn version(&self) -> (String, String) {
        (self.component.description().version.clone(), self.component.digest().to_string())
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether what it says is not done.
    pub fn is_shadow(&self) -> bool {
        self.mode != Mode::Live
    }

    /// The live plugin that it is compared with.
    pub fn shadow_of(&self) -> Option<&str> {
        match &self.mode {
            Mode::Shadow { of } => of.as_ref().map(|of| of.as_str()),
            Mode::Live => None,
        }
    }

    /// From now on what it says is done. `of`: what becomes of the one before it, for people.
    pub fn promote(&mut self, of: String, now: Timestamp) {
        self.mode = Mode::Live;
        self.publish_absence(now);
        let (stream, plugin) = self.names();
        self.telemetry.publish(PluginPromoted { stream, plugin, of });
    }

    /// Compares what it said of some rows with what the live plugin did.
    pub fn compare<'r>(&self, said: &Answer, live: &[Verdict], rid: impl Fn(u32) -> Option<&'r str>) {
        // Where it faulted, that is counted as such.
        if let Answer::Verdicts(said) = said {
            shadow::compare(&self.name, said, live, &self.counters, &self.telemetry, rid);
        }
    }

    /// The columns that its instance and its successor want.
    pub fn wants(&self) -> ColumnSet {
        let own = self.component.description().columns;
        self.successor.as_ref().map_or(own, |successor| own | successor.wants())
    }

    pub fn writes(&self) -> IdShape {
        self.component.description().writes
    }

    /// Tells of the requests that begin with a batch, and asks what is to be done with its rows. Where it does not judge them,
    /// `on_fault` says what becomes of them.
    pub fn run(
        &mut self,
        opened: &[Opened<'_>],
        columns: &Columns<'_>,
        accounted: &Accounted,
        context: ChainContext<'_>,
    ) -> Answer {
        let begun = Instant::now();
        let rows = columns.requests.len() as u64;
        let is_shown = self.plugin.is_some() && rows > 0;
        let verdicts = self.ask(opened, columns, accounted, context);
        if is_shown {
            self.counters.calls.add(1);
            self.counters.rows.add(rows);
            self.counters.seconds.add(begun.elapsed());
        }
        let Some(verdicts) = verdicts else {
            if self.policy() != OnFault::Terminate {
                self.counters.bypassed_batches.add(1);
                return Answer::Unjudged;
            }
            self.counters.terminated_rows.add(rows);
            let why = if self.is_quarantined { "is quarantined" } else { "did not judge this row" };
            return Answer::Ended(format!("afterbay: plugin {:?} {why}", &*self.name));
        };
        for verdict in &verdicts {
            self.counters.verdicts.add(verdict.action.kind(), 1);
        }
        Answer::Verdicts(verdicts)
    }

    /// The instance's verdicts. `None` where there is no instance, or where each try faulted. After the last try the fresh
    /// instance resumes after the batch.
    fn ask(
        &mut self,
        opened: &[Opened<'_>],
        columns: &Columns<'_>,
        accounted: &Accounted,
        context: ChainContext<'_>,
    ) -> Option<Vec<Verdict>> {
        let tries = if self.policy() == OnFault::Retry { RETRY_TRIES } else { 1 };
        for tried in 1..=tries {
            let Some(plugin) = self.plugin.as_mut() else { break };
            let opens = match opened.is_empty() {
                true => Ok(()),
                false => resumed::open(plugin, opened, context.attributes),
            };
            let answer = opens.and_then(|()| plugin.process(columns));
            if plugin.has_log() {
                self.drain_log(context);
            }
            let fault = match answer {
                Ok(verdicts) => {
                    if !columns.requests.is_empty() {
                        self.faults.output();
                    }
                    self.requests_open += opened.len() as u64;
                    self.miss(opened, columns, context);
                    return Some(verdicts);
                }
                Err(fault) => fault,
            };
            if tried < tries {
                self.fault(&fault, AGAIN, context.now);
                self.counters.retried_batches.add(1);
                self.restart(&resumed::before(accounted, context.ledger), context);
            } else {
                self.fault(&fault, self.then(), context.now);
                self.resume(context);
            }
        }
        self.miss(opened, columns, context);
        None
    }

    /// The attributes of an open request changed.
    pub fn attributes_changed(&mut self, request: u64, context: ChainContext<'_>) {
        if let Some(successor) = &mut self.successor {
            successor.changed(request, context.attributes.attributes(request));
        }
        if self.component.grants().request {
            self.tell(context, |plugin| {
                plugin.set_attributes(request, context.attributes.attributes(request));
                plugin.changed(&[request])
            });
        }
    }

    /// Gives the instance a new snapshot of the signals. `has_changed`: the instance is called, too.
    pub fn set_signals(&mut self, snapshot: &Snapshot, has_changed: bool, context: ChainContext<'_>) {
        self.tell(context, |plugin| {
            plugin.set_signals(snapshot.clone());
            if has_changed { plugin.pressure() } else { Ok(()) }
        });
    }

    /// Calls the instance between two batches. Where the call faults, a fresh instance takes over. `None` where there is no
    /// instance, or where it faulted.
    fn tell<T>(
        &mut self,
        context: ChainContext<'_>,
        call: impl FnOnce(&mut Plugin) -> Result<T, Fault>,
    ) -> Option<T> {
        let plugin = self.plugin.as_mut()?;
        let answer = call(plugin);
        if plugin.has_log() {
            self.drain_log(context);
        }
        if let Err(fault) = &answer {
            self.fault(fault, TAKES_OVER, context.now);
            self.resume(context);
        }
        answer.ok()
    }

    /// Whether it is to be told how the stream stands.
    pub fn wants_signals(&self) -> bool {
        self.component.grants().signals
    }

    /// What is done about its faults: of a shadow, nothing that anybody waits for or sees.
    fn policy(&self) -> OnFault {
        if self.is_shadow() { OnFault::Bypass } else { self.on_fault }
    }

    /// Whether nothing is to pass of what can never be judged: to try it once more would not help.
    pub fn is_guard(&self) -> bool {
        matches!(self.policy(), OnFault::Terminate | OnFault::Retry)
    }

    /// Some rows cannot be read, which counts as a fault. It says nothing about the plugin, so that it does not bring it nearer to
    /// quarantine: else whoever can send such rows could turn it off. True where they must not pass.
    pub fn cannot_see(&mut self, rows: u64) -> bool {
        self.counters.faults.add(events::FaultKind::Unread, 1);
        match self.is_guard() {
            true => self.counters.terminated_rows.add(rows),
            false => self.counters.bypassed_batches.add(1),
        }
        self.is_guard()
    }

    /// What becomes of a batch that it did not judge.
    fn then(&self) -> &'static str {
        match self.policy() {
            OnFault::Bypass | OnFault::Retry => "the batch goes on unchanged",
            OnFault::Terminate => "the batch's requests are ended",
        }
    }

    /// Tells of requests that have no more rows. A fresh instance after a fault here must not be told of them, so it waits
    /// for [`PluginSlot::restart_after_close`].
    pub fn close(&mut self, requests: &[u64], context: ChainContext<'_>) {
        if let Some(successor) = &mut self.successor {
            successor.closed(requests);
        }
        let Some(plugin) = &mut self.plugin else { return };
        self.requests_open = self.requests_open.saturating_sub(requests.len() as u64);
        requests.iter().for_each(|request| plugin.set_attributes(*request, None));
        let closed = plugin.close(requests);
        if plugin.has_log() {
            self.drain_log(context);
        }
        if let Err(fault) = closed {
            // The requests have ended: there is no batch to retry and no request to end.
            self.fault(&fault, TAKES_OVER, context.now);
            self.died_closing = !self.is_quarantined;
        }
    }

    /// Between two batches: a fresh instance in place of one that faulted as requests were closed.
    pub fn restart_after_close(&mut self, context: ChainContext<'_>) {
        if std::mem::take(&mut self.died_closing) {
            self.resume(context);
        }
    }

    /// A fresh instance takes over after a panic of the stream's thread.
    pub fn after_panic(&mut self, context: ChainContext<'_>) {
        self.successor = None;
        self.resume(context);
    }

    /// A fresh instance takes over the live requests as they are now, unless the plugin is quarantined.
    fn resume(&mut self, context: ChainContext<'_>) {
        self.restart(&resumed::now(context.ledger), context);
    }

    /// A fresh instance takes over these requests, unless the plugin is quarantined.
    fn restart(&mut self, requests: &[Opened<'_>], context: ChainContext<'_>) {
        (self.plugin, self.is_lost) = (None, true);
        if self.is_quarantined {
            return;
        }
        match self.component.instantiate(&self.settings) {
            Ok(plugin) => self.take_over(plugin, requests, context),
            Err(error) => {
                let (stream, plugin) = self.names();
                self.telemetry.publish(PluginDown {
                    stream,
                    plugin,
                    why: error.to_string(),
                    then: self.then(),
                });
                self.absent(error.to_string(), context.now);
            }
        }
    }

    /// There is no instance; a start is tried again soon.
    fn absent(&mut self, why: String, now: Timestamp) {
        self.plugin = None;
        self.retry_at = Some(now.instant + START_RETRY);
        self.absent = Some(why);
        self.publish_absence(now);
    }

    /// Sets the health condition of a live plugin that is out of the chain. Where its requests are aborted, the stream
    /// cannot do its work; else the stream is degraded. A shadow has no condition: its stream does not miss it.
    fn publish_absence(&self, now: Timestamp) {
        let Some(why) = self.absent.as_ref().filter(|_| self.plugin.is_none() && !self.is_shadow()) else {
            self.health.clear(&self.key());
            return;
        };
        let is_terminate = self.policy() == OnFault::Terminate;
        let severity = if is_terminate { Severity::NotReady } else { Severity::Degraded };
        let text = match (self.is_quarantined, is_terminate) {
            (true, _) => why.clone(),
            (false, true) => format!("down, requests are aborted: {why}"),
            (false, false) => format!("down, batches go on unchanged: {why}"),
        };
        self.health.set(&self.key(), severity, text, now.system_time());
    }

    fn key(&self) -> String {
        format!("plugin:{}:{}", self.telemetry.stream, self.name)
    }

    fn reload_key(&self) -> String {
        format!("plugin-reload:{}:{}", self.telemetry.stream, self.name)
    }

    /// What becomes of its faults, and of what it says, from now on. One that was promoted stays so until its mode is another.
    pub fn treat(&mut self, config: &config::Plugin, now: Timestamp) {
        if self.configured != config.mode {
            (self.mode, self.configured) = (config.mode.clone(), config.mode.clone());
        }
        self.on_fault = config.on_fault;
        if self.faults.policy() != config.quarantine {
            self.faults = Faults::new(config.quarantine);
        }
        self.publish_absence(now);
    }

    /// It is out of the chain for good.
    pub fn leave(self) {
        self.counters.quarantined.set(0);
        self.health.clear(&self.key());
        self.health.clear(&self.reload_key());
    }

    /// When to call [`PluginSlot::tick`].
    pub fn deadline(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Tries again to start a plugin that could not be started. Between two batches only.
    pub fn tick(&mut self, context: ChainContext<'_>) {
        if self.retry_at.is_some_and(|at| at <= context.now.instant) {
            self.retry_at = None;
            self.resume(context);
        }
    }

    /// Seats an instance and tells it of the requests that are alive.
    fn take_over(&mut self, mut plugin: Plugin, requests: &[Opened<'_>], context: ChainContext<'_>) {
        self.faults.started();
        let opened = resumed::open(&mut plugin, requests, context.attributes);
        self.requests_open = requests.len() as u64;
        (self.plugin, self.is_lost) = (Some(plugin), true);
        self.retry_at = None;
        self.drain_log(context);
        match opened {
            Ok(()) => {
                if self.absent.take().is_some() {
                    self.health.clear(&self.key());
                }
            }
            Err(fault) => {
                self.fault(&fault, "it is started again soon", context.now);
                // Not at once: it would fault again, for ever.
                if !self.is_quarantined {
                    self.absent(fault.to_string(), context.now);
                }
            }
        }
    }

    fn drain_log(&mut self, context: ChainContext<'_>) {
        for line in self.plugin.as_mut().map(Plugin::drain_log).unwrap_or_default() {
            let (stream, plugin) = self.names();
            let rid = line.request.and_then(|number| context.ledger.rid_of(number)).map(str::to_owned);
            let severity = match line.level {
                Level::Debug => tracing::Level::DEBUG,
                Level::Info => tracing::Level::INFO,
                Level::Warn => tracing::Level::WARN,
                Level::Error => tracing::Level::ERROR,
            };
            self.telemetry.publish(PluginLog { stream, plugin, severity, rid, line: line.message });
        }
    }

    /// How it stands.
    pub fn status(&self) -> PluginStatus {
        let description = self.component.description();
        PluginStatus {
            plugin: self.name.to_string(),
            component: description.name.clone(),
            version: description.version.clone(),
            digest: self.component.digest(),
            next: self.successor.as_ref().map(Successor::digest),
            state: match (&self.plugin, self.is_quarantined) {
                (_, true) => PluginState::Quarantined,
                (Some(_), false) if self.is_shadow() => PluginState::Shadow,
                (Some(_), false) => PluginState::Live,
                (None, false) => PluginState::Down,
            },
            why: self.absent.clone(),
            requests_open: self.requests_open,
            memory_bytes: self.plugin.as_ref().map_or(0, Plugin::memory_bytes),
            last_reload: self.last_reload.clone(),
        }
    }

    /// Publishes what is read now and then.
    pub fn publish_gauges(&self) {
        self.counters.requests_open.set(self.requests_open);
        self.counters.memory_bytes.set(self.plugin.as_ref().map_or(0, Plugin::memory_bytes));
    }
}
