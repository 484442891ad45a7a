//! Rows that a plugin holds, and what goes on of them with a row of their request.
//!
//! One seat's turn: what it says of each row that it holds or is to hold. A row that waits leaves the batch; one with which
//! something goes on stands in the batch for all of that, and the seats behind see it so.

use super::ChainInput;
use crate::slot::PluginSlot;
use afterbay_batch::{
    ChainOutput, Destination, HeldRow, ReleasedRow, RequestSlot, RowContent, aborted, hold_end_words,
};
use afterbay_events::HoldEnd;
use afterbay_hold::{HeldRows, HoldState};
use afterbay_journal::{self as journal, PluginAction, StoredReplacement};
use afterbay_ledger::{ABORTED, Ledger};
use afterbay_runtime::{Action, FinishKind, IdShape, Replacement, Verdict};
use afterbay_wire::{Edit, FinishReason, TokenEdit};
use std::time::{Duration, Instant};

/// What a plugin says of a row that has to do with waiting.
enum Wish {
    /// Nothing of that kind.
    Nothing,
    Hold(u32),
    Release,
    ReleaseAs(Replacement),
    ReleaseAndHold(u32),
}

/// What an instance held that is gone goes no further, and its requests end: the plugin has not judged it.
pub(super) fn terminate_lost(output: &mut ChainOutput, plugin: &str) {
    let is_lost = |row: &&ReleasedRow| matches!(row.why, HoldEnd::Instance | HoldEnd::Start);
    let lost: Vec<u32> = output.released().iter().filter(is_lost).map(|released| released.row).collect();
    for row in lost {
        output.terminate(row, plugin, &not_released(plugin));
    }
}

fn not_released(plugin: &str) -> String {
    format!("afterbay: plugin {plugin:?} did not release what it held")
}

/// One seat's turn with rows that wait.
pub(super) struct Turn<'a> {
    pub(super) output: &'a mut ChainOutput,
    pub(super) input: &'a mut ChainInput,
    pub(super) held_rows: &'a mut HeldRows,
    pub(super) slot: &'a mut PluginSlot,
    pub(super) ledger: &'a Ledger,
    pub(super) now: Instant,
}

