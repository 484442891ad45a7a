//! One plugin's slot in the chain: its component, its instance, and the start of a fresh instance after a fault.
//!
//! This module owns the instance and its state. It knows neither the wire format nor the other plugins.

mod calls;
mod faults;
mod hand_over;
mod holds;
mod mark;
mod reload;
mod state;
mod telemetry;

use crate::catch_up::MissedCall;
use crate::context::ChainContext;
use crate::history::{DIFFERENCES_MAX, Difference, Last};
use crate::open_requests;
use crate::quarantine::Faults;
use crate::setup::{ChainTelemetry, PluginSetup};
use crate::shadow;
use crate::status::{PluginState, PluginStatus};
use afterbay_batch::{Accounted, Location, Timestamp};
use afterbay_config::{self as config, Mode, OnFault};
use afterbay_events as events;
use afterbay_events::event::{PluginDown, PluginLoaded, PluginPromoted, ShadowDiffers};
use afterbay_events::{Name, Severity};
use afterbay_runtime::signals::Snapshot;
use afterbay_runtime::{ColumnSet, Columns, Component, Fault, IdShape, Opened, Plugin, Verdict};
use calls::SlotCalls;
use mark::ReadinessMark;
use reload::ReloadState;
use state::SlotState;
use std::time::{Duration, Instant};
use telemetry::PluginTelemetry;

pub use calls::RequestEnd;

/// The time between a failed start and the next start.
const START_RETRY: Duration = Duration::from_secs(1);
/// The consequence of a fault between two batches.
const INSTANCE_IS_REPLACED: &str = "a fresh instance starts";

/// A plugin's answer to a batch.
pub enum Answer {
    /// The verdicts, sorted by row.
    Verdicts(Vec<Verdict>),
    /// The plugin did not judge the batch, and the batch passes unchanged.
    Bypassed,
    /// The plugin did not judge the batch, and the batch's requests are aborted with this message.
    Terminated(String),
}

/// The configuration of a slot that changes without a new instance.
struct SlotPolicy {
    on_fault: OnFault,
    /// The mode now. An operator may have promoted a configured shadow.
    mode: Mode,
    configured_mode: Mode,
}

/// A plugin's slot in the chain.
pub struct PluginSlot {
    component: Component,
    /// The settings of the instances, as JSON.
    settings: String,
    policy: SlotPolicy,
    state: SlotState,
    faults: Faults,
    reload: ReloadState,
    /// The last rows on which this shadow and its live plugin differed.
    differences: Last<Difference, DIFFERENCES_MAX>,
    mark: ReadinessMark,
    calls: SlotCalls,
    /// The earliest time of the next call about timers, in milliseconds since 1970.
    timers_after_ms: u64,
    /// Set from a change of the instance until the holds of the previous instance are ended.
    has_lost_holds: bool,
    /// Set once we have warned that this plugin asked to hold a row for longer than limits.hold.
    warned_hold_capped: bool,
    telemetry: PluginTelemetry,
}

impl PluginSlot {
    /// Starts the plugin: the instance is told of the live requests.
    pub fn new(setup: PluginSetup, telemetry: &ChainTelemetry, context: ChainContext<'_>) -> PluginSlot {
        let PluginSetup { config, settings, instance, awaits } = setup;
        let mut slot = PluginSlot::idle(config, settings, instance.component(), telemetry);
        if let Some(why) = awaits {
            slot.await_component(why, context.now);
            return slot;
        }
        slot.start(instance, &open_requests::live(context.ledger), context);
        slot.report_loaded();
        slot
    }

    /// A slot whose instance has not started.
    fn idle(
        config: config::Plugin,
        settings: String,
        component: &Component,
        telemetry: &ChainTelemetry,
    ) -> PluginSlot {
        PluginSlot {
            component: component.clone(),
            settings,
            policy: SlotPolicy {
                on_fault: config.on_fault,
                mode: config.mode.clone(),
                configured_mode: config.mode,
            },
            state: SlotState::Restarting,
            faults: Faults::new(config.quarantine),
            reload: ReloadState::default(),
            differences: Last::default(),
            mark: ReadinessMark::default(),
            calls: SlotCalls::default(),
            timers_after_ms: 0,
            has_lost_holds: false,
            warned_hold_capped: false,
            telemetry: PluginTelemetry::new(config.name, telemetry),
        }
    }

