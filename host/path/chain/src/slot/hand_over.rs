//! Hand-over: a plugin continues in another process, with the requests and rows that it had.
//!
//! The instance exports its state, and the next one imports it. If either cannot, the rows of the live requests are replayed to
//! the next instance. Held rows stay held if the next instance knows them: it has imported the state, or it is the same
//! component with the same settings and was shown the rows that it holds again.

use super::PluginSlot;
use super::state::SlotState;
use crate::catch_up::{CatchUpSource, ExportedState};
use crate::context::ChainContext;
use crate::hand_over::{HandedBytes, HandedCall, HandedPlugin, HandedStatus};
use crate::open_requests::{self, OpenedRequest};
use crate::replay::{EarlierInstance, JournalSource};
use crate::setup::{ChainTelemetry, PluginSetup};
use afterbay_config::Mode;
use afterbay_events::event::{PluginReplayed, PluginStateLost};
use afterbay_runtime::{CallSet, Digest, Plugin};
use std::collections::HashSet;

impl PluginSlot {
    /// Exports the plugin for the next process; its state only if it has room in `room` bytes. The slot continues.
    pub fn hand_over(&mut self, room: &mut usize, context: ChainContext<'_>) -> HandedPlugin {
        let state = self.call(context, Plugin::export_state).flatten();
        let mut take_room = |bytes: &[u8]| {
            let rest = room.checked_sub(bytes.len());
            rest.map(|rest| *room = rest).is_some()
        };
        let state = state.filter(|state| take_room(state)).map(HandedBytes);
        let status = match &self.state {
            SlotState::Running { .. } => HandedStatus::Running { state },
            SlotState::Restarting | SlotState::Down { .. } => HandedStatus::Down,
            SlotState::Quarantined { why } => HandedStatus::Quarantined { why: why.clone() },
        };
        let (version, digest) = self.version();
        HandedPlugin {
            plugin: self.name().to_string(),
            version,
            digest,
            settings: self.settings_digest(),
            is_promoted: self.policy.mode == Mode::Live && self.policy.configured_mode != Mode::Live,
            status,
            last_call: self.calls.last(),
            open_calls: self.calls.unanswered(take_room),
            ends: self.calls.ends_to_hand(),
        }
    }

    /// Continues a plugin of the process before. `plugins_before` and `journal` are for a replay.
    pub fn continued(
        setup: PluginSetup,
        handed: HandedPlugin,
        plugins_before: HashSet<String>,
        journal: &mut dyn FnMut() -> Option<JournalSource>,
        telemetry: &ChainTelemetry,
        context: ChainContext<'_>,
    ) -> PluginSlot {
        let PluginSetup { settings, instance, awaits, config } = setup;
        let mut slot = PluginSlot::idle(config, settings, instance.component(), telemetry);
        if handed.is_promoted {
            slot.policy.mode = Mode::Live;
        }
        slot.calls.take_over(handed.last_call, handed.ends, context.ledger);
        let is_same = handed.digest == slot.version().1 && handed.settings == slot.settings_digest();
        match (awaits, handed.status) {
            (Some(why), _) => {
                slot.await_component(why, context.now);
                return slot;
            }
            (None, HandedStatus::Quarantined { why }) if is_same => {
                slot.telemetry.counters.quarantined.set(1);
                slot.enter(SlotState::Quarantined { why }, context.now);
            }
            (None, HandedStatus::Running { state }) => {
                let state = state.map(|state| ExportedState { version: handed.version, state: state.0 });
                let calls = handed.open_calls;
                slot.continue_running(instance, state, calls, is_same, plugins_before, journal, context);
            }
            (None, _) => slot.start(instance, &open_requests::live(context.ledger), context),
        }
        slot.report_loaded();
        slot
    }

    fn settings_digest(&self) -> String {
        Digest::of(self.settings.as_bytes()).to_string()
    }

    /// Lets the instance import the state, or see the rows of the live requests again, and lets it judge rows.
    #[expect(clippy::too_many_arguments, reason = "called once")]
    fn continue_running(
        &mut self,
        mut instance: Plugin,
        state: Option<ExportedState>,
        calls: Vec<HandedCall>,
        is_same: bool,
        plugins_before: HashSet<String>,
        journal: &mut dyn FnMut() -> Option<JournalSource>,
        context: ChainContext<'_>,
    ) {
        instance.continue_calls_after(self.calls.last());
        let live = open_requests::live(context.ledger);
        let requests: Vec<_> = live.iter().map(|it| OpenedRequest::new(it, context.ledger)).collect();
        let mut import_error = None;
        let imports = instance.component().description().wants.contains(CallSet::STATE);
        if let Some(state) = state.filter(|_| imports) {
            let done = self.catch_up(instance, CatchUpSource::Import(state, requests.clone())).run(None);
            match done.rows {
                Ok(_) => {
                    self.install(done.instance, context);
                    // A call that cannot be asked again leaves its rows without an answer.
                    self.has_lost_holds = calls.iter().any(|call| call.body.is_none());
                    self.calls.ask_again(calls);
                    return;
                }
                Err(why) => import_error = Some(why.into_text()),
            }
            match self.component.instantiate(&self.settings) {
                Ok(fresh) => instance = fresh,
                // The restart fails likewise, and says so.
                Err(_) => return self.restart(context),
            }
            instance.continue_calls_after(self.calls.last());
        }
        if live.is_empty() {
            return self.start(instance, &live, context);
        }
        let requests = requests.into_iter().map(|it| OpenedRequest { received_tokens: 0, ..it }).collect();
        let earlier = EarlierInstance { plugin: self.name().clone(), open_calls: calls, found: Vec::new() };
        let source = CatchUpSource::Again { requests, earlier };
        let mut round = self.catch_up(instance, source);
        round.plugins_before = plugins_before;
        let done = round.run(journal());
        match done.rows {
            Ok(rows) => {
                let (found, missing) = done.open_calls;
                self.install(done.instance, context);
                self.has_lost_holds = !is_same || !missing.is_empty();
                self.calls.ask_again(found);
                let why = import_error;
                self.telemetry.publish(|stream, plugin| PluginReplayed { stream, plugin, rows, why });
            }
            Err(why) => {
                let why = why.into_text();
                let why =
                    import_error.map_or(why.clone(), |import_error| format!("{import_error}, and {why}"));
                self.telemetry.publish(|stream, plugin| PluginStateLost { stream, plugin, why });
                self.restart(context);
            }
        }
    }
}
