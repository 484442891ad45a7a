//! One plugin's place in the chain: its component, its instance, and how a fresh one takes over.
//!
//! Owns the instance and what happened to it. Knows nothing of the wire or of the other plugins.

mod faults;
mod holding;
mod swap;

use crate::PluginSetup;
use crate::about::Abouts;
use crate::actions::label;
use crate::columns;
use crate::drains::{Drains, Heard};
use crate::ledger::{Accounted, Ledger};
use crate::quarantine::Faults;
use crate::resumed::{self, Resumed};
use crate::shadow;
use crate::standing::{LastReload, PluginState, Standing};
use crate::telemetry::Telemetry;
use afterbay_config::{self as config, Mode, OnFault, State};
use afterbay_events as events;
use afterbay_events::event::{PluginDown, PluginLoaded, PluginLog, PluginPromoted};
use afterbay_events::{Health, Name, PluginCounters, Severity};
use afterbay_runtime::signals::Snapshot;
use afterbay_runtime::{ColumnSet, Columns, Component, Fault, IdShape, Level, Opened, Plugin, Verdict};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use swap::Successor;
pub(crate) use swap::{Behind, Wanted};

/// How long a plugin that could not be started is left alone before the next try.
const START_RETRY: Duration = Duration::from_secs(1);
/// How often a batch is tried in all where `on_fault` is `hold`: all that waits behind it waits as long.
const HOLD_TRIES: u32 = 2;
/// What comes of a fault over a batch that is held.
const AGAIN: &str = "the batch is tried once more on a fresh instance";
/// What comes of a fault that concerns no batch.
const TAKES_OVER: &str = "a fresh instance takes over";

/// What a plugin made of a batch.
pub(crate) enum Answer {
    /// What is to be done with its rows.
    Verdicts(Vec<Verdict>),
    /// It goes on as it came.
    Unjudged,
    /// Its requests end, with this message.
    Ended(String),
}

/// What a plugin's place is made of.
pub(crate) struct Parts<'a> {
    pub(crate) setup: PluginSetup,
    pub(crate) telemetry: Telemetry,
    pub(crate) counters: Arc<PluginCounters>,
    pub(crate) health: Health,
    pub(crate) ledger: &'a Ledger,
    pub(crate) abouts: &'a Abouts,
}

/// A plugin's place in the chain.
pub(crate) struct Seat {
    name: Name,
    settings: String,
    component: Component,
    on_fault: OnFault,
    mode: Mode,
    state: State,
    /// Instances before it that go on with the requests they have.
    drains: Drains,
    /// One that is to take over when it has seen what has come before.
    successor: Option<Successor>,
    /// How many of those there were.
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
    /// It faulted as requests were closed, and no fresh one has taken over yet.
    died_closing: bool,
    /// Requests of an instance before it that has died, of which it is yet to be told.
    orphans: Vec<u64>,
    requests_open: u64,
    last_reload: Option<LastReload>,
    /// The instance is another since that was asked last: what the one before held is known to nobody.
    is_lost: bool,
    /// Requests of instances before it that are no more since then, likewise.
    lost: Vec<u64>,
    /// That it holds for longer than it may was told.
    told_cut: bool,
    telemetry: Telemetry,
    counters: Arc<PluginCounters>,
    health: Health,
}

impl Seat {
    /// Seats an instance that is configured; its settings are given to those that follow it.
    pub(crate) fn new(parts: Parts<'_>) -> Seat {
        let Parts { setup, telemetry, counters, health, ledger, abouts } = parts;
        let PluginSetup { config, settings, instance } = setup;
        let mut seat = Seat {
            name: config.name.as_str().into(),
            settings,
            component: instance.component().clone(),
            on_fault: config.on_fault,
            configured: config.mode.clone(),
            mode: config.mode,
            state: config.state,
            drains: Drains::default(),
            successor: None,
            successors: 0,
            plugin: None,
            absent: None,
            retry_at: None,
            faults: Faults::new(config.quarantine),
            is_quarantined: false,
            died_closing: false,
            orphans: Vec::new(),
            requests_open: 0,
            last_reload: None,
            is_lost: false,
            lost: Vec::new(),
            told_cut: false,
            telemetry,
            counters,
            health,
        };
        seat.take_over(instance, &Resumed::now(ledger, abouts), ledger, abouts);
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

    /// Whether what it says is not done.
    pub(crate) fn is_shadow(&self) -> bool {
        self.mode != Mode::Live
    }

    /// The live plugin that it is compared with.
    pub(crate) fn shadow_of(&self) -> Option<&str> {
        match &self.mode {
            Mode::Shadow { of } => of.as_ref().map(|of| of.as_str()),
            Mode::Live => None,
        }
    }

    /// From now on what it says is done. `of`: what becomes of the one before it, for people.
    pub(crate) fn promote(&mut self, of: String) {
        self.mode = Mode::Live;
        self.publish_absence();
        let (stream, plugin) = self.names();
        self.telemetry.publish(PluginPromoted { stream, plugin, of });
    }

    /// Compares what it said of some rows with what the live plugin did.
    pub(crate) fn compare<'r>(&self, said: &Answer, live: &[Verdict], rid: impl Fn(u32) -> Option<&'r str>) {
        // Where it faulted, that is counted as such.
        if let Answer::Verdicts(said) = said {
            shadow::compare(&self.name, said, live, &self.counters, &self.telemetry, rid);
        }
    }

