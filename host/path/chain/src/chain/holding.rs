//! Holds and releases: a plugin's verdicts about rows that it holds or is to hold.
//!
//! One [`Turn`] per plugin and batch. A held row leaves the batch. A row with which held rows are released represents all of
//! them in the batch, and the plugins after this one see it so.

use super::ChainInput;
use crate::slot::{PluginSlot, RequestEnd};
use afterbay_batch::hold::{HeldRows, HoldState};
use afterbay_batch::ledger::{ABORTED, Ledger};
use afterbay_batch::{ChainOutput, Destination, HeldRow, ReleasedRow, RowContent, failed, hold_end_words};
use afterbay_events::HoldEnd;
use afterbay_journal::{self as journal, JournalRequest, PluginAction, StoredReplacement};
use afterbay_runtime::{Action, Ending, IdShape, Replacement, Verdict};
use afterbay_wire::{Edit, FinishKind, FinishReason, TokenEdit};
use std::borrow::Cow;
use std::time::{Duration, Instant};

/// The reason of the drop of a row that arrived after a plugin had decided to end its request.
const ENDED: &str = "arrived after the end of the request";

/// The part of a verdict that is about held rows.
enum HoldVerdict {
    None,
    Hold(u32),
    Release,
    ReleaseAs(Replacement),
    ReleaseAndHold(u32),
}

/// Aborts the requests of rows that an instance held before it was lost: the plugin has not judged them.
pub(super) fn terminate_lost(output: &mut ChainOutput, plugin: &str) {
    let is_lost = |row: &&ReleasedRow| matches!(row.why, HoldEnd::Instance | HoldEnd::Start);
    let lost: Vec<u32> = output.released().iter().filter(is_lost).map(|released| released.row).collect();
    for row in lost {
        output.terminate(row, plugin, &not_released(plugin));
    }
}

/// Ends requests with their released rows, as the plugin decided between two batches. The rows are not applied to requests of
/// which the plugin still holds rows: these are the rows before the end.
pub(super) fn apply_ends(
    output: &mut ChainOutput,
    input: &mut ChainInput,
    slot: &mut PluginSlot,
    held_rows: &HeldRows,
) {
    if !slot.has_ends() {
        return;
    }
    output.decide();
    if input.tokens.is_empty() {
        input.count(output.accounted());
    }
    let shape = slot.writes();
    for seen in 0..input.rows.len() {
        let (row, request) = (input.rows[seen], input.requests[seen]);
        if held_rows.entries(request, slot.name()) > 0 {
            continue;
        }
        match slot.take_end(request) {
            None => {}
            Some(RequestEnd::Terminate(message)) => output.terminate(row, slot.name(), &message),
            Some(RequestEnd::Finish(ending)) => {
                let verdict = Verdict { row: seen as u32, action: Action::Finish(ending) };
                let ChainOutput { decisions, verdicts, .. } = &mut *output;
                input.apply(verdict, shape, slot.name(), decisions, verdicts);
            }
        }
    }
    output.verdicts.sort();
}

fn not_released(plugin: &str) -> String {
    format!("afterbay: plugin {plugin:?} did not release what it held")
}

/// The application of one plugin's answer to a batch.
pub(super) struct Turn<'a> {
    /// The held rows that are released with rows of the batch, not yet joined.
    pub(super) releases: Vec<Release>,
    pub(super) output: &'a mut ChainOutput,
    pub(super) input: &'a mut ChainInput,
    pub(super) held_rows: &'a mut HeldRows,
    pub(super) slot: &'a mut PluginSlot,
    pub(super) ledger: &'a Ledger,
    pub(super) now: Instant,
}

/// The held rows of a request and the row with which they are released.
pub(super) struct Release {
    at: SeenRow,
    rows: Vec<HeldRow>,
    why: HoldEnd,
}

/// A row of the batch that the plugin saw.
#[derive(Clone, Copy)]
struct SeenRow {
    /// The index among the rows that the plugin saw.
    seen: usize,
    /// The index in the batch.
    row: u32,
    /// The number of the request.
    request: u64,
}

