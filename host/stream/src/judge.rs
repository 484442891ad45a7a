//! The plugins of a stream: each is called once per batch, and what they say of a row composes in order.
//!
//! Owns the chain, its instances and the columns they are shown. A batch comes in accounted and goes on to be settled by
//! the ledger with each row's fate. A plugin that faults is replaced by a fresh instance; what becomes of the batch it was
//! given, `on_fault` says.

mod holding;
mod shown;

pub(crate) use afterbay_batch::{
    ChainOutput as Judged, Decision as Fate, Destination as Way, ReleasedRow as Instead,
    RowContent as Written, aborted, not_judged, terminate,
};

use crate::about::{Abouts, AttributesOf};
use crate::actions::{Actions, Said};
use crate::columns::union;
use crate::hold::Holds;
use crate::ledger::{Accounted, Ledger, Row};
use crate::replay::Replayed;
use crate::resumed;
use crate::route::Route;
use crate::seat::{Answer, Seat, Wanted};
use crate::standing::Standing;
use afterbay_events::{self as events, Name};
use afterbay_journal as journal;
use afterbay_runtime::signals::Snapshot;
use afterbay_runtime::{
    Action, ColumnSet, Columns, Ending, FinishKind, IdShape, Opened, Plugin, ReloadError, Replacement,
    Verdict,
};
use afterbay_wire::{FinishReason, Ids};
use holding::Turn;
use shown::Shown;
use std::collections::HashSet;
use std::time::Instant;

/// The plugins of a stream, in the order of the config.
pub(crate) struct Chain {
    seats: Vec<Seat>,
    abouts: Abouts,
    shown: Shown,
}

impl Chain {
    pub(crate) fn new(seats: Vec<Seat>, abouts: Abouts) -> Chain {
        Chain { seats, abouts, shown: Shown::default() }
    }

    /// After a panic: fresh instances take over.
    pub(crate) fn restart(&mut self, ledger: &Ledger) {
        self.shown = Shown::default();
        self.seats.iter_mut().for_each(|seat| seat.after_panic(ledger, &self.abouts));
    }

    pub(crate) fn seats(&self) -> &[Seat] {
        &self.seats
    }

    /// Whether any plugin is to be told how the stream stands.
    pub(crate) fn wants_signals(&self) -> bool {
        self.seats.iter().any(Seat::wants_signals)
    }

    /// How the stream stands; `is_news`: otherwise than plugins were told last.
    pub(crate) fn stands(&mut self, snapshot: &Snapshot, is_news: bool, ledger: &Ledger) {
        for seat in self.seats.iter_mut().filter(|seat| seat.wants_signals()) {
            seat.stands(snapshot, is_news, ledger, &self.abouts);
        }
    }

    /// A live request's attributes were set anew.
    pub(crate) fn changed(&mut self, rid: &str, ledger: &Ledger) {
        let Some(number) = ledger.look(rid).live.map(|live| live.number) else { return };
        if !self.abouts.refresh(number, rid) {
            return;
        }
        self.seats.iter_mut().for_each(|seat| seat.changed(number, ledger, &self.abouts));
    }

    /// A changed component takes over, or could not.
    pub(crate) fn reload(&mut self, plugin: &str, result: Result<Plugin, ReloadError>, ledger: &Ledger) {
        if let Some(at) = self.place(plugin) {
            self.seats[at].reload(result, ledger, &self.abouts);
        }
    }

    /// Where the plugin of that name is.
    fn place(&self, plugin: &str) -> Option<usize> {
        self.seats.iter().position(|seat| seat.name() == plugin)
    }

    /// A shadow becomes live: in the place of the plugin it is a shadow of, which leaves the chain, else in its own.
    /// `None`: there is no plugin of that name; false: it is live already.
    pub(crate) fn promote(&mut self, plugin: &str) -> Option<bool> {
        let at = self.place(plugin)?;
        if !self.seats[at].is_shadow() {
            return Some(false);
        }
        let Some(live) = self.seats[at].shadow_of().and_then(|of| self.place(of)) else {
            self.seats[at].promote("no other leaves the chain".to_owned());
            return Some(true);
        };
        let left = format!("plugin {:?} has left the chain", self.seats[live].name());
        self.seats[at].promote(left);
        self.seats.swap(at, live);
        self.seats.remove(at).leave();
        Some(true)
    }