    /// What it, and those before and after it, want to see.
    pub(crate) fn wants(&self) -> ColumnSet {
        let own = self.component.description().columns;
        if self.drains.is_empty() && self.successor.is_none() {
            return own;
        }
        let next = self.successor.as_ref().map_or(own, Successor::wants);
        self.drains.wants(columns::union(own, next))
    }

    pub(crate) fn writes(&self) -> IdShape {
        self.component.description().writes
    }

    /// Tells of the requests that begin with a batch, and asks what is to be done with its rows. Where it does not judge them,
    /// `on_fault` says what becomes of them.
    pub(crate) fn judge(
        &mut self,
        opened: &[Opened<'_>],
        columns: &Columns<'_>,
        accounted: &Accounted,
        ledger: &Ledger,
        abouts: &Abouts,
    ) -> Answer {
        let begun = Instant::now();
        let rows = columns.requests.len() as u64;
        let is_shown = self.plugin.is_some() && rows > 0;
        let verdicts = self.ask(opened, columns, accounted, ledger, abouts);
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
            self.counters.verdicts.add(label(&verdict.action), 1);
        }
        Answer::Verdicts(verdicts)
    }

    /// `None` where there is no instance, or where it faulted as often as the batch is tried: then a fresh one has taken over,
    /// which is told that it resumes after the batch.
    fn ask(
        &mut self,
        opened: &[Opened<'_>],
        columns: &Columns<'_>,
        accounted: &Accounted,
        ledger: &Ledger,
        abouts: &Abouts,
    ) -> Option<Vec<Verdict>> {
        let tries = if self.policy() == OnFault::Hold { HOLD_TRIES } else { 1 };
        for tried in 1..=tries {
            let mut died = Vec::new();
            let Some(plugin) = self.plugin.as_mut() else {
                self.miss(opened, columns, abouts);
                return None;
            };
            let told = match opened.is_empty() {
                true => Ok(()),
                false => resumed::open(plugin, opened, abouts),
            };
            let answer = told.and_then(|()| match self.drains.is_empty() {
                true => plugin.process(columns),
                false => {
                    let Heard { verdicts, died: dead } = self.drains.judge(columns, plugin);
                    died.extend(dead);
                    verdicts
                }
            });
            if plugin.has_log() || !self.drains.is_empty() {
                self.drain_log(ledger);
            }
            let fault = match answer {
                Ok(mut verdicts) => {
                    if !columns.requests.is_empty() {
                        self.faults.judged();
                    }
                    self.requests_open += opened.len() as u64;
                    let is_judged = died.is_empty() || self.policy() != OnFault::Terminate;
                    if !died.is_empty() {
                        verdicts.extend(self.inherit(died, columns, accounted, ledger, abouts));
                        verdicts.sort_by_key(|verdict| verdict.row);
                    }
                    self.miss(opened, columns, abouts);
                    return is_judged.then_some(verdicts);
                }
                Err(fault) => fault,
            };
            let again = tried < tries;
            let then = if again { AGAIN } else { self.then() };
            // The fresh instance has their requests, too.
            died.iter().for_each(|(fault, _)| self.tell_fault(fault, then));
            self.fault(&fault, then);
            if again {
                self.counters.held_batches.add(1);
                let before =
                    Resumed::before(accounted, ledger, abouts).without(|request| self.drains.has(request));
                self.restart(&before, ledger, abouts);
            } else {
                self.restart(&self.alive(ledger, abouts), ledger, abouts);
                self.miss(opened, columns, abouts);
            }
        }
        None
    }

    /// The attributes of an open request are others now. What an instance that drains dies of, it dies of at the next batch.
    pub(crate) fn changed(&mut self, request: u64, ledger: &Ledger, abouts: &Abouts) {
        if let Some(successor) = &mut self.successor {
            successor.changed(request, abouts.attributes(request));
        }
        if let Some(plugin) = self.drains.of(request).filter(|plugin| plugin.component().grants().request) {
            plugin.set_attributes(request, abouts.attributes(request));
            let _told = plugin.changed(&[request]);
            self.drain_log(ledger);
        } else if self.component.grants().request {
            let _told = self.tell(ledger, abouts, |plugin| {
                plugin.set_attributes(request, abouts.attributes(request));
                plugin.changed(&[request])
            });
        }
    }

    /// How the stream stands; `is_news`: otherwise than it was told last.
    pub(crate) fn stands(&mut self, now: &Snapshot, is_news: bool, ledger: &Ledger, abouts: &Abouts) {
        let _told = self.tell(ledger, abouts, |plugin| {
            plugin.set_signals(now.clone());
            if is_news { plugin.pressure() } else { Ok(()) }
        });
    }

    /// A call between two batches. Where it faults, a fresh instance takes over. False where there is none, or it faulted.
    fn tell(
        &mut self,
        ledger: &Ledger,
        abouts: &Abouts,
        call: impl FnOnce(&mut Plugin) -> Result<(), Fault>,
    ) -> bool {
        let Some(plugin) = self.plugin.as_mut() else { return false };
        let told = call(plugin);
        if plugin.has_log() {
            self.drain_log(ledger);
        }
        if let Err(fault) = &told {
            self.fault(fault, TAKES_OVER);
            self.restart(&self.alive(ledger, abouts), ledger, abouts);
        }
        told.is_ok()
    }

    /// Whether it is to be told how the stream stands.
    pub(crate) fn wants_signals(&self) -> bool {
        self.component.grants().signals
    }

    /// What is done about its faults: of a shadow, nothing that anybody waits for or sees.
    fn policy(&self) -> OnFault {
        if self.is_shadow() { OnFault::Bypass } else { self.on_fault }
    }

    /// Whether nothing is to pass of what can never be judged: to try it once more would not help.
    pub(crate) fn is_guard(&self) -> bool {
        matches!(self.policy(), OnFault::Terminate | OnFault::Hold)
    }

    /// Some rows cannot be read, which counts as a fault. It says nothing about the plugin, so that it does not bring it nearer to
    /// quarantine: else whoever can send such rows could turn it off. True where they must not pass.
    pub(crate) fn cannot_see(&mut self, rows: u64) -> bool {
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
            OnFault::Bypass | OnFault::Hold => "the batch goes on unchanged",
            OnFault::Terminate => "the batch's requests are ended",
        }
    }

