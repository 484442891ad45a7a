//! The plugin chain: each plugin is called once per batch, and the verdicts on a row compose in the order of the chain.
//!
//! This module owns the slots and the columns that the plugins see. A batch comes from the ledger and returns to the ledger
//! with a decision per row.

mod facts;
mod holding;
mod input;

use crate::calls::ChainCalls;
use crate::catch_up::{CatchUp, CatchUpResult};
use crate::context::ChainContext;
use crate::hand_over::{ChainState, HANDED_BYTES_MAX};
use crate::open_requests;
use crate::replay::TakenOver;
use crate::setup::{ChainTelemetry, PluginChange, PluginSetup};
use crate::slot::{Answer, PluginSlot};
use crate::status::PluginStatus;
use afterbay_batch::hold::HeldRows;
use afterbay_batch::ledger::Ledger;
use afterbay_batch::{Accounted, ChainOutput, Row, Timestamp, not_judged};
use afterbay_events::Name;
use afterbay_events::event::PluginRemoved;
use afterbay_journal::{FrameNo, JournalRequest};
use afterbay_runtime::signals::Snapshot;
use afterbay_runtime::{ColumnSet, Columns, Opened, Plugin, ReloadError};
use afterbay_wire::FinishKind;
use holding::Turn;
use input::ChainInput;
pub use input::finish_kind;
use std::collections::HashSet;
use std::ops::BitOr;
use std::time::{Duration, Instant};

/// The plugins of a stream, in the order of the configuration.
pub struct Chain {
    slots: Vec<PluginSlot>,
    calls: ChainCalls,
    input: ChainInput,
    telemetry: ChainTelemetry,
    /// The time of the last tick: the clock of timers is the wall's.
    ticked_at: Timestamp,
}

impl Chain {
    /// Starts the plugins. Each is told of the live requests, or continues a plugin of the process before.
    pub fn start(
        mut plugins: Vec<PluginSetup>,
        calls: ChainCalls,
        telemetry: ChainTelemetry,
        taken_over: Option<TakenOver<'_>>,
        ledger: &Ledger,
        now: Timestamp,
    ) -> Chain {
        let context = ChainContext { ledger, now };
        let (mut state, journal) =
            taken_over.map_or_else(Default::default, |it| (it.state, Some(it.journal)));
        state.promote(&mut plugins);
        let mut no_journal = || None;
        let journal = journal.unwrap_or(&mut no_journal);
        let mut slots: Vec<PluginSlot> = Vec::new();
        for setup in plugins {
            let slot = match state.remove(&setup.config.name) {
                Some(handed) => {
                    let live = slots.iter().filter(|slot| !slot.is_shadow());
                    let before = live.map(|slot| slot.name().to_string()).collect();
                    PluginSlot::continued(setup, handed, before, journal, &telemetry, context)
                }
                None => PluginSlot::new(setup, &telemetry, context),
            };
            slots.push(slot);
        }
        Chain { slots, calls, input: ChainInput::default(), telemetry, ticked_at: now }
    }

    /// Exports the plugins for the next process. The chain continues if that process does not take over.
    pub fn hand_over(&mut self, ledger: &Ledger, now: Timestamp) -> ChainState {
        let context = ChainContext { ledger, now };
        let mut room = HANDED_BYTES_MAX;
        let plugins = self.slots.iter_mut().map(|slot| {
            let handed = slot.hand_over(&mut room, context);
            slot.end_batch();
            handed
        });
        ChainState { plugins: plugins.collect() }
    }

    /// Whether the plugin's instance knows the rows that the plugin holds.
    pub fn knows_holds(&self, plugin: &str) -> bool {
        self.index_of(plugin).is_some_and(|index| self.slots[index].knows_holds())
    }

