//! Reload: a new instance of another component, or with other settings, replaces a plugin's instance and keeps the state of
//! the live requests.
//!
//! If both versions have `export-state` and `import-state`, the new instance imports the state that the old instance
//! exports. Otherwise, or if the import fails, the rows of the live requests are replayed to the new instance. If it faults on
//! them, it is refused. Only if the journal cannot show the rows, or if the plugin has no instance, does the new instance start
//! as after a fault. Invariant: the chain calls one instance of a plugin; the old instance runs until the new one is ready.

use super::PluginSlot;
use super::state::SlotState;
use crate::catch_up::{CatchUp, CatchUpResult, CatchUpSource, ExportedState, MissedCall, MissedCalls};
use crate::context::ChainContext;
use crate::history::{Last, RELOADS_MAX, Reload};
use crate::open_requests::{self, OpenedRequest};
use crate::replay::CatchUpError;
use crate::setup::PluginSetup;
use afterbay_batch::Timestamp;
use afterbay_events::ReloadResult;
use afterbay_events::event::{
    PluginRefused, PluginReloadFailed, PluginReloaded, PluginReplayed, PluginStateLost,
};
use afterbay_runtime::{
    CallSet, ColumnSet, Columns, Digest, LoadError, Opened, OwnedColumns, Plugin, ReloadError,
};
use std::collections::HashSet;

/// Rounds in which a successor is shown the calls that it missed during the round before, off the stream's thread. After
/// the last round the remaining calls are shown on the stream's thread.
const ROUNDS_MAX: u32 = 16;

/// The reloads of a slot.
#[derive(Default)]
pub(super) struct ReloadState {
    /// The instance that takes over once it knows the live requests.
    pub(super) successor: Option<Successor>,
    /// The number of successors so far, which is the number of the latest.
    successors: u64,
    pub(super) history: Last<Reload, RELOADS_MAX>,
}

impl ReloadState {
    pub(super) fn next_digest(&self) -> Option<Digest> {
        self.successor.as_ref().map(|successor| successor.digest)
    }
}

/// The way in which a successor learns of the live requests.
enum StateSource {
    /// The successor imports the exported state, of this many bytes.
    Import(u64),
    /// The successor is shown the rows again. The reason is given if an import failed before.
    Replay(Option<String>),
}

/// An instance that does not know the live requests yet, and the calls that it has missed.
pub(super) struct Successor {
    digest: Digest,
    settings: String,
    source: StateSource,
    wants: ColumnSet,
    /// The next round, until the runner takes it.
    catch_up: Option<CatchUp>,
    /// `None` once the calls have exceeded their bound.
    missed: Option<MissedCalls>,
    rounds: u32,
}

impl Successor {
    pub(super) fn wants(&self) -> ColumnSet {
        self.wants
    }

    /// Records a call to the old instance.
    pub(super) fn record(&mut self, call: MissedCall) {
        self.missed.take_if(|missed| !missed.add(call));
    }
}