    /// Tells of requests that have no more rows. A fresh instance after a fault here must not be told of them, so it waits
    /// for [`Seat::revive`].
    pub(crate) fn close(&mut self, requests: &[u64], ledger: &Ledger) {
        if let Some(successor) = &mut self.successor {
            successor.closed(requests);
        }
        let (requests, dead) = match self.drains.is_empty() {
            true => (Cow::Borrowed(requests), Vec::new()),
            false => {
                let (others, dead) = self.drains.close(requests);
                (Cow::Owned(others), dead)
            }
        };
        for (fault, _) in &dead {
            // What it still had, a fresh instance is told of with the next.
            self.tell_fault(fault, TAKES_OVER);
        }
        self.orphans.extend(dead.into_iter().flat_map(|(_, requests)| requests));
        let requests = &*requests;
        let Some(plugin) = &mut self.plugin else { return };
        self.requests_open = self.requests_open.saturating_sub(requests.len() as u64);
        requests.iter().for_each(|request| plugin.set_attributes(*request, None));
        let closed = plugin.close(requests);
        if plugin.has_log() {
            self.drain_log(ledger);
        }
        if let Err(fault) = closed {
            // Its requests have ended: there is nothing to hold or to end.
            self.fault(&fault, TAKES_OVER);
            self.died_closing = !self.is_quarantined;
        }
    }

    /// Between two batches: a fresh instance in place of one that faulted as requests were closed.
    pub(crate) fn revive(&mut self, ledger: &Ledger, abouts: &Abouts) {
        let orphans = std::mem::take(&mut self.orphans);
        if std::mem::take(&mut self.died_closing) {
            self.restart(&self.alive(ledger, abouts), ledger, abouts);
        } else if !orphans.is_empty() {
            let resumed = Resumed::now(ledger, abouts);
            self.adopt(&orphans.into_iter().collect(), resumed, ledger, abouts);
        }
    }

