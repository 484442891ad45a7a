//! The plugins of a stream: each is called once per batch, and what they say of a row composes in order.
//!
//! Owns the chain, its instances and the columns they are shown. A batch comes in accounted and goes on to be settled by
//! the ledger with each row's fate. A plugin that faults is replaced by a fresh instance; what becomes of the batch it was
//! given, `on_fault` says.

mod holding;
mod input;

use crate::attributes::{AttributesOf, RequestAttributes};
use crate::context::ChainContext;
use crate::replay::Replayed;
use crate::resumed;
use crate::slot::{Answer, PluginSlot, Wanted};
use crate::status::PluginStatus;
use afterbay_batch::{Accounted, ChainOutput, Row, Timestamp, not_judged};
use afterbay_events::Name;
use afterbay_hold::HeldRows;
use afterbay_ledger::Ledger;
use afterbay_runtime::signals::Snapshot;
use afterbay_runtime::{ColumnSet, Columns, FinishKind, Opened, Plugin, ReloadError};
use holding::Turn;
use input::ChainInput;
use std::collections::HashSet;
use std::ops::BitOr;
use std::time::Instant;

/// The plugins of a stream, in the order of the config.
pub struct Chain {
    slots: Vec<PluginSlot>,
    attributes: RequestAttributes,
    input: ChainInput,
}

impl Chain {
    pub fn new(slots: Vec<PluginSlot>, attributes: RequestAttributes) -> Chain {
        Chain { slots, attributes, input: ChainInput::default() }
    }

    /// Starts a fresh instance of every plugin, after a panic of the stream's thread.
    pub fn restart_after_panic(&mut self, ledger: &Ledger, now: Timestamp) {
        self.input = ChainInput::default();
        let context = ChainContext { ledger, attributes: &self.attributes, now };
        self.slots.iter_mut().for_each(|slot| slot.after_panic(context));
    }

    pub fn slots(&self) -> &[PluginSlot] {
        &self.slots
    }

    /// Whether any plugin is to be told how the stream stands.
    pub fn wants_signals(&self) -> bool {
        self.slots.iter().any(PluginSlot::wants_signals)
    }

    /// Gives the plugins that read signals a new snapshot. `has_changed`: the plugins are called, too.
    pub fn set_signals(&mut self, snapshot: &Snapshot, has_changed: bool, ledger: &Ledger, now: Timestamp) {
        let context = ChainContext { ledger, attributes: &self.attributes, now };
        for slot in self.slots.iter_mut().filter(|slot| slot.wants_signals()) {
            slot.set_signals(snapshot, has_changed, context);
        }
    }

    /// Reads the attributes of a live request again and reports the change to the plugins.
    pub fn refresh_attributes(&mut self, rid: &str, ledger: &Ledger, now: Timestamp) {
        let Some(number) = ledger.request_status(rid).live.map(|live| live.number) else { return };
        if !self.attributes.refresh(number, rid) {
            return;
        }
        let context = ChainContext { ledger, attributes: &self.attributes, now };
        self.slots.iter_mut().for_each(|slot| slot.attributes_changed(number, context));
    }

    /// A changed component takes over, or could not.
    pub fn reload(
        &mut self,
        plugin: &str,
        result: Result<Plugin, ReloadError>,
        ledger: &Ledger,
        now: Timestamp,
    ) {
        if let Some(at) = self.place(plugin) {
            let context = ChainContext { ledger, attributes: &self.attributes, now };
            self.slots[at].reload(result, context);
        }
    }

    /// Where the plugin of that name is.
    fn place(&self, plugin: &str) -> Option<usize> {
        self.slots.iter().position(|slot| slot.name() == plugin)
    }

    /// A shadow becomes live: in the place of the plugin it is a shadow of, which leaves the chain, else in its own.
    /// `None`: there is no plugin of that name; false: it is live already.
    pub fn promote(&mut self, plugin: &str, now: Timestamp) -> Option<bool> {
        let at = self.place(plugin)?;
        if !self.slots[at].is_shadow() {
            return Some(false);
        }
        let Some(live) = self.slots[at].shadow_of().and_then(|of| self.place(of)) else {
            self.slots[at].promote("no other leaves the chain".to_owned(), now);
            return Some(true);
        };
        let left = format!("plugin {:?} has left the chain", self.slots[live].name());
        self.slots[at].promote(left, now);
        self.slots.swap(at, live);
        self.slots.remove(at).leave();
        Some(true)
    }