impl Turn<'_> {
    /// Carries out what the seat says, and what becomes of rows behind those that wait with it.
    pub(super) fn take(mut self, verdicts: Vec<Verdict>) {
        let shape = self.slot.writes();
        let waits = !self.held_rows.is_empty() && self.held_rows.has_any_of(self.slot.name());
        let mut verdicts = verdicts.into_iter().peekable();
        for at in 0..self.input.rows.len() {
            if verdicts.peek().is_none() && !waits {
                return;
            }
            let verdict = verdicts.next_if(|verdict| verdict.row as usize == at);
            let wish = match verdict.map(|verdict| verdict.action) {
                None => Wish::Nothing,
                Some(Action::Hold(millis)) => Wish::Hold(millis),
                Some(Action::Release) => Wish::Release,
                Some(Action::ReleaseAs(replacement)) => Wish::ReleaseAs(replacement),
                Some(Action::ReleaseAndHold(millis)) => Wish::ReleaseAndHold(millis),
                Some(action) => {
                    self.apply(at, action, shape);
                    Wish::Nothing
                }
            };
            self.row(at, wish, shape);
        }
    }

    /// Enters a verdict that is of this row only.
    fn apply(&mut self, at: usize, action: Action, shape: IdShape) {
        let verdict = Verdict { row: at as u32, action };
        let ChainOutput { decisions, verdicts, .. } = &mut *self.output;
        self.input.apply(verdict, shape, self.slot.name(), decisions, verdicts);
    }

    /// The seat has not judged the batch, and nothing is to go on that it has not: neither what waits with it.
    pub(super) fn end(mut self, message: &str) {
        for at in 0..self.input.rows.len() {
            self.end_row(at, message);
        }
    }

    fn end_row(&mut self, at: usize, message: &str) {
        let (row, number) = (self.input.rows[at], self.input.requests[at]);
        if self.held_rows.state(number, self.slot.name(), self.now) != HoldState::None {
            // With a last row what waits goes on whatever the text.
            let finish = self.output.decisions[row as usize].finish.clone();
            self.output.decisions[row as usize].finish.get_or_insert_with(|| aborted(message));
            self.go_on(at, row, number, HoldEnd::Instance);
            self.output.decisions[row as usize].finish = finish;
        }
        self.output.terminate(row, self.slot.name(), message);
    }

    fn slot(&self, row: u32) -> Option<RequestSlot> {
        self.output.accounted().rows().get(row as usize).map(|row| row.slot)
    }

    fn row(&mut self, at: usize, wish: Wish, shape: IdShape) {
        let row = self.input.rows[at];
        let number = self.input.requests[at];
        let waits = self.held_rows.state(number, self.slot.name(), self.now);
        if let (HoldState::Ended(HoldEnd::Instance | HoldEnd::Start), true) = (waits, self.slot.terminates())
        {
            return self.end_row(at, &not_released(self.slot.name()));
        }
        if matches!(self.output.decisions[row as usize].destination, Some(Destination::To(_))) {
            return self.elsewhere(row, number, wish, waits);
        }
        match (wish, waits) {
            (Wish::Nothing | Wish::Release, HoldState::None) => {}
            (Wish::ReleaseAs(replacement), HoldState::None) => {
                self.apply(at, Action::Replace(replacement), shape);
            }
            (Wish::Hold(millis) | Wish::ReleaseAndHold(millis), HoldState::None) => {
                self.begin(row, number, millis);
            }
            (Wish::ReleaseAs(replacement), _) => self.release_as(at, row, number, replacement, shape),
            (Wish::Release, _) => self.go_on(at, row, number, HoldEnd::Verdict),
            (_, _) if self.is_last(row) => self.go_on(at, row, number, HoldEnd::Last),
            (
                Wish::ReleaseAndHold(millis),
                HoldState::Held | HoldState::Released | HoldState::Ended(HoldEnd::Time),
            ) => {
                self.held_rows.release_now(number, self.slot.name(), self.now);
                self.behind(at, row, number, Some(millis));
            }
            (_, HoldState::Ended(why)) => self.go_on(at, row, number, why),
            (Wish::Nothing, HoldState::Released) => self.go_on(at, row, number, HoldEnd::Verdict),
            (Wish::Hold(millis), _) => self.behind(at, row, number, Some(millis)),
            (Wish::Nothing, _) => self.behind(at, row, number, None),
        }
    }

    /// The row goes to another sink than those that wait: not behind them, and not with them.
    fn elsewhere(&mut self, row: u32, number: u64, wish: Wish, waits: HoldState) {
        if let Wish::Hold(_) | Wish::ReleaseAndHold(_) = wish {
            let frame = self.output.accounted().persisted().frame().0;
            self.slot.tell_not_held(frame, "it goes to another sink".to_owned());
        }
        match wish {
            _ if waits == HoldState::None => {}
            Wish::Release | Wish::ReleaseAs(_) | Wish::ReleaseAndHold(_) => {
                self.held_rows.end_request(number, self.slot.name(), HoldEnd::Verdict);
            }
            _ if self.is_last(row) => self.held_rows.end_request(number, self.slot.name(), HoldEnd::Last),
            _ => {}
        }
    }

    /// No row of the request comes after it that could release it.
    fn is_last(&self, row: u32) -> bool {
        let Some(accounted) = self.output.accounted().rows().get(row as usize) else { return true };
        accounted.finish != FinishKind::Running
            || self.output.decisions[row as usize].finish.is_some()
            || self.ledger.is_aborted_row(accounted)
    }

    /// How long the plugin may hold a row that it wants to for so long.
    fn time(&mut self, millis: u32) -> Duration {
        let (wanted, limit) = (Duration::from_millis(millis.into()), self.slot.hold_limit());
        if wanted > limit {
            self.slot.tell_cut(millis);
        }
        wanted.min(limit)
    }

    /// Nothing of the request waits with the seat, and this row is to.
    fn begin(&mut self, row: u32, number: u64, millis: u32) {
        let time = self.time(millis);
        let held = match self.is_last(row) {
            true => Err("it is the request's last row".to_owned()),
            false => self.output.to_held_row(row),
        };
        let checked = held.and_then(|held| {
            self.held_rows.check(&held)?;
            self.held_rows.check_room(number, self.slot.name(), &held)?;
            Ok(held)
        });
        match checked {
            Ok(held) => self.wait(row, number, held, time, format!("for at most {} ms", time.as_millis())),
            Err(why) => self.slot.tell_not_held(self.output.accounted().persisted().frame().0, why),
        }
    }

    /// The row waits behind those that the seat holds.
    fn behind(&mut self, at: usize, row: u32, number: u64, millis: Option<u32>) {
        let time = millis.map_or(Duration::ZERO, |millis| self.time(millis));
        let held = self.output.to_held_row(row).and_then(|held| {
            // What could not go on as one row is not to wait as several.
            self.held_rows.check_join(number, self.slot.name(), &held)?;
            Ok(held)
        });
        let held = match held {
            Ok(held) => held,
            Err(why) => return self.break_up(row, number, why),
        };
        match self.held_rows.check_room(number, self.slot.name(), &held) {
            Ok(()) => {
                let text = "behind what waits".to_owned();
                self.wait(row, number, held, time, text);
            }
            Err(why) => {
                self.slot.tell_not_held(self.output.accounted().persisted().frame().0, why);
                self.go_on(at, row, number, HoldEnd::Room);
            }
        }
    }

    fn wait(&mut self, row: u32, number: u64, held: HeldRow, time: Duration, text: String) {
        let Some(slot) = self.slot(row) else { return };
        self.held_rows.hold(number, slot, &self.slot.plugin_name(), held, self.now + time);
        self.said(row, journal::Verdict::Hold, text, Vec::new(), 0);
        self.as_it_came(row);
        self.output.hold_row(row);
    }

    /// What the chain has made of the row's contents is in what stands for it now.
    fn as_it_came(&mut self, row: u32) {
        let decision = &mut self.output.decisions[row as usize];
        (decision.content, decision.text) = (RowContent::Unchanged, None);
    }

    /// What waits goes on as it came, with this row last; or they wait together until the text is whole.
    fn go_on(&mut self, at: usize, row: u32, number: u64, why: HoldEnd) {
        let own = match self.output.to_held_row(row) {
            Ok(own) => own,
            Err(error) => return self.break_up(row, number, error),
        };
        let may_end = self.is_last(row) || self.held_rows.is_whole_with(number, self.slot.name(), &own.batch);
        if !may_end {
            // With room or without: the next row, or the time, takes it along.
            let text = match why {
                HoldEnd::Verdict => "released, until the text is whole".to_owned(),
                why => format!("until the text is whole, {}", hold_end_words(why)),
            };
            self.wait(row, number, own, Duration::ZERO, text);
            return match why {
                HoldEnd::Verdict => self.held_rows.release(number, self.slot.name()),
                why => self.held_rows.end_request(number, self.slot.name(), why),
            };
        }
        let entries = self.held_rows.entries(number, self.slot.name());
        let mut all = self.held_rows.take(number, self.slot.name(), usize::MAX);
        all.push(own);
        match HeldRow::join(&all) {
            Ok(held) => {
                self.tell_end(why, row, &held);
                self.said(
                    row,
                    journal::Verdict::Release,
                    hold_end_words(why).to_owned(),
                    vec![entries as i64],
                    held.tokens,
                );
                self.stand(at, row, held, why);
            }
            Err(error) => {
                all.pop();
                self.push_all(row, number, all);
                self.break_up(row, number, error);
            }
        }
    }

    /// Other tokens instead of what waits and of the row's.
    fn release_as(&mut self, at: usize, row: u32, number: u64, replacement: Replacement, shape: IdShape) {
        let own = match self.output.to_held_row(row) {
            Ok(own) => own,
            Err(error) => return self.break_up(row, number, error),
        };
        let entries = self.held_rows.entries(number, self.slot.name());
        let free = self.held_rows.released_entries(number, self.slot.name());
        let mut all = self.held_rows.take(number, self.slot.name(), usize::MAX);
        all.push(own);
        let made = match replace(&all, free, &replacement, shape) {
            Ok(made) => made,
            Err(error) => {
                all.pop();
                self.push_all(row, number, all);
                return self.break_up(row, number, error);
            }
        };
        let (joined, held, ids) = made;
        self.said(row, journal::Verdict::Release, String::new(), vec![entries as i64], joined);
        self.tell_end(HoldEnd::Verdict, row, &held);
        if shape == IdShape::Cumulative {
            self.stand(at, row, held, HoldEnd::Verdict);
            return self.apply(at, Action::Replace(replacement), shape);
        }
        let text = held.batch.text(0).filter(|_| replacement.text.is_some());
        let text = text.and_then(StoredReplacement::with_text).unwrap_or_default();
        self.said(row, journal::Verdict::Replace, text, ids, held.tokens);
        if self.is_last(row) || self.held_rows.is_whole_alone(&held.batch) {
            return self.stand(at, row, held, HoldEnd::Verdict);
        }
        self.wait(row, number, held, self.slot.hold_limit(), "until the text is whole".to_owned());
        self.held_rows.release(number, self.slot.name());
    }

    fn stand(&mut self, at: usize, row: u32, held: HeldRow, why: HoldEnd) {
        self.as_it_came(row);
        self.input.tokens[at] = held.tokens;
        let plugin = self.slot.plugin_name();
        self.output.put_released(ReleasedRow { row, held, in_place: false, plugin, why });
    }

    /// What was taken waits again, as it did.
    fn push_all(&mut self, row: u32, number: u64, rows: Vec<HeldRow>) {
        let Some(slot) = self.slot(row) else { return };
        let plugin = self.slot.plugin_name();
        rows.into_iter().for_each(|held| self.held_rows.hold(number, slot, &plugin, held, self.now));
    }

    /// The row cannot become one with what waits: that goes first, in a frame of its own, and the row in one behind it.
    fn break_up(&mut self, row: u32, number: u64, why: String) {
        self.slot.tell_not_held(self.output.accounted().persisted().frame().0, why);
        if let Ok(mut own) = self.output.to_held_row(row) {
            // It may be the last, by a plugin's word or the operator's.
            let decision = self.output.decisions[row as usize].finish.clone();
            let accounted = self.output.accounted().rows().get(row as usize);
            let ends = accounted.is_some_and(|row| self.ledger.is_aborted_row(row));
            if let Some(finish) = decision.or(ends.then(|| FinishReason::Stop(ABORTED.to_owned()))) {
                let came = own.received;
                let _stays = own.edit(Edit { finish: Some(finish), ..Edit::new(0) }, came);
            }
            self.wait(row, number, own, Duration::ZERO, hold_end_words(HoldEnd::Columns).to_owned());
        }
        self.held_rows.end_request(number, self.slot.name(), HoldEnd::Columns);
    }

    fn tell_end(&self, why: HoldEnd, row: u32, held: &HeldRow) {
        let rid = self.slot(row).and_then(|slot| self.ledger.request(slot)).map_or("", |(rid, _)| rid);
        self.slot.tell_hold_ended(why, rid, held.received.rows, held.tokens.into());
    }

    fn said(&mut self, row: u32, verdict: journal::Verdict, text: String, ids: Vec<i64>, forwarded: u32) {
        let plugin = self.slot.name().to_owned().into();
        let (text, ids) = (text.into(), ids.into());
        self.output.verdicts.push(PluginAction { row, plugin, verdict, text, ids, forwarded });
    }
}

/// All of these as one, with other tokens instead of those from entry `free` on; and how many tokens they had, and the ids
/// that they have now.
fn replace(
    all: &[HeldRow],
    free: usize,
    replacement: &Replacement,
    shape: IdShape,
) -> Result<(u32, HeldRow, Vec<i64>), String> {
    let joined: u32 = all.iter().map(|row| row.tokens).sum();
    if shape == IdShape::Cumulative {
        return Ok((joined, HeldRow::join(all)?, Vec::new()));
    }
    let mut made = HeldRow::join(&all[free..])?;
    let came = made.received.to_replaced();
    let tokens = TokenEdit::Delta(replacement.ids.clone());
    made.edit(Edit { tokens, text: replacement.text.clone(), ..Edit::new(0) }, came)?;
    let made = match free {
        0 => made,
        _ => HeldRow::join(all[..free].iter().chain([&made]))?,
    };
    let mut ids = Vec::new();
    made.batch.row_ids(0, &mut ids);
    Ok((joined, HeldRow { is_joined: true, ..made }, ids))
}