    /// After a panic: a fresh instance takes over, of everything.
    pub(crate) fn after_panic(&mut self, ledger: &Ledger, abouts: &Abouts) {
        self.drains.end();
        (self.successor, self.orphans) = (None, Vec::new());
        self.restart(&self.alive(ledger, abouts), ledger, abouts);
    }

    /// What a fresh instance is told of.
    fn alive<'l>(&self, ledger: &'l Ledger, abouts: &'l Abouts) -> Resumed<'l> {
        Resumed::now(ledger, abouts).without(|request| self.drains.has(request))
    }

    /// A fresh instance takes over, unless it is quarantined.
    fn restart(&mut self, resumed: &Resumed<'_>, ledger: &Ledger, abouts: &Abouts) {
        (self.plugin, self.is_lost) = (None, true);
        if self.is_quarantined {
            return;
        }
        match self.component.instantiate(&self.settings) {
            Ok(plugin) => self.take_over(plugin, resumed, ledger, abouts),
            Err(error) => {
                let (stream, plugin) = self.names();
                self.telemetry.publish(PluginDown {
                    stream,
                    plugin,
                    why: error.to_string(),
                    then: self.then(),
                });
                self.absent(error.to_string());
            }
        }
    }

    /// There is no instance; a start is tried again soon.
    fn absent(&mut self, why: String) {
        self.plugin = None;
        self.retry_at = Some(Instant::now() + START_RETRY);
        self.absent = Some(why);
        self.publish_absence();
    }

    /// Sets the health condition of a live plugin that is out of the chain. Where its requests are aborted, the stream
    /// cannot do its work; else the stream is degraded. A shadow has no condition: its stream does not miss it.
    fn publish_absence(&self) {
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
        self.health.set(&self.key(), severity, text, SystemTime::now());
    }

    fn key(&self) -> String {
        format!("plugin:{}:{}", self.telemetry.stream, self.name)
    }

    fn reload_key(&self) -> String {
        format!("plugin-reload:{}:{}", self.telemetry.stream, self.name)
    }

    /// What becomes of its faults, and of what it says, from now on. One that was promoted stays so until its mode is another.
    pub(crate) fn treat(&mut self, config: &config::Plugin) {
        if self.configured != config.mode {
            (self.mode, self.configured) = (config.mode.clone(), config.mode.clone());
        }
        (self.on_fault, self.state) = (config.on_fault, config.state);
        if self.faults.policy() != config.quarantine {
            self.faults = Faults::new(config.quarantine);
        }
        self.publish_absence();
    }

    /// It is out of the chain for good.
    pub(crate) fn leave(self) {
        self.counters.quarantined.set(0);
        self.health.clear(&self.key());
        self.health.clear(&self.reload_key());
    }

    /// When to call [`Seat::tick`].
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Tries again to start a plugin that could not be started. Between two batches only.
    pub(crate) fn tick(&mut self, now: Instant, ledger: &Ledger, abouts: &Abouts) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.restart(&self.alive(ledger, abouts), ledger, abouts);
        }
    }

    /// Seats an instance and tells it of the requests that are alive.
    fn take_over(&mut self, mut plugin: Plugin, resumed: &Resumed<'_>, ledger: &Ledger, abouts: &Abouts) {
        self.faults.started();
        let opened = resumed::open(&mut plugin, resumed.requests(), abouts);
        self.requests_open = resumed.requests().len() as u64;
        (self.plugin, self.is_lost) = (Some(plugin), true);
        self.retry_at = None;
        self.drain_log(ledger);
        match opened {
            Ok(()) => {
                if self.absent.take().is_some() {
                    self.health.clear(&self.key());
                }
            }
            Err(fault) => {
                self.fault(&fault, "it is started again soon");
                // Not at once: it would fault again, for ever.
                if !self.is_quarantined {
                    self.absent(fault.to_string());
                }
            }
        }
    }

    fn drain_log(&mut self, ledger: &Ledger) {
        let mut lines = self.drains.drain_log();
        lines.extend(self.plugin.as_mut().map(Plugin::drain_log).unwrap_or_default());
        for line in lines {
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

    /// How it stands.
    pub(crate) fn standing(&self) -> Standing {
        let description = self.component.description();
        Standing {
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
    pub(crate) fn publish_gauges(&self) {
        self.counters.requests_open.set(self.requests_open);
        self.counters.memory_bytes.set(self.plugin.as_ref().map_or(0, Plugin::memory_bytes));
    }
}