    /// How each plugin stands.
    pub fn statuses(&self) -> Vec<PluginStatus> {
        self.slots.iter().map(PluginSlot::status).collect()
    }

    /// What attributes requests have that begin from now on.
    pub fn set_attributes_source(&mut self, of: AttributesOf, ledger: &Ledger) {
        self.attributes.set_of(of, ledger);
    }

    /// Replaces the slots. `replace` takes the slots that stay out of the list and returns the new slots. Returns the slots
    /// that remain in the list: they have left the chain.
    pub fn replace_slots(
        &mut self,
        ledger: &Ledger,
        now: Timestamp,
        replace: impl FnOnce(&mut Vec<PluginSlot>, ChainContext<'_>) -> Vec<PluginSlot>,
    ) -> Vec<PluginSlot> {
        let mut before = std::mem::take(&mut self.slots);
        let context = ChainContext { ledger, attributes: &self.attributes, now };
        self.slots = replace(&mut before, context);
        before
    }

    /// Whether [`Chain::wanted`] has any.
    pub fn has_wanted(&self) -> bool {
        self.slots.iter().any(PluginSlot::has_wanted)
    }

    /// Instances that are to see what has come before they take over, each once.
    pub fn wanted(&mut self) -> Vec<Wanted> {
        let mut before = HashSet::new();
        let mut all = Vec::new();
        for slot in &mut self.slots {
            all.extend(slot.wanted().map(|wanted| Wanted { before: before.clone(), ..wanted }));
            if !slot.is_shadow() {
                before.insert(slot.name().to_owned());
            }
        }
        all
    }

    /// One of those has.
    pub fn replayed(
        &mut self,
        plugin: &str,
        number: u64,
        replayed: Replayed,
        ledger: &Ledger,
        now: Timestamp,
    ) {
        if let Some(at) = self.place(plugin) {
            let context = ChainContext { ledger, attributes: &self.attributes, now };
            self.slots[at].replayed(number, replayed, context);
        }
    }

    /// A plugin comes out of quarantine. `None`: there is none of that name; false: it was not in quarantine.
    pub fn reinstate(&mut self, plugin: &str, ledger: &Ledger, now: Timestamp) -> Option<bool> {
        let at = self.place(plugin)?;
        let context = ChainContext { ledger, attributes: &self.attributes, now };
        Some(self.slots[at].reinstate(context))
    }

    /// Does what is due. Between two batches only.
    pub fn tick(&mut self, ledger: &Ledger, now: Timestamp) {
        let context = ChainContext { ledger, attributes: &self.attributes, now };
        self.slots.iter_mut().for_each(|slot| slot.tick(context));
    }

    /// When [`Chain::tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.slots.iter().filter_map(PluginSlot::deadline).min()
    }

    /// Calls each plugin once, and composes what they say.
    pub fn run(
        &mut self,
        accounted: Accounted,
        held_rows: &mut HeldRows,
        ledger: &Ledger,
        now: Timestamp,
    ) -> ChainOutput {
        let mut output = ChainOutput::new(accounted);
        if !self.slots.is_empty() {
            self.ask(&mut output, 0, held_rows, ledger, now);
            if output.accounted().any().unread {
                self.refuse_unread(&mut output);
            }
            output.guard = output.verdicts.iter().find_map(|said| self.guard(&said.plugin));
        }
        if ledger.has_operator_aborts() {
            ledger.apply_operator_aborts(&mut output);
        }
        if !self.slots.is_empty() {
            self.close(&output, ledger, now);
        }
        output
    }

    /// The plugin of that name, if it lets nothing pass that it has not judged.
    fn guard(&self, plugin: &str) -> Option<Name> {
        let slot = self.slots.iter().find(|slot| slot.name() == plugin)?;
        slot.is_guard().then(|| slot.plugin_name())
    }