    /// The plugin's name, and the version and SHA-256 of its component. `None` for a shadow, and without a component.
    pub fn judging_component(&self) -> Option<(&str, &str, &[u8; 32])> {
        let judges = !self.is_shadow() && !self.state.awaits_component();
        judges
            .then(|| (self.name().as_str(), &*self.component.description().version, self.component.sha256()))
    }

    fn report_loaded(&self) {
        let (version, digest) = self.version();
        self.telemetry.publish(|stream, plugin| PluginLoaded { stream, plugin, version, digest });
    }

    fn version(&self) -> (String, String) {
        (self.component.description().version.clone(), self.component.digest().to_string())
    }

    /// The plugin's name in the configuration.
    pub fn name(&self) -> &Name {
        &self.telemetry.plugin
    }

    /// Whether the plugin's verdicts are not applied.
    pub fn is_shadow(&self) -> bool {
        self.policy.mode != Mode::Live
    }

    /// The live plugin that this shadow is compared with.
    pub fn shadow_of(&self) -> Option<&Name> {
        match &self.policy.mode {
            Mode::Shadow { of } => of.as_ref(),
            Mode::Live => None,
        }
    }

    /// Makes a shadow live: its verdicts are applied from now on. `of` says for the operator which plugin it replaces.
    pub fn promote(&mut self, of: String, now: Timestamp) {
        self.policy.mode = Mode::Live;
        self.publish_condition(now);
        self.mark.publish(false, &self.telemetry, now);
        self.telemetry.publish(|stream, plugin| PluginPromoted { stream, plugin, of });
    }