    /// How each plugin stands.
    pub(crate) fn standings(&self) -> Vec<Standing> {
        self.seats.iter().map(Seat::standing).collect()
    }

    /// What attributes requests have that begin from now on.
    pub(crate) fn abouts_of(&mut self, of: AttributesOf, ledger: &Ledger, route: &Route) {
        self.abouts.set_of(of, ledger, route);
    }

    /// Other seats in place of those there are, out of which `change` takes what stays. What it leaves comes back.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Vec<Seat>, &Abouts) -> Vec<Seat>) -> Vec<Seat> {
        let mut before = std::mem::take(&mut self.seats);
        self.seats = change(&mut before, &self.abouts);
        before
    }

    /// Whether [`Chain::wanted`] has any.
    pub(crate) fn has_wanted(&self) -> bool {
        self.seats.iter().any(Seat::has_wanted)
    }

    /// Instances that are to see what has come before they take over, each once.
    pub(crate) fn wanted(&mut self) -> Vec<Wanted> {
        let mut before = HashSet::new();
        let mut all = Vec::new();
        for seat in &mut self.seats {
            all.extend(seat.wanted().map(|wanted| Wanted { before: before.clone(), ..wanted }));
            if !seat.is_shadow() {
                before.insert(seat.name().to_owned());
            }
        }
        all
    }

    /// One of those has.
    pub(crate) fn replayed(&mut self, plugin: &str, number: u64, replayed: Replayed, ledger: &Ledger) {
        if let Some(at) = self.place(plugin) {
            self.seats[at].replayed(number, replayed, ledger, &self.abouts);
        }
    }

    /// A plugin comes out of quarantine. `None`: there is none of that name; false: it was not in quarantine.
    pub(crate) fn reinstate(&mut self, plugin: &str, ledger: &Ledger) -> Option<bool> {
        let at = self.place(plugin)?;
        Some(self.seats[at].reinstate(ledger, &self.abouts))
    }

    /// Does what is due. Between two batches only.
    pub(crate) fn tick(&mut self, now: Instant, ledger: &Ledger) {
        self.seats.iter_mut().for_each(|seat| seat.tick(now, ledger, &self.abouts));
    }

    /// When [`Chain::tick`] is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.seats.iter().filter_map(Seat::deadline).min()
    }

    /// Calls each plugin once, and composes what they say.
    pub(crate) fn judge(
        &mut self,
        accounted: Accounted,
        holds: &mut Holds,
        ledger: &Ledger,
        route: &Route,
    ) -> Judged {
        let mut judged = Judged::new(accounted);
        if !self.seats.is_empty() {
            self.ask(&mut judged, 0, holds, ledger, route);
            if judged.accounted.any.unread {
                self.refuse_unread(&mut judged);
            }
            judged.guard = judged.actions.iter().find_map(|said| self.guard(&said.plugin));
        }
        if ledger.has_endings() {
            ledger.end_aborted(&mut judged);
        }
        if !self.seats.is_empty() {
            self.close(&judged, ledger);
        }
        judged
    }

    /// The plugin of that name, if it lets nothing pass that it has not judged.
    fn guard(&self, plugin: &str) -> Option<Name> {
        let seat = self.seats.iter().find(|seat| seat.name() == plugin)?;
        seat.is_guard().then(|| seat.plugin_name())
    }

    /// Rows that cannot be read are a fault of each plugin, as `on_fault` has it: the first one that lets nothing pass that it has
    /// not judged. `None`: they pass.
    pub(crate) fn refuses(&mut self, rows: u64) -> Option<Name> {
        let guards =
            self.seats.iter_mut().filter_map(|seat| seat.cannot_see(rows).then(|| seat.plugin_name()));
        // Each of them counts it.
        guards.collect::<Vec<_>>().into_iter().next()
    }

    /// Ends the requests of rows that cannot be read, where some plugin must judge them.
    #[cold]
    fn refuse_unread(&mut self, judged: &mut Judged) {
        let rows = (0..).zip(&judged.accounted.rows);
        let unread: Vec<u32> =
            rows.filter(|(_, row)| row.unread && !row.swallowed).map(|(index, _)| index).collect();
        if unread.is_empty() {
            return;
        }
        let Some(plugin) = self.refuses(unread.len() as u64) else { return };
        judged.fates.resize(judged.accounted.rows.len(), Fate::KEEP);
        for row in unread {
            let fate = &mut judged.fates[row as usize];
            terminate(row, &not_judged(&plugin), &plugin, fate, &mut judged.actions);
        }
        judged.actions.0.sort_by_key(|said| said.row);
    }

    /// Calls those behind the plugin with which rows had waited that go on by themselves.
    pub(crate) fn judge_released(
        &mut self,
        judged: &mut Judged,
        plugin: &str,
        holds: &mut Holds,
        ledger: &Ledger,
        route: &Route,
    ) {
        // One that is no more had nobody known behind it.
        if let Some(seat) = self.place(plugin) {
            for (row, released) in judged.accounted.rows.iter().zip(&judged.instead) {
                let rid = ledger.request(row.slot).map_or("", |(rid, _)| rid);
                let (why, held) = (released.why, &released.held);
                self.seats[seat].tell_hold_ended(why, rid, held.came.rows, held.tokens.into());
            }
            if self.seats[seat].terminates() {
                holding::terminate_lost(judged, plugin);
            }
            self.ask(judged, seat + 1, holds, ledger, route);
            self.close(judged, ledger);
        }
    }

    /// What waits with an instance that is gone, or with a plugin that is, is to go on.
    pub(crate) fn end_holds(&mut self, holds: &mut Holds) {
        if holds.is_empty() {
            return;
        }
        for seat in &mut self.seats {
            seat.end_lost(holds);
        }
        holds.end_missing(self.seats.iter().map(Seat::name));
    }

    /// Calls each plugin, from this one on.
    fn ask(&mut self, judged: &mut Judged, first: usize, holds: &mut Holds, ledger: &Ledger, route: &Route) {
        let wants = self.seats.iter().map(Seat::wants).fold(ColumnSet::default(), union);
        self.shown.show(&judged.accounted, wants);
        if self.shown.rows.is_empty() {
            return;
        }
        let now = judged.accounted.kept.at.instant;
        let begun = self.shown.begun(&judged.accounted);
        meet(&judged.accounted, ledger, route, &begun, &mut self.abouts);
        for index in first..self.seats.len() {
            if self.seats[index].shadow_of().is_some() {
                // It looks from the place of the one it is a shadow of.
                continue;
            }
            let Some(answer) = self.hear(index, &begun, judged, holds, ledger) else { continue };
            self.seats[index].end_lost(holds);
            let says_nothing = match &answer {
                Answer::Unjudged => true,
                Answer::Verdicts(verdicts) => verdicts.is_empty(),
                Answer::Ended(_) => false,
            };
            if says_nothing && holds.is_empty() {
                continue;
            }
            if judged.fates.is_empty() {
                judged.fates.resize(judged.accounted.rows.len(), Fate::KEEP);
            }
            if self.shown.tokens.is_empty() {
                self.shown.count(&judged.accounted);
            }
            let (seat, shown) = (&mut self.seats[index], &mut self.shown);
            let turn = Turn { judged, shown, holds, seat, ledger, now };
            match answer {
                Answer::Unjudged => turn.take(Vec::new()),
                Answer::Verdicts(verdicts) => turn.take(verdicts),
                Answer::Ended(message) => turn.end(&message),
            }
            if index + 1 < self.seats.len() {
                self.shown.rebuild(judged);
            }
        }
        // The journal wants rows in order; the chain's order within a row stays.
        judged.actions.0.sort_by_key(|said| said.row);
    }

    /// Calls one plugin, and its shadows in its place. `None`: nothing is to be done.
    fn hear(
        &mut self,
        index: usize,
        begun: &[u32],
        judged: &Judged,
        holds: &Holds,
        ledger: &Ledger,
    ) -> Option<Answer> {
        let accounted = &judged.accounted;
        let opened: Vec<Opened<'_>> = opened(accounted, ledger, &self.abouts, begun);
        if self.shown.rows.is_empty() && opened.is_empty() {
            return None;
        }
        let wants = self.wants_at(index);
        let texts = if wants.texts { self.shown.texts(judged) } else { Vec::new() };
        let waiting = match wants.waiting {
            true => self.shown.waiting(holds, self.seats[index].name()),
            false => Vec::new(),
        };
        let Shown { requests, ids, completion_tokens, finished, .. } = &self.shown;
        let columns = Columns {
            waiting: &waiting,
            requests,
            output_ids: &ids.values,
            output_ends: &ids.ends,
            completion_tokens,
            finished,
            texts: &texts,
        };
        let answer = self.seats[index].judge(&opened, &columns, accounted, ledger, &self.abouts);
        let rid = |row: u32| {
            let row = *self.shown.rows.get(row as usize)?;
            Some(ledger.request(accounted.rows[row as usize].slot)?.0)
        };
        if self.seats[index].is_shadow() {
            self.seats[index].compare(&answer, &[], rid);
            return None;
        }
        let said = match &answer {
            Answer::Verdicts(verdicts) => &verdicts[..],
            Answer::Unjudged | Answer::Ended(_) => &[],
        };
        for shadow in 0..self.seats.len() {
            if self.seats[shadow].shadow_of() == Some(self.seats[index].name()) {
                let seat = &mut self.seats[shadow];
                let answer = seat.judge(&opened, &columns, accounted, ledger, &self.abouts);
                seat.compare(&answer, said, rid);
            }
        }
        Some(answer)
    }

    /// What a plugin and its shadows want to see.
    fn wants_at(&self, index: usize) -> ColumnSet {
        let seat = &self.seats[index];
        let shadows = self.seats.iter().filter(|shadow| shadow.shadow_of() == Some(seat.name()));
        shadows.map(Seat::wants).fold(seat.wants(), union)
    }

    /// Tells each plugin of the requests that have ended with this batch.
    fn close(&mut self, judged: &Judged, ledger: &Ledger) {
        let Judged { accounted: Accounted { rows, any, is_released, .. }, fates, .. } = judged;
        if !any.ends && fates.is_empty() {
            return;
        }
        let ended = |(index, row): &(usize, &Row)| {
            let by_scheduler = row.finish != FinishKind::Running && !is_released;
            by_scheduler || fates.get(*index).is_some_and(|fate| fate.finish.is_some())
        };
        let ended = rows.iter().enumerate().filter(ended).filter(|(_, row)| !row.unseen);
        let closed: Vec<u64> = ended.map(|(_, row)| row.number).collect();
        self.forget(&closed, ledger);
    }

    /// Tells each plugin of requests that will have no more rows.
    pub(crate) fn forget(&mut self, closed: &[u64], ledger: &Ledger) {
        if !closed.is_empty() {
            self.seats.iter_mut().for_each(|seat| seat.close(closed, ledger));
            self.abouts.forget(closed);
        }
    }

    /// Between two batches, when the ledger holds none that has ended.
    pub(crate) fn revive(&mut self, ledger: &Ledger) {
        self.seats.iter_mut().for_each(|seat| seat.revive(ledger, &self.abouts));
    }
}