    /// Rows that cannot be read are a fault of each plugin, as `on_fault` has it: the first one that lets nothing pass that it has
    /// not judged. `None`: they pass.
    pub fn refuse_unreadable(&mut self, rows: u64) -> Option<Name> {
        let guards =
            self.slots.iter_mut().filter_map(|slot| slot.cannot_see(rows).then(|| slot.plugin_name()));
        // Each of them counts it.
        guards.collect::<Vec<_>>().into_iter().next()
    }

    /// Ends the requests of rows that cannot be read, where some plugin must judge them.
    #[cold]
    fn refuse_unread(&mut self, output: &mut ChainOutput) {
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

    /// Calls those behind the plugin with which rows had waited that go on by themselves.
    pub fn run_released(
        &mut self,
        output: &mut ChainOutput,
        plugin: &str,
        held_rows: &mut HeldRows,
        ledger: &Ledger,
        now: Timestamp,
    ) {
        // One that is no more had nobody known behind it.
        if let Some(slot) = self.place(plugin) {
            for (row, released) in output.accounted().rows().iter().zip(output.released()) {
                let rid = ledger.request(row.slot).map_or("", |(rid, _)| rid);
                let (why, held) = (released.why, &released.held);
                self.slots[slot].tell_hold_ended(why, rid, held.received.rows, held.tokens.into());
            }
            if self.slots[slot].terminates() {
                holding::terminate_lost(output, plugin);
            }
            self.ask(output, slot + 1, held_rows, ledger, now);
            self.close(output, ledger, now);
        }
    }

    /// What waits with an instance that is gone, or with a plugin that is, is to go on.
    pub fn end_lost_holds(&mut self, held_rows: &mut HeldRows) {
        if held_rows.is_empty() {
            return;
        }
        for slot in &mut self.slots {
            slot.end_lost(held_rows);
        }
        held_rows.end_missing(self.slots.iter().map(PluginSlot::name));
    }

    /// Calls each plugin, from this one on.
    fn ask(
        &mut self,
        output: &mut ChainOutput,
        first: usize,
        held_rows: &mut HeldRows,
        ledger: &Ledger,
        now: Timestamp,
    ) {
        let wants = self.slots.iter().map(PluginSlot::wants).fold(ColumnSet::empty(), ColumnSet::bitor);
        self.input.show(output.accounted(), wants);
        if self.input.rows.is_empty() {
            return;
        }
        let received_at = output.accounted().persisted().at().instant;
        let begun = self.input.begun(output.accounted());
        meet(output.accounted(), ledger, &begun, &mut self.attributes);
        for index in first..self.slots.len() {
            if self.slots[index].shadow_of().is_some() {
                // It looks from the place of the one it is a shadow of.
                continue;
            }
            let Some(answer) = self.hear(index, &begun, output, held_rows, ledger, now) else { continue };
            self.slots[index].end_lost(held_rows);
            let says_nothing = match &answer {
                Answer::Unjudged => true,
                Answer::Verdicts(verdicts) => verdicts.is_empty(),
                Answer::Ended(_) => false,
            };
            if says_nothing && held_rows.is_empty() {
                continue;
            }
            output.decide();
            if self.input.tokens.is_empty() {
                self.input.count(output.accounted());
            }
            let (slot, shown) = (&mut self.slots[index], &mut self.input);
            let turn = Turn { output, input: shown, held_rows, slot, ledger, now: received_at };
            match answer {
                Answer::Unjudged => turn.take(Vec::new()),
                Answer::Verdicts(verdicts) => turn.take(verdicts),
                Answer::Ended(message) => turn.end(&message),
            }
            if index + 1 < self.slots.len() {
                self.input.rebuild(output);
            }
        }
        // The journal wants rows in order; the chain's order within a row stays.
        output.verdicts.sort();
    }

    /// Calls one plugin, and its shadows in its place. `None`: nothing is to be done.
    fn hear(
        &mut self,
        index: usize,
        begun: &[u32],
        output: &ChainOutput,
        held_rows: &HeldRows,
        ledger: &Ledger,
        now: Timestamp,
    ) -> Option<Answer> {
        let context = ChainContext { ledger, attributes: &self.attributes, now };
        let accounted = output.accounted();
        let opened: Vec<Opened<'_>> = opened(accounted, ledger, begun);
        if self.input.rows.is_empty() && opened.is_empty() {
            return None;
        }
        let wants = self.wants_at(index);
        let texts = if wants.contains(ColumnSet::TEXTS) { self.input.texts(output) } else { Vec::new() };
        let waiting = match wants.contains(ColumnSet::WAITING) {
            true => self.input.waiting(held_rows, self.slots[index].name()),
            false => Vec::new(),
        };
        let columns = Columns { texts: &texts, waiting: &waiting, ..self.input.columns() };
        let answer = self.slots[index].run(&opened, &columns, accounted, context);
        let rid = |row: u32| {
            let row = *self.input.rows.get(row as usize)?;
            Some(ledger.request(accounted.rows()[row as usize].slot)?.0)
        };
        if self.slots[index].is_shadow() {
            self.slots[index].compare(&answer, &[], rid);
            return None;
        }
        let said = match &answer {
            Answer::Verdicts(verdicts) => &verdicts[..],
            Answer::Unjudged | Answer::Ended(_) => &[],
        };
        for shadow in 0..self.slots.len() {
            if self.slots[shadow].shadow_of() == Some(self.slots[index].name()) {
                let slot = &mut self.slots[shadow];
                let answer = slot.run(&opened, &columns, accounted, context);
                slot.compare(&answer, said, rid);
            }
        }
        Some(answer)
    }

    /// What a plugin and its shadows want to see.
    fn wants_at(&self, index: usize) -> ColumnSet {
        let slot = &self.slots[index];
        let shadows = self.slots.iter().filter(|shadow| shadow.shadow_of() == Some(slot.name()));
        shadows.map(PluginSlot::wants).fold(slot.wants(), ColumnSet::bitor)
    }

    /// Tells each plugin of the requests that have ended with this batch.
    fn close(&mut self, output: &ChainOutput, ledger: &Ledger, now: Timestamp) {
        let (accounted, decisions) = (output.accounted(), &output.decisions);
        if !accounted.any().may_close && decisions.is_empty() {
            return;
        }
        let ended = |(index, row): &(usize, &Row)| {
            let by_scheduler = row.finish != FinishKind::Running && !accounted.is_released();
            by_scheduler || decisions.get(*index).is_some_and(|decision| decision.finish.is_some())
        };
        let ended = accounted.rows().iter().enumerate().filter(ended).filter(|(_, row)| !row.hidden);
        let closed: Vec<u64> = ended.map(|(_, row)| row.number).collect();
        self.close_requests(&closed, ledger, now);
    }

    /// Tells each plugin of requests that will have no more rows.
    pub fn close_requests(&mut self, closed: &[u64], ledger: &Ledger, now: Timestamp) {
        if !closed.is_empty() {
            let context = ChainContext { ledger, attributes: &self.attributes, now };
            self.slots.iter_mut().for_each(|slot| slot.close(closed, context));
            self.attributes.forget(closed);
        }
    }

    /// Starts a fresh instance of each plugin that faulted when requests were closed. Called when the ledger no longer has
    /// these requests, so that the fresh instance is not told of them.
    pub fn restart_after_close(&mut self, ledger: &Ledger, now: Timestamp) {
        let context = ChainContext { ledger, attributes: &self.attributes, now };
        self.slots.iter_mut().for_each(|slot| slot.restart_after_close(context));
    }
}

/// What is known of the requests that begin in this batch.
fn meet(accounted: &Accounted, ledger: &Ledger, begun: &[u32], attributes: &mut RequestAttributes) {
    for row in begun {
        let Some((rid, request)) = ledger.request(accounted.rows()[*row as usize].slot) else { continue };
        attributes.meet(rid, request);
    }
}

/// The requests that begin with these rows.
fn opened<'l>(accounted: &'l Accounted, ledger: &'l Ledger, begun: &[u32]) -> Vec<Opened<'l>> {
    let slots = begun.iter().map(|row| accounted.rows()[*row as usize].slot);
    let begun = |slot| ledger.request(slot).map(|(rid, request)| resumed::begun(rid, request, ledger));
    slots.filter_map(begun).collect()
}
