//! The plugins of a stream: each is called once per batch, and what they say of a row composes in order.
//!
//! Owns the chain, its instances and the columns they are shown. A batch comes in accounted and goes on to be settled by
//! the ledger with each row's fate. A plugin that faults is replaced by a fresh instance; the batch it was given goes on
//! as if it had said nothing.

use crate::about::{Abouts, AttributesOf};
use crate::actions::{Actions, Said};
use crate::ledger::{Accounted, Ledger, OPERATOR};
use crate::replay::Replayed;
use crate::seat::{Answer, Seat, Wanted};
use crate::standing::Standing;
use afterbay_journal as journal;
use afterbay_runtime::signals::Snapshot;
use afterbay_runtime::{
    Action, Columns, FinishKind, IdShape, Opened, Plugin, ReloadError, Replacement, TokenId, Verdict,
};
use afterbay_wire::{FinishReason, Ids};
use std::collections::HashSet;
use std::time::Instant;

/// How the journal's text of a verdict begins whose ids are all so far.
pub(crate) const CUMULATIVE: &str = "cumulative";

/// What the chain has made of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fate {
    pub(crate) written: Written,
    /// The row's text is another.
    pub(crate) text: Option<String>,
    /// The request ends with this row.
    pub(crate) finish: Option<FinishReason>,
    /// It does not go to its reader.
    pub(crate) way: Option<Way>,
}

impl Fate {
    pub(crate) const KEEP: Fate = Fate { written: Written::AsItCame, text: None, finish: None, way: None };
}

/// What is written in place of a row's tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    AsItCame,
    Delta(Vec<TokenId>),
    Cumulative(Vec<TokenId>),
    Dropped,
}

/// Where a row goes that does not go to its reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// To the sink of this name.
    To(String),
    /// To the tokenizer, with all later rows of its request.
    PastDetokenizer,
}

/// A batch that the whole chain has seen.
pub(crate) struct Judged {
    pub(crate) accounted: Accounted,
    /// By row; empty where no plugin said anything.
    pub(crate) fates: Vec<Fate>,
    pub(crate) actions: Actions,
}

impl Judged {
    /// Makes the last row of each request that the operator has ended, as a plugin's verdict would. One that ends here by
    /// itself or by a plugin is left alone; the scheduler's own row for the abort is not.
    fn end(&mut self, ledger: &Ledger) {
        let Judged { accounted, fates, actions } = self;
        for (index, row) in accounted.rows.iter().enumerate().filter(|(_, row)| !row.swallowed) {
            let Some(matched) = ledger.ending(row.slot, row.finish) else { continue };
            if fates.get(index).is_some_and(|fate| fate.finish.is_some()) {
                continue;
            }
            if fates.is_empty() {
                fates.resize(accounted.rows.len(), Fate::KEEP);
            }
            fates[index].finish = Some(FinishReason::Stop(matched.to_owned()));
            actions.0.push(Said {
                row: index as u32,
                plugin: OPERATOR.to_owned(),
                verdict: journal::Verdict::Finish,
                text: matched.to_owned(),
                ids: Vec::new(),
                forwarded: match &fates[index].written {
                    Written::AsItCame | Written::Cumulative(_) => row.tokens,
                    Written::Delta(ids) => ids.len() as u32,
                    Written::Dropped => 0,
                },
            });
        }
        actions.0.sort_by_key(|said| said.row);
    }
}