impl PluginSlot {
    /// Replaces the instance by one of a changed component, or reports why that instance could not be made.
    pub fn reload(&mut self, reloaded: Result<Plugin, ReloadError>, context: ChainContext<'_>) {
        match reloaded {
            Ok(instance) => self.replace_instance(instance, self.settings.clone(), context),
            // The missing file of a plugin that is not built yet is reported already.
            Err(ReloadError::Load(LoadError::Read { error, .. }))
                if self.state.awaits_component() && error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                if let ReloadError::Load(LoadError::NotAllowed { digest, .. }) = &error {
                    let digest = digest.to_string();
                    self.telemetry.publish(|stream, plugin| PluginRefused { stream, plugin, digest });
                }
                self.report_reload_failed(error.digest(), None, error.to_string(), context.now);
            }
        }
    }

    /// Replaces the instance by one with another configuration.
    pub fn replace(&mut self, setup: PluginSetup, context: ChainContext<'_>) {
        let PluginSetup { config, settings, instance, awaits: _ } = setup;
        self.configure(&config, context.now);
        self.replace_instance(instance, settings, context);
    }

    /// Makes the instance the successor, or starts it at once if no state can be passed on.
    fn replace_instance(&mut self, mut instance: Plugin, settings: String, context: ChainContext<'_>) {
        // A later successor replaces one that is not ready yet.
        self.reload.successor = None;
        let state = self.export_state(&instance, context);
        instance.continue_calls_after(self.calls.numbers_of_successor());
        if state.is_some() || self.can_replay(context) {
            self.prepare_successor(instance, settings, state, None, context);
        } else {
            self.start_replacement(instance, settings, context);
        }
    }

    /// Exports the instance's state if both versions support that. After a fault, a fresh instance of the old version starts.
    fn export_state(&mut self, next: &Plugin, context: ChainContext<'_>) -> Option<ExportedState> {
        if !next.component().description().wants.contains(CallSet::STATE) {
            return None;
        }
        let state = self.call(context, Plugin::export_state)??;
        Some(ExportedState { version: self.component.description().version.clone(), state })
    }

    /// Whether there are requests to replay, and an instance that judges their rows during the replay.
    fn can_replay(&self, context: ChainContext<'_>) -> bool {
        context.ledger.live() > 0 && self.state.running().is_some()
    }

    /// Starts the new instance at once. The live requests are reported to it as after a fault.
    fn start_replacement(&mut self, instance: Plugin, settings: String, context: ChainContext<'_>) {
        self.retire_instance(&instance, settings, context.now);
        self.start(instance, &open_requests::live(context.ledger), context);
        self.report_reloaded(context.ledger.live() as u64, 0);
    }

    /// Drops the old instance and takes over the new instance's component and settings.
    fn retire_instance(&mut self, next: &Plugin, settings: String, now: Timestamp) {
        let before = std::mem::replace(&mut self.component, next.component().clone());
        self.settings = settings;
        self.leave_quarantine("reload");
        if let SlotState::Running { plugin, .. } = std::mem::replace(&mut self.state, SlotState::Restarting) {
            plugin.retire();
        }
        self.faults.instance_started();
        let description = self.component.description();
        let reload = Reload {
            at: now.system_time(),
            from: before.digest(),
            to: Some(self.component.digest()),
            version: Some(description.version.clone()),
            refused: None,
        };
        self.reload.history.push(reload.bounded());
        self.telemetry.clear_reload_condition();
    }

    /// Makes an instance the successor: it imports this state, or is shown the rows of the live requests again.
    fn prepare_successor(
        &mut self,
        instance: Plugin,
        settings: String,
        state: Option<ExportedState>,
        import_error: Option<String>,
        context: ChainContext<'_>,
    ) {
        let live = open_requests::live(context.ledger);
        let requests = live.iter().map(|opened| OpenedRequest::new(opened, context.ledger));
        let (source, catch_up_source) = match state {
            Some(state) => {
                let bytes = state.state.len() as u64;
                (StateSource::Import(bytes), CatchUpSource::Import(state, requests.collect()))
            }
            None => {
                let requests = requests.map(|request| OpenedRequest { received_tokens: 0, ..request });
                (StateSource::Replay(import_error), CatchUpSource::Journal(requests.collect()))
            }
        };
        self.reload.successors += 1;
        self.reload.successor = Some(Successor {
            digest: instance.component().digest(),
            settings,
            source,
            wants: instance.wants(),
            catch_up: Some(self.catch_up(instance, catch_up_source)),
            missed: Some(MissedCalls::default()),
            rounds: 0,
        });
    }

    pub(super) fn catch_up(&self, instance: Plugin, source: CatchUpSource) -> CatchUp {
        let plugins_before = HashSet::new();
        CatchUp {
            plugin: self.name().clone(),
            number: self.reload.successors,
            instance,
            source,
            plugins_before,
        }
    }

    /// Whether [`PluginSlot::take_catch_up`] returns one.
    pub fn has_catch_up(&self) -> bool {
        self.reload.successor.as_ref().is_some_and(|successor| successor.catch_up.is_some())
    }

    /// Takes the successor's next round, to run it off the stream's thread.
    pub fn take_catch_up(&mut self) -> Option<CatchUp> {
        self.reload.successor.as_mut()?.catch_up.take()
    }

    /// Records a batch that the successor misses.
    pub(super) fn record_missed_batch(
        &mut self,
        opened: &[Opened<'_>],
        columns: &Columns<'_>,
        context: ChainContext<'_>,
    ) {
        let Some(successor) = &mut self.reload.successor else { return };
        if !opened.is_empty() {
            let opened = opened.iter().map(|opened| OpenedRequest::new(opened, context.ledger)).collect();
            successor.record(MissedCall::Open(opened));
        }
        successor.record(MissedCall::Process(Box::new(OwnedColumns::copy(columns, successor.wants))));
    }

    /// Ends a round: the successor takes over, begins another round, or fails.
    pub fn finish_catch_up(&mut self, result: CatchUpResult, context: ChainContext<'_>) {
        let CatchUpResult { number, mut instance, rows, .. } = result;
        if self.reload.successors != number {
            return;
        }
        let Some(mut successor) = self.reload.successor.take() else { return };
        let can_repeat = successor.rounds < ROUNDS_MAX;
        if let (Ok(rows), Some(missed)) = (&rows, successor.missed.take_if(|it| can_repeat && it.is_long())) {
            successor.missed = Some(MissedCalls::default());
            successor.catch_up = Some(self.catch_up(instance, CatchUpSource::Missed(missed, *rows)));
            successor.rounds += 1;
            self.reload.successor = Some(successor);
            return;
        }
        let Successor { settings, source, missed, .. } = successor;
        instance.set_off_path(false);
        let rows = rows.and_then(|rows| match missed {
            None => Err("it missed more calls than Afterbay records".to_owned().into()),
            Some(missed) => Ok(rows + missed.replay(&mut instance)?),
        });
        match rows {
            Ok(rows) => self.take_over(instance, settings, source, rows, context),
            Err(why) => self.catch_up_failed(instance, settings, source, why, context),
        }
    }

    /// Lets a successor that knows the live requests take over.
    fn take_over(
        &mut self,
        plugin: Plugin,
        settings: String,
        source: StateSource,
        rows: u64,
        context: ChainContext<'_>,
    ) {
        let cancelled = match source {
            StateSource::Import(_) => self.calls.take_cancelled(),
            StateSource::Replay(_) => Vec::new(),
        };
        self.retire_instance(&plugin, settings, context.now);
        let requests_open = self.install(plugin, context);
        self.calls.cancel(cancelled);
        match source {
            StateSource::Import(bytes) => self.report_reloaded(requests_open, bytes),
            StateSource::Replay(why) => {
                self.report_reloaded(requests_open, 0);
                self.telemetry.publish(|stream, plugin| PluginReplayed { stream, plugin, rows, why });
            }
        }
    }

    /// Lets an instance that knows the live requests judge rows. Returns the number of live requests.
    pub(super) fn install(&mut self, mut plugin: Plugin, context: ChainContext<'_>) -> u64 {
        plugin.set_off_path(false);
        plugin.set_effects(true);
        self.faults.instance_started();
        self.telemetry.publish_log(&mut plugin, context.ledger);
        let requests_open = open_requests::live(context.ledger).len() as u64;
        self.enter(SlotState::Running { plugin, requests_open }, context.now);
        requests_open
    }

    /// Tries the next best way to pass the state on, with a fresh instance. A component that faults on the rows of live requests
    /// is refused.
    fn catch_up_failed(
        &mut self,
        failed: Plugin,
        settings: String,
        source: StateSource,
        why: CatchUpError,
        context: ChainContext<'_>,
    ) {
        let why = match (why, &source) {
            (CatchUpError::Fault(why), StateSource::Replay(_)) => {
                let why = format!("it faults on rows of live requests: {why}");
                return self.refuse_component(&failed, why, context.now);
            }
            (why, _) => why.into_text(),
        };
        match (failed.component().instantiate(&settings), source) {
            (Ok(fresh), StateSource::Import(_)) if self.can_replay(context) => {
                self.prepare_successor(fresh, settings, None, Some(why), context);
            }
            (Ok(fresh), source) => {
                let why = match source {
                    StateSource::Replay(Some(import_error)) => format!("{import_error}, and {why}"),
                    _ => why,
                };
                self.telemetry.publish(|stream, plugin| PluginStateLost { stream, plugin, why });
                self.start_replacement(fresh, settings, context);
            }
            (Err(error), _) => self.refuse_component(&failed, error.to_string(), context.now),
        }
    }

    fn refuse_component(&mut self, refused: &Plugin, why: String, now: Timestamp) {
        let component = refused.component();
        let version = component.description().version.clone();
        self.report_reload_failed(Some(component.digest()), Some(version), why, now);
    }

    fn report_reloaded(&self, resumed_requests: u64, state_bytes: u64) {
        self.telemetry.counters.reloads.add(ReloadResult::Ok, 1);
        let (version, digest) = self.version();
        self.telemetry.publish(|stream, plugin| PluginReloaded {
            stream,
            plugin,
            version,
            digest,
            resumed_requests,
            state_bytes,
        });
    }

    /// Reports that the previous component stays. `to` and `version` are those of the refused one, as far as they are known.
    fn report_reload_failed(
        &mut self,
        to: Option<Digest>,
        version: Option<String>,
        why: String,
        now: Timestamp,
    ) {
        let (at, from) = (now.system_time(), self.component.digest());
        let reload = Reload { at, from, to, version, refused: Some(why.clone()) };
        self.reload.history.push(reload.bounded());
        let text = format!("the previous component stays: {why}");
        self.telemetry.set_reload_condition(text, now.system_time());
        self.telemetry.counters.reloads.add(ReloadResult::Failed, 1);
        self.telemetry.publish(|stream, plugin| PluginReloadFailed { stream, plugin, why });
    }
}