impl Turn<'_> {
    fn seen_row(&self, seen: usize) -> SeenRow {
        SeenRow { seen, row: self.input.rows[seen], request: self.input.requests[seen] }
    }

    /// Applies the verdicts, and decides for each other row whether it joins the held rows of its request.
    pub(super) fn apply_verdicts(mut self, verdicts: Vec<Verdict>) {
        let shape = self.slot.writes();
        let holds_rows = !self.held_rows.is_empty() && self.held_rows.has_any_of(self.slot.name());
        let has_ends = self.slot.has_ends();
        let mut verdicts = verdicts.into_iter().peekable();
        for seen in 0..self.input.rows.len() {
            if verdicts.peek().is_none() && !holds_rows && !has_ends {
                break;
            }
            let verdict = verdicts.next_if(|verdict| verdict.row as usize == seen);
            if has_ends && let Some(end) = self.slot.take_end(self.input.requests[seen]) {
                self.end_request(self.seen_row(seen), end, shape);
                continue;
            }
            let hold_verdict = match verdict.map(|verdict| verdict.action) {
                None => HoldVerdict::None,
                Some(Action::Hold(millis)) => HoldVerdict::Hold(millis),
                Some(Action::Release) => HoldVerdict::Release,
                Some(Action::ReleaseAs(replacement)) => HoldVerdict::ReleaseAs(replacement),
                Some(Action::ReleaseAndHold(millis)) => HoldVerdict::ReleaseAndHold(millis),
                Some(Action::Finish(Ending { reason, replacement: Some(replacement) }))
                    if self.holds(self.seen_row(seen)) =>
                {
                    // The row is now the last, so that the replaced rows leave with it.
                    self.apply(seen, Action::Finish(Ending { reason, replacement: None }), shape);
                    HoldVerdict::ReleaseAs(replacement)
                }
                Some(action) => {
                    self.apply(seen, action, shape);
                    HoldVerdict::None
                }
            };
            self.apply_hold_verdict(self.seen_row(seen), hold_verdict, shape);
        }
        self.join_releases();
    }

    /// Whether the plugin holds rows of the request.
    fn holds(&self, at: SeenRow) -> bool {
        self.held_rows.state(at.request, self.slot.name(), self.now) != HoldState::None
    }

    /// Ends a request with this row, as the plugin decided between two batches. The rows that the plugin holds become the last
    /// row, and the tokens of this row, which arrived after the decision, are dropped.
    fn end_request(&mut self, at: SeenRow, end: RequestEnd, shape: IdShape) {
        let ending = match end {
            RequestEnd::Terminate(message) => return self.terminate_row(at, &message),
            RequestEnd::Finish(ending) => ending,
        };
        if self.holds(at)
            && let Err(why) = self.release_without_row(at, shape)
        {
            // The held rows cannot join this row. They are swallowed, because they come after the request's last row.
            self.report_hold_refused(why);
        }
        self.apply(at.seen, Action::Finish(ending), shape);
    }

    /// Drops the tokens of this row, and releases the held rows of the request in its place. The error is a sentence for the
    /// operator; the held rows stay.
    fn release_without_row(&mut self, at: SeenRow, shape: IdShape) -> Result<(), String> {
        self.apply(at.seen, Action::Drop(ENDED.to_owned()), shape);
        let own = self.output.to_held_row(at.row)?;
        let entries = self.held_rows.entries(at.request, self.slot.name());
        let mut all = self.held_rows.remove(at.request, self.slot.name(), usize::MAX);
        all.push(own);
        let joined = HeldRow::join(&all);
        let held = match joined {
            Ok(held) => held,
            Err(error) => {
                all.pop();
                self.hold_taken(at, all);
                return Err(error);
            }
        };
        self.report_hold_ended(HoldEnd::Verdict, at.row, &held);
        self.record(at.row, journal::Verdict::Release, "", vec![entries as i64], held.tokens);
        self.put_released(at, held, HoldEnd::Verdict);
        Ok(())
    }

    /// Applies a verdict that concerns only this row.
    fn apply(&mut self, seen: usize, action: Action, shape: IdShape) {
        let verdict = Verdict { row: seen as u32, action };
        let ChainOutput { decisions, verdicts, .. } = &mut *self.output;
        self.input.apply(verdict, shape, self.slot.name(), decisions, verdicts);
    }

    /// Aborts all requests of the batch, and drops their held rows: the plugin did not judge the batch.
    pub(super) fn terminate(mut self, message: &str) {
        for seen in 0..self.input.rows.len() {
            self.terminate_row(self.seen_row(seen), message);
        }
    }

    fn terminate_row(&mut self, at: SeenRow, message: &str) {
        if self.holds(at) {
            // Held rows are released with a last row, whether the text is whole or not.
            let finish = self.output.decisions[at.row as usize].finish.clone();
            self.output.decisions[at.row as usize].finish.get_or_insert_with(|| failed(message));
            self.release_as_one(at, HoldEnd::Instance);
            self.join_releases();
            self.output.decisions[at.row as usize].finish = finish;
        }
        self.output.terminate(at.row, self.slot.name(), message);
    }

    fn handle(&self, row: u32) -> Option<JournalRequest> {
        self.output.accounted().rows().get(row as usize).map(|row| row.request)
    }

    fn apply_hold_verdict(&mut self, at: SeenRow, verdict: HoldVerdict, shape: IdShape) {
        let state = self.held_rows.state(at.request, self.slot.name(), self.now);
        if matches!(state, HoldState::Ended(HoldEnd::Instance | HoldEnd::Start)) && self.slot.is_guard() {
            return self.terminate_row(at, &not_released(self.slot.name()));
        }
        if matches!(self.output.decisions[at.row as usize].destination, Some(Destination::To(_))) {
            return self.apply_to_routed_row(at, verdict, state);
        }
        let holds_last = matches!(verdict, HoldVerdict::Hold(_) | HoldVerdict::ReleaseAndHold(_))
            && self.may_hold_last(at.row);
        match (verdict, state) {
            (HoldVerdict::None | HoldVerdict::Release, HoldState::None) => {}
            (HoldVerdict::ReleaseAs(replacement), HoldState::None) => {
                self.apply(at.seen, Action::Replace(replacement), shape);
            }
            (HoldVerdict::Hold(millis) | HoldVerdict::ReleaseAndHold(millis), HoldState::None) => {
                self.hold_first(at, millis);
            }
            (HoldVerdict::ReleaseAs(replacement), _) => self.release_as(at, replacement, shape),
            (HoldVerdict::Release, _) => self.release(at, HoldEnd::Verdict),
            (_, _) if self.is_last(at.row) && !holds_last => self.release(at, HoldEnd::Last),
            (
                HoldVerdict::ReleaseAndHold(millis),
                HoldState::Held | HoldState::Released | HoldState::Ended(HoldEnd::Time),
            )
            // The time of the held rows is over, but not that of this row.
            | (HoldVerdict::Hold(millis), HoldState::Ended(HoldEnd::Time)) => {
                self.held_rows.release_now(at.request, self.slot.name(), self.now);
                self.hold_next(at, Some(millis));
            }
            (_, HoldState::Ended(why)) => self.release(at, why),
            (HoldVerdict::None, HoldState::Released) => self.release(at, HoldEnd::Verdict),
            (HoldVerdict::Hold(millis), _) => self.hold_next(at, Some(millis)),
            (HoldVerdict::None, _) => self.hold_next(at, None),
        }
    }

    /// Applies a verdict to a row that goes to another sink than the held rows of its request: the row neither waits for them
    /// nor joins them.
    fn apply_to_routed_row(&mut self, at: SeenRow, verdict: HoldVerdict, state: HoldState) {
        if let HoldVerdict::Hold(_) | HoldVerdict::ReleaseAndHold(_) = verdict {
            self.report_hold_refused("it goes to another sink".to_owned());
        }
        let end = match verdict {
            _ if state == HoldState::None => return,
            HoldVerdict::Release | HoldVerdict::ReleaseAs(_) | HoldVerdict::ReleaseAndHold(_) => {
                HoldEnd::Verdict
            }
            _ if self.is_last(at.row) => HoldEnd::Last,
            _ => return,
        };
        self.held_rows.end_request(at.request, self.slot.name(), end);
    }

    /// Whether no later row of the request can release this row.
    fn is_last(&self, row: u32) -> bool {
        let Some(accounted) = self.output.accounted().rows().get(row as usize) else { return true };
        accounted.finish != FinishKind::Running
            || self.output.decisions[row as usize].finish.is_some()
            || self.ledger.is_aborted_row(accounted)
    }

    /// Whether the plugin can release this row later if the row is its request's last. A request that the operator aborts does
    /// not wait.
    fn may_hold_last(&self, row: u32) -> bool {
        self.slot.may_hold_last_rows() && !self.is_aborted(row)
    }

    /// Whether the operator has ended the request with this row.
    fn is_aborted(&self, row: u32) -> bool {
        let accounted = self.output.accounted().rows().get(row as usize);
        accounted.is_none_or(|row| self.ledger.is_aborted_row(row))
    }

    /// Copies the row with the chain's changes so far. If a plugin or the operator has ended the request with the row, the copy
    /// has the finish reason.
    fn to_held_row(&self, at: SeenRow) -> Result<HeldRow, String> {
        let mut own = self.output.to_held_row(at.row)?;
        let decided = self.output.decisions[at.row as usize].finish.clone();
        let aborted = || FinishReason::Stop(ABORTED.to_owned());
        if let Some(finish) = decided.or_else(|| self.is_aborted(at.row).then(aborted)) {
            let received = own.received;
            own.edit(Edit { finish: Some(finish), ..Edit::new(0) }, received)?;
        }
        Ok(own)
    }

    /// Holds a row of a request of which the plugin holds no row.
    fn hold_first(&mut self, at: SeenRow, millis: u32) {
        let time = self.slot.capped_hold_time(millis);
        let held = match self.is_last(at.row) && !self.may_hold_last(at.row) {
            true => Err("it is the request's last row".to_owned()),
            false => self.to_held_row(at),
        };
        let checked = held.and_then(|held| {
            self.held_rows.check(&held)?;
            self.held_rows.check_room(at.request, self.slot.name(), &held)?;
            Ok(held)
        });
        match checked {
            Ok(held) => self.hold(at, held, time, format!("for at most {} ms", time.as_millis())),
            Err(why) => self.report_hold_refused(why),
        }
    }

    /// Holds a row behind held rows of its request, or releases all of them if it cannot be held.
    fn hold_next(&mut self, at: SeenRow, millis: Option<u32>) {
        let time = millis.map_or(Duration::ZERO, |millis| self.slot.capped_hold_time(millis));
        let held = match self.to_held_row(at) {
            Ok(held) => held,
            Err(why) => return self.release_apart(at, why),
        };
        match self.held_rows.check_room(at.request, self.slot.name(), &held) {
            Ok(()) => self.hold(at, held, time, "behind held rows"),
            Err(why) => {
                self.report_hold_refused(why);
                self.release(at, HoldEnd::Room);
            }
        }
    }

    fn hold(&mut self, at: SeenRow, held: HeldRow, time: Duration, why: impl Into<Cow<'static, str>>) {
        let Some(request) = self.handle(at.row) else { return };
        self.held_rows.hold(request, self.slot.name(), held, self.now + time);
        self.record(at.row, journal::Verdict::Hold, why, Vec::new(), 0);
        self.reset_content(at.row);
        self.output.hold_row(at.row);
    }

    /// Marks the row's content as unchanged: the chain's changes are in the held or released row.
    fn reset_content(&mut self, row: u32) {
        let decision = &mut self.output.decisions[row as usize];
        (decision.content, decision.text) = (RowContent::Unchanged, None);
    }

    /// Releases the held rows of the request and this row: as one row, or one by one for a reader of single rows. The rows of a
    /// request that the operator aborts do not wait for frames of their own.
    fn release(&mut self, at: SeenRow, why: HoldEnd) {
        if !self.held_rows.leave_singly() || self.is_aborted(at.row) {
            return self.release_as_one(at, why);
        }
        let own = match self.to_held_row(at) {
            Ok(own) => own,
            Err(error) => return self.release_apart(at, error),
        };
        self.hold_released(at, own, "row by row", why);
        if why == HoldEnd::Verdict {
            self.held_rows.release_now(at.request, self.slot.name(), self.now);
        }
    }

    /// Holds this row behind the held rows of its request, which all leave for this reason as soon as they can. `how` says when,
    /// for the journal.
    fn hold_released(&mut self, at: SeenRow, own: HeldRow, how: &str, why: HoldEnd) {
        let text = match why {
            HoldEnd::Verdict => format!("released, {how}"),
            why => format!("{how}, {}", hold_end_words(why)),
        };
        // The bounds do not matter: a marker, the next row or the deadline releases this row.
        self.hold(at, own, Duration::ZERO, text);
        match why {
            HoldEnd::Verdict => self.held_rows.release(at.request, self.slot.name()),
            why => self.held_rows.end_request(at.request, self.slot.name(), why),
        }
    }

    /// Releases the held rows of the request together with this row. In front of a detokenizer, all of them stay held until the
    /// text is whole, unless this row is the last.
    fn release_as_one(&mut self, at: SeenRow, why: HoldEnd) {
        let own = match self.output.to_held_row(at.row) {
            Ok(own) => own,
            Err(error) => return self.release_apart(at, error),
        };
        let may_leave =
            self.is_last(at.row) || self.held_rows.is_whole_with(at.request, self.slot.name(), &own);
        if !may_leave {
            return self.hold_released(at, own, "until the text is whole", why);
        }
        let mut rows = self.held_rows.remove(at.request, self.slot.name(), usize::MAX);
        rows.push(own);
        self.releases.push(Release { at, rows, why });
    }

    /// Joins the rows of all releases so far: together, because rows of the same frames cost little more than one of them.
    fn join_releases(&mut self) {
        let releases = std::mem::take(&mut self.releases);
        let requests: Vec<&[HeldRow]> = releases.iter().map(|release| &release.rows[..]).collect();
        if requests.is_empty() {
            return;
        }
        let joined: Vec<Result<HeldRow, String>> = match HeldRow::join_all(&requests) {
            Ok(joined) => joined.into_iter().map(Ok).collect(),
            Err(_) => requests.iter().map(|rows| HeldRow::join(rows)).collect(),
        };
        for (Release { at, rows, why }, joined) in releases.into_iter().zip(joined) {
            match joined {
                Ok(held) => {
                    self.report_hold_ended(why, at.row, &held);
                    let ids = vec![rows.len() as i64 - 1];
                    self.record(at.row, journal::Verdict::Release, hold_end_words(why), ids, held.tokens);
                    self.put_released(at, held, why);
                }
                Err(error) => self.return_and_release_apart(at, rows, error),
            }
        }
    }

    /// Releases the held rows of the request and this row with other tokens.
    fn release_as(&mut self, at: SeenRow, replacement: Replacement, shape: IdShape) {
        let own = match self.output.to_held_row(at.row) {
            Ok(own) => own,
            Err(error) => return self.release_apart(at, error),
        };
        let entries = self.held_rows.entries(at.request, self.slot.name());
        let released = self.held_rows.released_entries(at.request, self.slot.name());
        let mut all = self.held_rows.remove(at.request, self.slot.name(), usize::MAX);
        all.push(own);
        let (tokens_before, held, ids) = match join_with_replacement(&all, released, &replacement, shape) {
            Ok(joined) => joined,
            Err(error) => return self.return_and_release_apart(at, all, error),
        };
        self.record(at.row, journal::Verdict::Release, "", vec![entries as i64], tokens_before);
        self.report_hold_ended(HoldEnd::Verdict, at.row, &held);
        if shape == IdShape::Cumulative {
            self.put_released(at, held, HoldEnd::Verdict);
            return self.apply(at.seen, Action::Replace(replacement), shape);
        }
        let text = held.text().filter(|_| replacement.text.is_some());
        let text = text.and_then(StoredReplacement::with_text).unwrap_or_default();
        self.record(at.row, journal::Verdict::Replace, text, ids, held.tokens);
        if self.is_last(at.row) || self.held_rows.is_whole_alone(&held) {
            return self.put_released(at, held, HoldEnd::Verdict);
        }
        self.hold(at, held, self.slot.hold_limit(), "until the text is whole");
        self.held_rows.release(at.request, self.slot.name());
    }

    /// Puts the joined rows in the place of this row.
    fn put_released(&mut self, at: SeenRow, held: HeldRow, why: HoldEnd) {
        self.reset_content(at.row);
        self.input.tokens[at.seen] = held.tokens;
        let plugin = self.slot.name().clone();
        self.output.put_released(ReleasedRow { row: at.row, held, in_place: false, plugin, why });
    }

    /// Holds the rows again that were taken, but for the last, which is this row.
    fn return_and_release_apart(&mut self, at: SeenRow, mut taken: Vec<HeldRow>, why: String) {
        taken.pop();
        self.hold_taken(at, taken);
        self.release_apart(at, why);
    }

    /// Holds rows again that were taken.
    fn hold_taken(&mut self, at: SeenRow, taken: Vec<HeldRow>) {
        if let Some(request) = self.handle(at.row) {
            let plugin = self.slot.name().clone();
            taken.into_iter().for_each(|held| self.held_rows.hold(request, &plugin, held, self.now));
        }
    }

    /// Releases the held rows in a frame of their own, and this row in a later frame, because they cannot be joined.
    fn release_apart(&mut self, at: SeenRow, why: String) {
        self.report_hold_refused(why);
        if let Ok(own) = self.to_held_row(at) {
            self.hold(at, own, Duration::ZERO, hold_end_words(HoldEnd::Columns));
        }
        self.held_rows.end_request(at.request, self.slot.name(), HoldEnd::Columns);
    }

    fn report_hold_refused(&self, why: String) {
        self.slot.report_hold_refused(self.output.accounted().persisted().frame().0, why);
    }

    fn report_hold_ended(&self, why: HoldEnd, row: u32, held: &HeldRow) {
        let request = self.handle(row).and_then(|request| self.ledger.request(request));
        let rid = request.map_or("", |(rid, _)| rid);
        self.slot.report_hold_ended(why, rid, held.received.rows, held.tokens.into());
    }

    /// Records a verdict for the journal.
    fn record(
        &mut self,
        row: u32,
        verdict: journal::Verdict,
        text: impl Into<Cow<'static, str>>,
        ids: Vec<i64>,
        forwarded: u32,
    ) {
        let plugin = self.slot.name().to_string().into();
        let (text, ids) = (text.into(), ids.into());
        self.output.verdicts.push(PluginAction { row, plugin, verdict, text, ids, forwarded });
    }
}

/// Joins rows, and replaces the tokens of the rows from index `released` on. Returns the tokens before, the joined row and the
/// ids after. The error is a sentence for the operator.
fn join_with_replacement(
    all: &[HeldRow],
    released: usize,
    replacement: &Replacement,
    shape: IdShape,
) -> Result<(u32, HeldRow, Vec<i64>), String> {
    let tokens_before: u32 = all.iter().map(|row| row.tokens).sum();
    if shape == IdShape::Cumulative {
        return Ok((tokens_before, HeldRow::join(all)?, Vec::new()));
    }
    let mut joined = HeldRow::join(&all[released..])?;
    let received = joined.received.to_replaced();
    let tokens = TokenEdit::Delta(replacement.ids.clone());
    joined.edit(Edit { tokens, text: replacement.text.clone(), ..Edit::new(0) }, received)?;
    if released > 0 {
        joined = HeldRow::join(&[&all[..released], &[joined]].concat())?;
    }
    let mut ids = Vec::new();
    joined.ids(&mut ids);
    joined.is_joined = true;
    Ok((tokens_before, joined, ids))
}