/// What is known of the requests that begin in this batch.
fn meet(accounted: &Accounted, ledger: &Ledger, route: &Route, begun: &[u32], abouts: &mut Abouts) {
    for row in begun {
        let Some((rid, request)) = ledger.request(accounted.rows[*row as usize].slot) else { continue };
        abouts.meet(rid, request, route);
    }
}

/// The requests that begin with these rows.
fn opened<'l>(
    accounted: &'l Accounted,
    ledger: &'l Ledger,
    abouts: &'l Abouts,
    begun: &[u32],
) -> Vec<Opened<'l>> {
    let slots = begun.iter().map(|row| accounted.rows[*row as usize].slot);
    let begun = |slot| ledger.request(slot).map(|(rid, request)| resumed::begun(rid, request, abouts));
    slots.filter_map(begun).collect()
}
/// How a verdict is counted.
pub(crate) fn label(action: &Action) -> events::Verdict {
    match action {
        Action::Replace(_) => events::Verdict::Replace,
        Action::Drop(_) => events::Verdict::Drop,
        Action::Finish(_) => events::Verdict::Finish,
        Action::FinishAs(_) => events::Verdict::FinishAs,
        Action::Abort(_) => events::Verdict::Abort,
        Action::Annotate(_) => events::Verdict::Annotate,
        Action::Route(_) => events::Verdict::Route,
        Action::SkipDetokenization => events::Verdict::SkipDetokenization,
        Action::Hold(_) => events::Verdict::Hold,
        Action::Release => events::Verdict::Release,
        Action::ReleaseAs(_) => events::Verdict::ReleaseAs,
        Action::ReleaseAndHold(_) => events::Verdict::ReleaseAndHold,
    }
}