    /// Changes the plugins between two batches. A plugin that is not in the list leaves the chain.
    pub fn change(&mut self, plugins: Vec<PluginChange>, ledger: &Ledger, now: Timestamp) {
        let context = ChainContext { ledger, now };
        let mut before = std::mem::take(&mut self.slots);
        let mut take = |name: &Name| {
            let index = before.iter().position(|slot| slot.name() == name)?;
            Some(before.remove(index))
        };
        let slots = plugins.into_iter().filter_map(|change| match change {
            // A promoted shadow may have taken the plugin's place: then no slot has the name.
            PluginChange::Stays(config) => take(&config.name).map(|mut slot| {
                slot.configure(&config, now);
                slot
            }),
            PluginChange::New(setup) => Some(match take(&setup.config.name) {
                Some(mut slot) => {
                    slot.replace(setup, context);
                    slot
                }
                None => PluginSlot::new(setup, &self.telemetry, context),
            }),
        });
        self.slots = slots.collect();
        for slot in before {
            let (stream, plugin) = (self.telemetry.stream.stream.clone(), slot.name().clone());
            slot.remove(now);
            self.telemetry.stream.publish(PluginRemoved { stream, plugin });
        }
    }

    /// Calls `each` with every slot.
    fn for_each_slot(
        &mut self,
        ledger: &Ledger,
        now: Timestamp,
        mut each: impl FnMut(&mut PluginSlot, ChainContext<'_>),
    ) {
        let context = ChainContext { ledger, now };
        self.slots.iter_mut().for_each(|slot| {
            each(slot, context);
            slot.end_batch();
        });
    }

    /// Calls `call` with the slot of this plugin. `None` if the chain has no such plugin.
    fn with_slot<T>(
        &mut self,
        plugin: &str,
        ledger: &Ledger,
        now: Timestamp,
        call: impl FnOnce(&mut PluginSlot, ChainContext<'_>) -> T,
    ) -> Option<T> {
        let index = self.index_of(plugin)?;
        let context = ChainContext { ledger, now };
        let slot = &mut self.slots[index];
        let result = call(slot, context);
        slot.end_batch();
        Some(result)
    }

    fn index_of(&self, plugin: &str) -> Option<usize> {
        self.slots.iter().position(|slot| **slot.name() == *plugin)
    }

    /// Starts a fresh instance of every plugin, after a panic of the stream's thread.
    pub fn restart_after_panic(&mut self, ledger: &Ledger, now: Timestamp) {
        self.continue_after_hand_over();
        self.for_each_slot(ledger, now, PluginSlot::restart_after_panic);
    }

    /// Continues with every instance as it is, because no other process took over.
    pub fn continue_after_hand_over(&mut self) {
        self.input = ChainInput::default();
    }

    /// Publishes the gauges of each plugin.
    pub fn publish_gauges(&self, held_rows: &HeldRows) {
        self.slots.iter().for_each(|slot| slot.publish_gauges(held_rows.size_of(slot.name())));
    }

    /// The status of each plugin.
    pub fn statuses(&self) -> Vec<PluginStatus> {
        self.slots.iter().map(PluginSlot::status).collect()
    }

    /// The component of each plugin whose verdicts are applied: the plugin's name, and the component's version and SHA-256.
    pub fn components(&self) -> impl Iterator<Item = (&str, &str, &[u8; 32])> + Clone {
        self.slots.iter().filter_map(PluginSlot::judging_component)
    }

    /// Whether any plugin reads the signals.
    pub fn wants_signals(&self) -> bool {
        self.slots.iter().any(PluginSlot::wants_signals)
    }

    /// Gives the plugins that read signals a new snapshot. If `has_changed`, the plugins that asked for it are called.
    pub fn set_signals(&mut self, snapshot: &Snapshot, has_changed: bool, ledger: &Ledger, now: Timestamp) {
        self.for_each_slot(ledger, now, |slot, context| {
            if slot.wants_signals() {
                slot.set_signals(snapshot, has_changed, context);
            }
        });
    }

    /// Reports to the plugins that the attributes of a live request have changed.
    pub fn attributes_changed(&mut self, number: u64, ledger: &Ledger, now: Timestamp) {
        if ledger.is_open(number) {
            self.for_each_slot(ledger, now, |slot, context| slot.attributes_changed(number, context));
        }
    }

    /// Replaces the instance of a plugin whose component has changed, or reports why that failed.
    pub fn reload(
        &mut self,
        plugin: &str,
        result: Result<Plugin, ReloadError>,
        ledger: &Ledger,
        now: Timestamp,
    ) {
        self.with_slot(plugin, ledger, now, |slot, context| slot.reload(result, context));
    }

    /// Makes a shadow live. The plugin that it is a shadow of leaves the chain, and the shadow takes its place. `None` if the
    /// chain has no such plugin, false if the plugin is live already.
    pub fn promote(&mut self, plugin: &str, now: Timestamp) -> Option<bool> {
        let shadow = self.index_of(plugin)?;
        if !self.slots[shadow].is_shadow() {
            return Some(false);
        }
        let Some(live) = self.slots[shadow].shadow_of().and_then(|of| self.index_of(of)) else {
            self.slots[shadow].promote("no plugin has left the chain".to_owned(), now);
            return Some(true);
        };
        let left = format!("plugin {:?} has left the chain", self.slots[live].name());
        self.slots[shadow].promote(left, now);
        self.slots.swap(shadow, live);
        self.slots.remove(shadow).remove(now);
        Some(true)
    }

    /// Takes a plugin out of quarantine. `None` if the chain has no such plugin, false if it was not in quarantine.
    pub fn reinstate(&mut self, plugin: &str, ledger: &Ledger, now: Timestamp) -> Option<bool> {
        self.with_slot(plugin, ledger, now, PluginSlot::reinstate)
    }

    /// Whether [`Chain::take_catch_ups`] returns any.
    pub fn has_catch_ups(&self) -> bool {
        self.slots.iter().any(PluginSlot::has_catch_up)
    }

    /// Takes the catch-up rounds that successors wait for.
    pub fn take_catch_ups(&mut self) -> Vec<CatchUp> {
        let mut plugins_before = HashSet::new();
        let mut all = Vec::new();
        for slot in &mut self.slots {
            let catch_up = slot.take_catch_up();
            all.extend(catch_up.map(|it| CatchUp { plugins_before: plugins_before.clone(), ..it }));
            if !slot.is_shadow() {
                plugins_before.insert(slot.name().to_string());
            }
        }
        all
    }

    /// Ends a catch-up round: the successor takes over, begins another round, or fails.
    pub fn finish_catch_up(&mut self, result: CatchUpResult, ledger: &Ledger, now: Timestamp) {
        let plugin = result.plugin.clone();
        self.with_slot(&plugin, ledger, now, |slot, context| slot.finish_catch_up(result, context));
    }

    /// Tells the plugins of a request that began in a frame that they were not called with.
    pub fn open(&mut self, handle: JournalRequest, ledger: &Ledger, now: Timestamp) {
        let Some((rid, request)) = ledger.request(handle) else { return };
        let opened = open_requests::open_without_row(rid, request, ledger);
        self.for_each_slot(ledger, now, |slot, context| slot.open(&opened, context));
        self.send_calls(ledger);
    }

    /// Starts plugins again that could not be started, tells plugins of timers that are due, and gives requests that are to end a
    /// row to end with. Called between two batches, of which `frame` was the last.
    pub fn tick(&mut self, held_rows: &mut HeldRows, frame: FrameNo, ledger: &Ledger, now: Timestamp) {
        self.ticked_at = now;
        self.for_each_slot(ledger, now, |slot, context| {
            slot.tick(context);
            slot.tell_of_timers(held_rows, context);
            if slot.has_ends() {
                slot.give_rows_to_ends(held_rows, frame, context);
            }
        });
        self.send_calls(ledger);
    }

    /// The time at which [`Chain::tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        let timer = self.slots.iter().filter_map(PluginSlot::next_timer_ms).min();
        let timer = timer.map(|at_ms| {
            let left = at_ms.saturating_mul(1_000_000).saturating_sub(self.ticked_at.unix_ns);
            self.ticked_at.instant + Duration::from_nanos(left)
        });
        self.slots.iter().filter_map(PluginSlot::deadline).chain(timer).min()
    }

    /// Calls each plugin with the batch, and composes the verdicts.
    pub fn run(
        &mut self,
        accounted: Accounted,
        held_rows: &mut HeldRows,
        ledger: &Ledger,
        now: Timestamp,
    ) -> ChainOutput {
        let mut output = ChainOutput::new(accounted);
        if !self.slots.is_empty() {
            self.show(&output);
            self.call_shown_plugins(&mut output, 0, held_rows, ledger, now);
            if output.accounted().any().unread {
                self.refuse_unread_rows(&mut output);
            }
            output.guard = output.verdicts.iter().find_map(|verdict| self.guard(&verdict.plugin));
            self.send_calls(ledger);
        }
        ledger.apply_operator_aborts(&mut output);
        if !self.slots.is_empty() {
            self.close_ended(&output, ledger, now);
            // The journal records the batch's outcome only after this.
            self.slots.iter().for_each(PluginSlot::end_batch);
        }
        output
    }

    /// Sends the calls that plugins have made.
    fn send_calls(&mut self, ledger: &Ledger) {
        if !self.slots.iter().any(PluginSlot::has_unsent_calls) {
            return;
        }
        self.slots.iter_mut().for_each(|slot| slot.send_calls(ledger, &mut self.calls));
    }

    /// Delivers the outcomes of calls to the plugins that made them. Called between two batches. Returns whether more outcomes
    /// wait: a plugin gets a few at once, so that no batch waits for long.
    pub fn deliver_answers(&mut self, held_rows: &mut HeldRows, ledger: &Ledger, now: Timestamp) -> bool {
        self.send_calls(ledger);
        while let Some(ended) = self.calls.next_ended() {
            if let Some(index) = self.index_of(&ended.plugin) {
                self.slots[index].call_ended(ended.ticket, ended.outcome);
            }
        }
        let context = ChainContext { ledger, now };
        let mut has_more = false;
        for slot in &mut self.slots {
            has_more |= slot.deliver_answers(held_rows, context);
        }
        self.send_calls(ledger);
        has_more
    }

    /// Whether a plugin waits for the outcome of a call.
    pub fn has_open_calls(&self) -> bool {
        self.slots.iter().any(PluginSlot::has_open_calls)
    }

    /// The plugin of this name, if it is a guard ([`PluginSlot::is_guard`]).
    fn guard(&self, plugin: &str) -> Option<Name> {
        let slot = &self.slots[self.index_of(plugin)?];
        slot.is_guard().then(|| slot.name().clone())
    }

    /// Counts rows that no plugin can be shown as a fault of each plugin. Returns the first guard: the rows must not pass.
    /// `None` if the rows pass.
    pub fn refuse_unreadable(&mut self, rows: u64) -> Option<Name> {
        let mut first_guard = None;
        for slot in &mut self.slots {
            if slot.refuses_unreadable(rows) {
                first_guard.get_or_insert_with(|| slot.name().clone());
            }
        }
        first_guard
    }

    /// Aborts the requests of rows that cannot be read, if a plugin must judge them.
    #[cold]
    fn refuse_unread_rows(&mut self, output: &mut ChainOutput) {
        let rows = (0..).zip(output.accounted().rows());
        let unread: Vec<u32> =
            rows.filter(|(_, row)| row.unread && !row.swallowed).map(|(index, _)| index).collect();
        if unread.is_empty() {
            return;
        }
        let Some(plugin) = self.refuse_unreadable(unread.len() as u64) else { return };
        for row in unread {
            output.terminate(row, &plugin, &not_judged(&plugin));
        }
        output.verdicts.sort();
    }

    /// Runs the plugins after `plugin` on rows that were released without a verdict of `plugin`, which held them.
    pub fn run_released(
        &mut self,
        output: &mut ChainOutput,
        plugin: &str,
        held_rows: &mut HeldRows,
        ledger: &Ledger,
        now: Timestamp,
    ) {
        // If the plugin has left the chain, its place in the order is not known: no plugin sees the rows.
        let Some(index) = self.index_of(plugin) else { return self.close_ended(output, ledger, now) };
        let slot = &self.slots[index];
        for (row, released) in output.accounted().rows().iter().zip(output.released()) {
            let rid = ledger.request(row.request).map_or("", |(rid, _)| rid);
            let (why, held) = (released.why, &released.held);
            slot.report_hold_ended(why, rid, held.received.rows, held.tokens.into());
        }
        if slot.is_guard() {
            holding::terminate_lost(output, plugin);
        }
        self.show(output);
        holding::apply_ends(output, &mut self.input, &mut self.slots[index], held_rows);
        if !output.decisions.is_empty() && index + 1 < self.slots.len() {
            self.count(output);
            self.input.rebuild(output);
        }
        self.call_shown_plugins(output, index + 1, held_rows, ledger, now);
        output.guard = output.verdicts.iter().find_map(|verdict| self.guard(&verdict.plugin));
        self.send_calls(ledger);
        self.close_ended(output, ledger, now);
        self.slots.iter().for_each(PluginSlot::end_batch);
    }

    /// Ends the holds of instances and plugins that no longer exist.
    pub fn end_lost_holds(&mut self, held_rows: &mut HeldRows) {
        if held_rows.is_empty() {
            return;
        }
        for slot in &mut self.slots {
            slot.end_lost_holds(held_rows);
        }
        held_rows.end_missing(self.slots.iter().map(|slot| slot.name().as_str()));
    }

    /// Fills the columns that the plugins want with the rows as they were received.
    fn show(&mut self, output: &ChainOutput) {
        let wants = self.slots.iter().map(PluginSlot::wants).fold(ColumnSet::empty(), ColumnSet::bitor);
        self.input.show(output.accounted(), wants);
    }

    /// Counts the tokens of the rows that plugins see, once per batch.
    fn count(&mut self, output: &ChainOutput) {
        if self.input.tokens.is_empty() {
            self.input.count(output.accounted());
        }
    }

    /// Calls the plugins from index `first` on with the filled columns, and applies each answer to what the next plugin sees.
    fn call_shown_plugins(
        &mut self,
        output: &mut ChainOutput,
        first: usize,
        held_rows: &mut HeldRows,
        ledger: &Ledger,
        now: Timestamp,
    ) {
        if self.input.rows.is_empty() {
            return;
        }
        let received_at = output.accounted().persisted().at().instant;
        let first_rows = self.input.begun(output.accounted());
        for index in first..self.slots.len() {
            if self.slots[index].shadow_of().is_some() {
                // The shadow is called in the place of its live plugin.
                continue;
            }
            let context = ChainContext { ledger, now };
            let answer =
                call_plugin(&mut self.slots, index, &self.input, &first_rows, output, held_rows, context);
            let Some(answer) = answer else { continue };
            self.slots[index].end_lost_holds(held_rows);
            let changes_nothing = match &answer {
                Answer::Bypassed => true,
                Answer::Verdicts(verdicts) => verdicts.is_empty(),
                Answer::Terminated(_) => false,
            };
            if changes_nothing && held_rows.is_empty() && !self.slots[index].has_ends() {
                continue;
            }
            output.decide();
            self.count(output);
            let (slot, input) = (&mut self.slots[index], &mut self.input);
            let turn =
                Turn { releases: Vec::new(), output, input, held_rows, slot, ledger, now: received_at };
            match answer {
                Answer::Bypassed => turn.apply_verdicts(Vec::new()),
                Answer::Verdicts(verdicts) => turn.apply_verdicts(verdicts),
                Answer::Terminated(message) => turn.terminate(&message),
            }
            if index + 1 < self.slots.len() {
                self.input.rebuild(output);
            }
        }
        // The journal records verdicts in the order of rows. The verdicts on one row stay in the order of the chain.
        output.verdicts.sort();
    }

    /// Reports the requests that end with this batch to each plugin.
    fn close_ended(&mut self, output: &ChainOutput, ledger: &Ledger, now: Timestamp) {
        let (accounted, decisions) = (output.accounted(), &output.decisions);
        if !accounted.any().may_close && !accounted.is_released() && decisions.is_empty() {
            return;
        }
        // A request whose last row is held ends when that row leaves.
        let is_ended = |(index, row): &(usize, &Row)| {
            let decision = decisions.get(*index);
            let ends = decision.is_some_and(|decision| decision.finish.is_some());
            (ends || row.finish != FinishKind::Running) && !output.is_held(*index as u32)
        };
        let ended = accounted.rows().iter().enumerate().filter(is_ended).filter(|(_, row)| !row.hidden);
        let ended: Vec<u64> = ended.map(|(_, row)| row.number()).collect();
        self.close_requests(&ended, ledger, now);
    }

    /// Reports requests that have no more rows to each plugin.
    pub fn close_requests(&mut self, ended: &[u64], ledger: &Ledger, now: Timestamp) {
        if !ended.is_empty() {
            self.for_each_slot(ledger, now, |slot, context| slot.close(ended, context));
        }
    }

    /// Starts a fresh instance of each plugin that faulted when requests were closed. Called once the ledger has removed these
    /// requests, so that the fresh instance is not told of them.
    pub fn restart_after_close(&mut self, ledger: &Ledger, now: Timestamp) {
        self.for_each_slot(ledger, now, PluginSlot::restart_after_close);
    }
}

/// Calls the plugin at `index`, and its shadows with the same columns. `None` if there is nothing to apply: the plugin was not
/// called, or is a shadow itself.
fn call_plugin(
    slots: &mut [PluginSlot],
    index: usize,
    input: &ChainInput,
    first_rows: &[u32],
    output: &ChainOutput,
    held_rows: &HeldRows,
    context: ChainContext<'_>,
) -> Option<Answer> {
    let (accounted, ledger) = (output.accounted(), context.ledger);
    let opened: Vec<Opened<'_>> = first_rows
        .iter()
        .filter_map(|row| ledger.request(accounted.rows()[*row as usize].request))
        .map(|(rid, request)| open_requests::beginning(rid, request, ledger))
        .collect();
    if input.rows.is_empty() && opened.is_empty() {
        return None;
    }
    let name = slots[index].name().clone();
    let shadows: Vec<usize> =
        (0..slots.len()).filter(|shadow| slots[*shadow].shadow_of() == Some(&name)).collect();
    let wants = shadows.iter().fold(slots[index].wants(), |wants, shadow| wants | slots[*shadow].wants());
    let texts = if wants.contains(ColumnSet::TEXTS) { input.texts(output) } else { Vec::new() };
    let waiting = match wants.contains(ColumnSet::WAITING) {
        true => input.waiting(held_rows, &name),
        false => Vec::new(),
    };
    let facts = input.facts(output, wants);
    let weight_versions = facts.weight_versions();
    let columns = Columns {
        texts: Some(&texts[..]).filter(|texts| !texts.is_empty()),
        waiting: Some(&waiting[..]).filter(|waiting| !waiting.is_empty()),
        logprobs: facts.logprobs(),
        top_logprobs: facts.top_logprobs(),
        weight_versions: Some(&weight_versions[..]).filter(|versions| !versions.is_empty()),
        ..input.columns()
    };
    let rid = |row: u32| {
        let row = *input.rows.get(row as usize)?;
        Some(ledger.request(accounted.rows()[row as usize].request)?.0)
    };
    let answer = slots[index].run(&opened, &columns, accounted, context);
    if slots[index].is_shadow() {
        slots[index].compare(&answer, &[], accounted, rid);
        return None;
    }
    let verdicts = match &answer {
        Answer::Verdicts(verdicts) => &verdicts[..],
        Answer::Bypassed | Answer::Terminated(_) => &[],
    };
    for shadow in shadows {
        let of_shadow = slots[shadow].run(&opened, &columns, accounted, context);
        slots[shadow].compare(&of_shadow, verdicts, accounted, rid);
    }
    Some(answer)
}