/// The columns that the chain is shown, as the plugins before have left them.
#[derive(Default)]
struct Shown {
    /// The batch's row of each row shown; health checks and swallowed rows are left out.
    rows: Vec<u32>,
    requests: Vec<u64>,
    /// Tokens of each row, whether or not a plugin asked for the ids.
    tokens: Vec<u32>,
    ids: Ids,
    completion_tokens: Vec<u64>,
    finished: Vec<FinishKind>,
}

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
        self.abouts.refresh(number, rid);
        self.seats.iter_mut().for_each(|seat| seat.changed(number, ledger, &self.abouts));
    }

    /// A changed component takes over, or could not.
    pub(crate) fn reload(&mut self, plugin: &str, result: Result<Plugin, ReloadError>, ledger: &Ledger) {
        if let Some(seat) = self.seats.iter_mut().find(|seat| seat.name() == plugin) {
            seat.reload(result, ledger, &self.abouts);
        }
    }

    /// A shadow becomes live: in the place of the plugin it is a shadow of, which leaves the chain, else in its own.
    /// `None`: there is no plugin of that name; false: it is live already.
    pub(crate) fn promote(&mut self, plugin: &str) -> Option<bool> {
        let at = self.seats.iter().position(|seat| seat.name() == plugin)?;
        if !self.seats[at].is_shadow() {
            return Some(false);
        }
        let of = self.seats[at].shadow_of();
        let live = of.and_then(|of| self.seats.iter().position(|seat| seat.name() == of));
        let Some(live) = live else {
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
    pub(crate) fn abouts_of(&mut self, of: AttributesOf) {
        self.abouts.set_of(of);
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
        if let Some(seat) = self.seats.iter_mut().find(|seat| seat.name() == plugin) {
            seat.replayed(number, replayed, ledger, &self.abouts);
        }
    }

    /// A plugin comes out of quarantine. `None`: there is none of that name; false: it was not in quarantine.
    pub(crate) fn release(&mut self, plugin: &str, ledger: &Ledger) -> Option<bool> {
        let seat = self.seats.iter_mut().find(|seat| seat.name() == plugin)?;
        Some(seat.release(ledger, &self.abouts))
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
    pub(crate) fn judge(&mut self, accounted: Accounted, ledger: &Ledger) -> Judged {
        let mut judged = Judged { accounted, fates: Vec::new(), actions: Actions::default() };
        if !self.seats.is_empty() {
            self.ask(&mut judged, ledger);
        }
        if ledger.has_endings() {
            judged.end(ledger);
        }
        if !self.seats.is_empty() {
            self.close(&judged, ledger);
        }
        judged
    }

    /// Calls each plugin.
    fn ask(&mut self, judged: &mut Judged, ledger: &Ledger) {
        self.show(&judged.accounted);
        if self.shown.rows.is_empty() {
            return;
        }
        let accounted = &judged.accounted;
        meet(accounted, ledger, &self.shown, &mut self.abouts);
        let opened: Vec<Opened<'_>> = opened(accounted, ledger, &self.shown);
        for index in 0..self.seats.len() {
            if self.seats[index].shadow_of().is_some() {
                // It looks from the place of the one it is a shadow of.
                continue;
            }
            let wants_texts = self.seats.iter().any(|seat| seat.wants().texts);
            let texts = if wants_texts { self.shown.texts(accounted, &judged.fates) } else { Vec::new() };
            let Shown { requests, ids, completion_tokens, finished, .. } = &self.shown;
            let columns = Columns {
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
                continue;
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
            if matches!(&answer, Answer::Unjudged)
                || matches!(&answer, Answer::Verdicts(verdicts) if verdicts.is_empty())
            {
                continue;
            }
            if judged.fates.is_empty() {
                judged.fates.resize(judged.accounted.rows.len(), Fate::KEEP);
            }
            let shape = self.seats[index].writes();
            match answer {
                Answer::Unjudged => {}
                Answer::Verdicts(verdicts) => {
                    for verdict in verdicts {
                        self.shown.apply(
                            verdict,
                            shape,
                            index,
                            &self.seats,
                            &mut judged.fates,
                            &mut judged.actions,
                        );
                    }
                }
                Answer::Ended(message) => {
                    self.shown.end(
                        &message,
                        self.seats[index].name(),
                        &mut judged.fates,
                        &mut judged.actions,
                    );
                }
            }
            if index + 1 < self.seats.len() {
                self.shown.rebuild(&judged.fates);
            }
        }
        // The journal wants rows in order; the chain's order within a row stays.
        judged.actions.0.sort_by_key(|said| said.row);
    }

    /// Fills the columns from the batch as it came.
    fn show(&mut self, accounted: &Accounted) {
        let Accounted { batch, rows, .. } = accounted;
        let shown = &mut self.shown;
        shown.clear();
        let mut hidden = false;
        for (index, row) in rows.iter().enumerate() {
            if row.swallowed || batch.is_health_check(index as u32) {
                hidden = true;
                continue;
            }
            shown.rows.push(index as u32);
            shown.requests.push(row.number);
            shown.tokens.push(row.tokens);
            shown.completion_tokens.push(row.completion_tokens.unwrap_or(0));
            shown.finished.push(row.finish);
        }
        if !self.seats.iter().any(|seat| seat.wants().output_ids) {
            return;
        }
        if !hidden {
            batch.output_ids(&mut shown.ids);
            return;
        }
        for row in &shown.rows {
            batch.row_ids(*row, &mut shown.ids.values);
            shown.ids.ends.push(shown.ids.values.len() as u32);
        }
    }

    /// Tells each plugin of the requests that have ended with this batch.
    fn close(&mut self, judged: &Judged, ledger: &Ledger) {
        let ended = |row: usize| {
            judged.accounted.rows[row].finish != FinishKind::Running
                || judged.fates.get(row).is_some_and(|fate| fate.finish.is_some())
        };
        let shown = self.shown.rows.iter().zip(&self.shown.requests);
        let closed: Vec<u64> =
            shown.filter(|(row, _)| ended(**row as usize)).map(|(_, request)| *request).collect();
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

impl Shown {
    fn clear(&mut self) {
        self.rows.clear();
        self.requests.clear();
        self.tokens.clear();
        self.ids.values.clear();
        self.ids.ends.clear();
        self.completion_tokens.clear();
        self.finished.clear();
    }

    /// Each row's text as the plugins before have left it; none where rows have no text.
    fn texts<'b>(&self, accounted: &'b Accounted, fates: &'b [Fate]) -> Vec<&'b str> {
        let text = |row: &u32| {
            let fate = fates.get(*row as usize);
            let written = fate.and_then(|fate| fate.text.as_deref());
            accounted.batch.text(*row).map(|came| match fate.map(|fate| &fate.written) {
                Some(Written::Dropped) => "",
                _ => written.unwrap_or(came),
            })
        };
        self.rows.iter().map_while(text).collect()
    }

    /// Enters one verdict into its row's fate.
    fn apply(
        &mut self,
        verdict: Verdict,
        shape: IdShape,
        seat: usize,
        seats: &[Seat],
        fates: &mut [Fate],
        actions: &mut Actions,
    ) {
        let Some(row) = self.rows.get(verdict.row as usize).copied() else { return };
        let Some(fate) = fates.get_mut(row as usize) else { return };
        let tokens = self.tokens.get(verdict.row as usize).copied().unwrap_or(0);
        let mut said = Said {
            row,
            plugin: seats[seat].name().to_owned(),
            verdict: journal::Verdict::Replace,
            text: String::new(),
            ids: Vec::new(),
            forwarded: tokens,
        };
        match verdict.action {
            Action::Replace(Replacement { ids, text }) => {
                // Without one it stays as the plugins before have left it.
                fate.text = text.or(fate.text.take());
                said.forwarded = ids.len() as u32;
                fate.written = match shape {
                    IdShape::Delta => {
                        said.ids.clone_from(&ids);
                        Written::Delta(ids)
                    }
                    IdShape::Cumulative => {
                        // All ids so far stand in the journal already, in the request's rows.
                        said.forwarded = tokens;
                        said.text = format!("{CUMULATIVE}, {} ids", ids.len());
                        Written::Cumulative(ids)
                    }
                };
            }
            Action::Drop(reason) => {
                said.verdict = journal::Verdict::Drop;
                said.text = reason;
                said.forwarded = 0;
                (fate.written, fate.text) = (Written::Dropped, None);
            }
            Action::Finish(matched) => {
                said.verdict = journal::Verdict::Finish;
                said.text.clone_from(&matched);
                fate.finish = Some(FinishReason::Stop(matched));
            }
            Action::Abort(message) => {
                said.verdict = journal::Verdict::Abort;
                said.text.clone_from(&message);
                fate.finish = Some(FinishReason::Abort { message, status_code: None, err_type: None });
            }
            Action::Route(sink) => {
                said.verdict = journal::Verdict::Route;
                said.text.clone_from(&sink);
                fate.way = Some(Way::To(sink));
            }
            Action::SkipDetokenization => {
                said.verdict = journal::Verdict::SkipDetokenizing;
                fate.way = Some(Way::PastDetokenizer);
            }
            Action::Annotate(note) => {
                said.verdict = journal::Verdict::Annotate;
                said.text = note;
            }
        }
        actions.0.push(said);
    }

    /// Ends the request of every row: nothing of them goes on that `plugin` has not judged.
    fn end(&self, message: &str, plugin: &str, fates: &mut [Fate], actions: &mut Actions) {
        for row in &self.rows {
            let Some(fate) = fates.get_mut(*row as usize) else { continue };
            let mut say = |verdict| {
                let (plugin, text) = (plugin.to_owned(), message.to_owned());
                actions.0.push(Said { row: *row, plugin, verdict, text, ids: Vec::new(), forwarded: 0 });
            };
            say(journal::Verdict::Drop);
            (fate.written, fate.text) = (Written::Dropped, None);
            // A plugin before may have ended it.
            if fate.finish.is_none() {
                say(journal::Verdict::Abort);
                let message = message.to_owned();
                fate.finish = Some(FinishReason::Abort { message, status_code: None, err_type: None });
            }
        }
    }

    /// Makes the columns anew as the next plugin is to see them.
    fn rebuild(&mut self, fates: &[Fate]) {
        let before = std::mem::take(&mut self.ids);
        let mut begin = 0;
        for (shown, row) in self.rows.iter().enumerate() {
            let Some(fate) = fates.get(*row as usize) else { continue };
            match &fate.finish {
                Some(FinishReason::Stop(_)) => self.finished[shown] = FinishKind::Stop,
                Some(FinishReason::Abort { .. }) => self.finished[shown] = FinishKind::Abort,
                None => {}
            }
            // Empty where no plugin asked for ids.
            let end = before.ends.get(shown).copied().unwrap_or(0) as usize;
            let came = before.values.get(begin..end).unwrap_or_default();
            let ids = match &fate.written {
                Written::AsItCame => came,
                Written::Delta(ids) | Written::Cumulative(ids) => ids,
                Written::Dropped => &[],
            };
            if fate.written != Written::AsItCame {
                self.tokens[shown] = ids.len() as u32;
            }
            self.ids.values.extend_from_slice(ids);
            begin = end;
            self.ids.ends.push(self.ids.values.len() as u32);
        }
    }
}

/// What is known of the requests that begin in this batch.
fn meet(accounted: &Accounted, ledger: &Ledger, shown: &Shown, abouts: &mut Abouts) {
    for row in shown.rows.iter().filter(|row| accounted.rows[**row as usize].first) {
        let Some((rid, request)) = ledger.request(accounted.rows[*row as usize].slot) else { continue };
        let worker = accounted.batch.http_worker_ipc(*row).unwrap_or_default();
        abouts.meet(request.kept.number().0, rid, worker);
    }
}

/// The requests that begin in this batch.
fn opened<'l>(accounted: &'l Accounted, ledger: &'l Ledger, shown: &Shown) -> Vec<Opened<'l>> {
    let begun = shown.rows.iter().filter(|row| accounted.rows[**row as usize].first);
    begun
        .filter_map(|row| {
            let (rid, request) = ledger.request(accounted.rows[*row as usize].slot)?;
            Some(Opened {
                request: request.kept.number().0,
                rid,
                http_worker_ipc: accounted.batch.http_worker_ipc(*row).unwrap_or_default(),
                prompt_tokens: request.prompt_tokens,
                received_tokens: 0,
                resumed: false,
            })
        })
        .collect()
}