    /// Compares the answer of this shadow with the verdicts of the live plugin on the same batch. `rid` names the request of a
    /// row.
    pub fn compare<'r>(
        &mut self,
        answer: &Answer,
        live: &[Verdict],
        accounted: &Accounted,
        rid: impl Fn(u32) -> Option<&'r str>,
    ) {
        let Answer::Verdicts(verdicts) = answer else { return };
        let PluginTelemetry { plugin, events, counters, .. } = &self.telemetry;
        shadow::compare(plugin, verdicts, live, counters, &rid, |row, live, shadow| {
            let (live, shadow) = (shadow::in_words(live), shadow::in_words(shadow));
            let rid = rid(row).unwrap_or_default().to_owned();
            events.publish(ShadowDiffers {
                stream: events.stream.clone(),
                plugin: plugin.clone(),
                rid: rid.clone(),
                live: live.clone(),
                shadow: shadow.clone(),
            });
            let persisted = accounted.persisted();
            let (at, frame) = (persisted.at().system_time(), persisted.frame().0);
            self.differences.push(Difference { at, rid, frame, live, shadow }.bounded());
        });
    }

    /// The columns that the instance and its successor need.
    pub fn wants(&self) -> ColumnSet {
        let own = self.component.description().columns;
        self.reload.successor.as_ref().map_or(own, |successor| own | successor.wants())
    }

    /// The meaning of the ids in the plugin's verdicts.
    pub fn writes(&self) -> IdShape {
        self.component.description().writes
    }

    /// Calls the plugin with a batch: first with the requests that begin, then with the rows. If the plugin does not judge
    /// the rows, the answer follows from `on_fault`.
    pub fn run(
        &mut self,
        opened: &[Opened<'_>],
        columns: &Columns<'_>,
        accounted: &Accounted,
        context: ChainContext<'_>,
    ) -> Answer {
        let started = Instant::now();
        let rows = columns.requests.len() as u64;
        let is_called = self.state.running().is_some() && rows > 0;
        if let Some(store) = &self.component.grants().store {
            let persisted = accounted.persisted();
            store.begin_batch(persisted.frame().0, persisted.location() == Location::ByNumber);
        }
        let verdicts = self.judge(opened, columns, context);
        let counters = &self.telemetry.counters;
        if is_called {
            counters.rows.add(rows);
            counters.batch_seconds.observe(started.elapsed());
        }
        let Some(verdicts) = verdicts else {
            if self.on_fault() != OnFault::Terminate {
                counters.bypassed_batches.add(1);
                return Answer::Bypassed;
            }
            counters.terminated_rows.add(rows);
            let is_quarantined = self.state.is_quarantined();
            let why = if is_quarantined { "is quarantined" } else { "did not judge this row" };
            return Answer::Terminated(format!("afterbay: plugin {:?} {why}", self.name()));
        };
        for verdict in &verdicts {
            counters.verdicts.add(verdict.action.kind(), 1);
        }
        Answer::Verdicts(verdicts)
    }

    /// The instance's verdicts. `None` if there is no instance, or if it faulted. The instance that replaces it resumes after the
    /// batch.
    fn judge(
        &mut self,
        opened: &[Opened<'_>],
        columns: &Columns<'_>,
        context: ChainContext<'_>,
    ) -> Option<Vec<Verdict>> {
        let is_shadow = self.is_shadow();
        let mut judged = None;
        if let SlotState::Running { plugin, requests_open } = &mut self.state {
            let opens = match opened.is_empty() {
                true => Ok(()),
                false => open_requests::open(plugin, opened, context.ledger),
            };
            let answer = opens.and_then(|()| plugin.process(columns));
            self.telemetry.publish_log(plugin, context.ledger);
            self.mark.read(plugin, is_shadow, &self.telemetry, context.now);
            match answer {
                Ok(verdicts) => {
                    *requests_open += opened.len() as u64;
                    if !columns.requests.is_empty() {
                        self.faults.batch_judged();
                    }
                    judged = Some(verdicts);
                }
                Err(fault) => {
                    self.fault(&fault, self.unjudged_consequence(), context.now);
                    self.restart(context);
                }
            }
        }
        self.record_missed_batch(opened, columns, context);
        judged
    }

    /// Tells the instance of a request that begins without a row.
    pub fn open(&mut self, opened: &Opened<'_>, context: ChainContext<'_>) {
        // There are no rows, so there are no verdicts.
        let _none = self.judge(std::slice::from_ref(opened), &Columns::default(), context);
    }

    /// Lets the changes of the store since the last call outlive the process.
    pub fn end_batch(&self) {
        if let Some(store) = &self.component.grants().store {
            store.end_batch();
        }
    }

    /// Reports to the instance that the attributes of an open request have changed.
    pub fn attributes_changed(&mut self, request: u64, context: ChainContext<'_>) {
        if let Some(successor) = &mut self.reload.successor {
            successor.record(MissedCall::Changed(request, context.ledger.attributes(request)));
        }
        if self.component.grants().request {
            self.call(context, |plugin| {
                plugin.set_attributes(request, context.ledger.attributes(request));
                plugin.changed(&[request])
            });
        }
    }

    /// Gives the instance a new snapshot of the signals. `has_changed`: the instance is called, too.
    pub fn set_signals(&mut self, snapshot: &Snapshot, has_changed: bool, context: ChainContext<'_>) {
        self.call(context, |plugin| {
            plugin.set_signals(snapshot.clone());
            if has_changed { plugin.pressure() } else { Ok(()) }
        });
    }

    /// Calls the instance between two batches. After a fault, a fresh instance starts. `None` if there is no instance, or
    /// if the call faulted.
    fn call<T>(
        &mut self,
        context: ChainContext<'_>,
        call: impl FnOnce(&mut Plugin) -> Result<T, Fault>,
    ) -> Option<T> {
        let is_shadow = self.is_shadow();
        let SlotState::Running { plugin, .. } = &mut self.state else { return None };
        let answer = call(plugin);
        self.telemetry.publish_log(plugin, context.ledger);
        self.mark.read(plugin, is_shadow, &self.telemetry, context.now);
        if let Err(fault) = &answer {
            self.fault(fault, INSTANCE_IS_REPLACED, context.now);
            self.restart(context);
        }
        answer.ok()
    }

    /// Whether the plugin reads the signals.
    pub fn wants_signals(&self) -> bool {
        self.component.grants().signals
    }

    /// The treatment of faults: a shadow's faults never affect a row.
    fn on_fault(&self) -> OnFault {
        if self.is_shadow() { OnFault::Bypass } else { self.policy.on_fault }
    }

    /// Whether no row may pass that the plugin has not judged.
    pub fn is_guard(&self) -> bool {
        self.on_fault() == OnFault::Terminate
    }

    /// Counts rows that no plugin can be shown as a fault, but not towards the quarantine: otherwise a client that sends
    /// such rows could turn the plugin off. Returns whether the rows must not pass.
    pub fn refuses_unreadable(&mut self, rows: u64) -> bool {
        let counters = &self.telemetry.counters;
        counters.faults.add(events::FaultKind::Unread, 1);
        match self.is_guard() {
            true => counters.terminated_rows.add(rows),
            false => counters.bypassed_batches.add(1),
        }
        self.is_guard()
    }

    /// The consequence for a batch that the plugin did not judge.
    fn unjudged_consequence(&self) -> &'static str {
        match self.on_fault() {
            OnFault::Bypass => "the batch passes unchanged",
            OnFault::Terminate => "the batch's requests are aborted",
        }
    }

    /// Reports requests that have no more rows to the instance. After a fault in this call the slot stays without an
    /// instance until [`PluginSlot::restart_after_close`], because a fresh instance must not be told of these requests.
    pub fn close(&mut self, requests: &[u64], context: ChainContext<'_>) {
        self.calls.close(requests);
        if let Some(successor) = &mut self.reload.successor {
            successor.record(MissedCall::Close(requests.to_vec()));
        }
        let is_shadow = self.is_shadow();
        let SlotState::Running { plugin, requests_open } = &mut self.state else { return };
        *requests_open = requests_open.saturating_sub(requests.len() as u64);
        requests.iter().for_each(|request| plugin.forget(*request));
        let closed = plugin.close(requests);
        self.telemetry.publish_log(plugin, context.ledger);
        self.mark.read(plugin, is_shadow, &self.telemetry, context.now);
        if let Err(fault) = closed {
            // The requests have ended: no request can be aborted.
            self.fault(&fault, INSTANCE_IS_REPLACED, context.now);
        }
    }

    /// Starts a fresh instance if the last one faulted in [`PluginSlot::close`].
    pub fn restart_after_close(&mut self, context: ChainContext<'_>) {
        if matches!(self.state, SlotState::Restarting) {
            self.restart(context);
        }
    }

    /// Starts a fresh instance after a panic of the stream's thread.
    pub fn restart_after_panic(&mut self, context: ChainContext<'_>) {
        self.reload.successor = None;
        self.retain_ends(context.ledger);
        self.restart(context);
    }

    /// Starts a fresh instance with the live requests, unless the plugin is in quarantine or has no component yet.
    fn restart(&mut self, context: ChainContext<'_>) {
        if self.state.is_quarantined() || self.state.awaits_component() {
            return;
        }
        match self.component.instantiate(&self.settings) {
            Ok(plugin) => self.start(plugin, &open_requests::live(context.ledger), context),
            Err(error) => {
                let (why, then) = (error.to_string(), self.unjudged_consequence());
                self.telemetry.publish(|stream, plugin| PluginDown { stream, plugin, why, then });
                self.retry_later(error.to_string(), context.now);
            }
        }
    }

    /// Tells an instance of these live requests. Then the instance takes over.
    fn start(&mut self, mut plugin: Plugin, requests: &[Opened<'_>], context: ChainContext<'_>) {
        self.faults.instance_started();
        plugin.set_effects(true);
        let opened = open_requests::open(&mut plugin, requests, context.ledger);
        self.telemetry.publish_log(&mut plugin, context.ledger);
        match opened {
            Ok(()) => {
                let requests_open = requests.len() as u64;
                self.enter(SlotState::Running { plugin, requests_open }, context.now);
            }
            Err(fault) => {
                self.fault(&fault, "the next start is in 1 s", context.now);
                // An immediate start would fault again without end.
                if !self.state.is_quarantined() {
                    self.retry_later(fault.to_string(), context.now);
                }
            }
        }
    }

    fn retry_later(&mut self, why: String, now: Timestamp) {
        self.enter(SlotState::Down { why, retry_at: Some(now.instant + START_RETRY) }, now);
    }

    /// Waits for a reload, which brings the plugin's first component.
    fn await_component(&mut self, why: String, now: Timestamp) {
        let then = self.unjudged_consequence();
        self.telemetry.publish(|stream, plugin| PluginDown { stream, plugin, why: why.clone(), then });
        self.enter(SlotState::Down { why, retry_at: None }, now);
    }

    /// Changes the state. The previous instance, its mark, the rows that it held and the answers to its calls are lost.
    fn enter(&mut self, mut state: SlotState, now: Timestamp) {
        self.mark.end(&self.telemetry, now);
        if let SlotState::Running { plugin, .. } = &mut state {
            self.mark.read(plugin, self.is_shadow(), &self.telemetry, now);
        }
        self.state = state;
        self.calls.forget_instance();
        self.has_lost_holds = true;
        self.publish_condition(now);
    }

    /// Sets or clears the health condition. A live plugin without an instance degrades the stream. The stream is not ready
    /// if its requests are aborted for that. A shadow has no condition.
    fn publish_condition(&self, now: Timestamp) {
        let is_terminate = self.on_fault() == OnFault::Terminate;
        let text = match &self.state {
            SlotState::Restarting => return,
            SlotState::Quarantined { why } if !self.is_shadow() => why.clone(),
            SlotState::Down { why, .. } if !self.is_shadow() => match is_terminate {
                true => format!("down, requests are aborted: {why}"),
                false => format!("down, batches pass unchanged: {why}"),
            },
            _ => return self.telemetry.clear_condition(),
        };
        let severity = if is_terminate { Severity::NotReady } else { Severity::Degraded };
        self.telemetry.set_condition(severity, text, now.system_time());
    }

    /// Applies a new configuration without a new instance. A promoted shadow stays live unless its configured mode changes.
    pub fn configure(&mut self, config: &config::Plugin, now: Timestamp) {
        if self.policy.configured_mode != config.mode {
            self.policy.mode = config.mode.clone();
            self.policy.configured_mode = config.mode.clone();
        }
        self.policy.on_fault = config.on_fault;
        if self.faults.policy() != config.quarantine {
            self.faults = Faults::new(config.quarantine);
        }
        self.publish_condition(now);
        self.mark.publish(self.is_shadow(), &self.telemetry, now);
    }

    /// Removes the plugin from the chain, with its gauges and conditions.
    pub fn remove(mut self, now: Timestamp) {
        self.mark.end(&self.telemetry, now);
        self.telemetry.counters.quarantined.set(0);
        self.telemetry.clear_condition();
        self.telemetry.clear_reload_condition();
    }

    /// The time at which [`PluginSlot::tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.retry_at().into_iter().chain(self.mark.deadline()).min()
    }

    fn retry_at(&self) -> Option<Instant> {
        match self.state {
            SlotState::Down { retry_at, .. } => retry_at,
            _ => None,
        }
    }

    /// Starts a plugin again that could not be started, and ends a mark whose time is over. Called between two batches.
    pub fn tick(&mut self, context: ChainContext<'_>) {
        self.mark.tick(&self.telemetry, context.now);
        if self.retry_at().is_some_and(|at| at <= context.now.instant) {
            self.restart(context);
        }
    }

    /// The status for the operator.
    pub fn status(&self) -> PluginStatus {
        let description = self.component.description();
        let (state, why) = match &self.state {
            SlotState::Running { .. } if self.is_shadow() => (PluginState::Shadow, None),
            SlotState::Running { .. } => (PluginState::Live, None),
            SlotState::Restarting => (PluginState::Down, None),
            SlotState::Down { why, .. } => (PluginState::Down, Some(why.clone())),
            SlotState::Quarantined { why } => (PluginState::Quarantined, Some(why.clone())),
        };
        PluginStatus {
            plugin: self.name().to_string(),
            component: description.name.clone(),
            version: description.version.clone(),
            digest: self.component.digest(),
            next: self.reload.next_digest(),
            state,
            why,
            not_ready: self.mark.reason().map(str::to_owned),
            requests_open: self.state.running().map_or(0, |(_, requests_open)| requests_open),
            memory_bytes: self.state.running().map_or(0, |(plugin, _)| plugin.memory_bytes()),
            reloads: self.reload.history.list(),
            differences: self.differences.list(),
        }
    }

    /// Publishes the gauges. `held` is the number of rows that the plugin holds, and of their tokens.
    pub fn publish_gauges(&self, held: (u64, u64)) {
        let counters = &self.telemetry.counters;
        counters.held_rows.set(held.0);
        counters.held_tokens.set(held.1);
    }
}
