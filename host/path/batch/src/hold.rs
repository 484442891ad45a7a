//! The rows that plugins hold, and which of them are released together.
//!
//! Owns each held row, as a batch of one row with the changes of the plugins before, from its hold to its release. The held
//! rows of a request stay in order and leave as one row, or one by one for a reader of single rows. In front of a detokenizer
//! the row ends only where the text is whole; this crate tracks the text. The chain decides which rows are held, and the ledger
//! counts them.

mod recover;
mod times;

use crate::outbox::{JoinEnds, Joins};
use crate::{HeldRow, RequestSlot};
use afterbay_events::{HoldEnd, Name};
use afterbay_journal::FrameNo;
use afterbay_text::{TextProgress, Vocabulary};
use afterbay_wire::{Batch, BatchKind, BatchPart};
use std::collections::BTreeMap;
use std::time::Instant;

pub use times::HoldTimes;

/// Bytes of held rows per stream. A row beyond the bound is not held, and the held rows of its request are released.
pub const BYTES_MAX: usize = 64 << 20;
/// Held rows per request and plugin. A row beyond the bound is treated as in [`BYTES_MAX`].
pub const ROWS_MAX: usize = 4096;
/// Requests whose rows one release marker releases; the next marker releases the rest.
const RELEASED_MAX: usize = 1024;

/// The rows of one request that one plugin holds.
#[derive(Debug)]
struct PluginHold {
    plugin: Name,
    slot: RequestSlot,
    rows: Vec<HeldRow>,
    /// For each row, when it leaves if nothing releases it earlier.
    deadlines: Vec<Instant>,
    /// The first `released` rows are released by the plugin and wait for the text to be whole, or for the next frame.
    released: usize,
    /// The time at which the released rows leave, whether the text is whole or not.
    release_deadline: Instant,
    /// The time at which the rows that the plugin still holds leave.
    hold_deadline: Instant,
    /// Set once all rows are to leave, with the reason.
    end: Option<HoldEnd>,
    /// Set once the rows are to leave as the last row of their request.
    ends_request: bool,
    /// The state of the text after the last row.
    progress: TextProgress,
}

/// The state of the rows of one request with one plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldState {
    /// The plugin holds no row.
    None,
    /// The plugin holds at least one row.
    Held,
    /// The plugin has released every row, and the rows wait for the text to be whole.
    Released,
    /// The rows are to leave, for this reason.
    Ended(HoldEnd),
}

/// All held rows of a stream.
#[derive(Debug)]
pub struct HeldRows {
    /// How the readers allow rows to be joined.
    joins: Joins,
    by_request: BTreeMap<u64, Vec<PluginHold>>,
    /// The frame of the row with which each of these requests began to have held rows. A later frame may release that row.
    since: BTreeMap<u64, FrameNo>,
    /// The request that last had no held row any more, and its entry of `since`. Its rows may be held again at once, as others.
    emptied: Option<(u64, FrameNo)>,
    bytes: usize,
}

/// Held rows that leave in a frame of their own, because no new row of their requests takes them along.
pub struct DueRelease {
    /// The plugin that held the rows.
    pub plugin: Name,
    /// One row per request, in the order of the requests' numbers.
    pub rows: Vec<DueRow>,
    /// The rows as one batch.
    pub batch: Batch,
}

/// The row of a [`DueRelease`] that stands for the held rows of one request.
pub struct DueRow {
    /// The slot of the request in the ledger.
    pub slot: RequestSlot,
    /// The number of the request in the journal.
    pub number: u64,
    /// The held rows, joined.
    pub held: HeldRow,
    /// How many held rows were joined.
    pub rows: usize,
    /// Why the rows leave.
    pub why: HoldEnd,
}

impl HeldRows {
    /// No held row yet.
    pub fn new(joins: impl Into<Joins>) -> HeldRows {
        HeldRows {
            joins: joins.into(),
            by_request: BTreeMap::new(),
            since: BTreeMap::new(),
            emptied: None,
            bytes: 0,
        }
    }

    /// Replaces the rule for how rows are joined.
    pub fn set_joins(&mut self, joins: Joins) {
        self.joins = joins;
    }

    /// Whether held rows leave one by one, each in a frame of its own, because a reader needs them as they came.
    pub fn leave_singly(&self) -> bool {
        self.joins.has_single_rows()
    }

    /// Whether no row is held.
    pub fn is_empty(&self) -> bool {
        self.by_request.is_empty()
    }

    /// Whether a row of this request is held.
    pub fn has(&self, number: u64) -> bool {
        self.by_request.contains_key(&number)
    }

    /// Whether this plugin holds a row.
    pub fn has_any_of(&self, plugin: &str) -> bool {
        self.by_request.values().flatten().any(|hold| *hold.plugin == *plugin)
    }

    fn of(&self, number: u64, plugin: &str) -> Option<&PluginHold> {
        self.by_request.get(&number)?.iter().find(|hold| *hold.plugin == *plugin)
    }

    fn of_mut(&mut self, number: u64, plugin: &str) -> Option<&mut PluginHold> {
        self.by_request.get_mut(&number)?.iter_mut().find(|hold| *hold.plugin == *plugin)
    }

    /// The state of the request's rows with the plugin.
    pub fn state(&self, number: u64, plugin: &str, now: Instant) -> HoldState {
        let Some(hold) = self.of(number, plugin) else { return HoldState::None };
        match hold.end {
            Some(why) => HoldState::Ended(why),
            None if hold.is_past_deadline(now) => HoldState::Ended(HoldEnd::Time),
            None if hold.released < hold.rows.len() => HoldState::Held,
            None => HoldState::Released,
        }
    }

    /// Received rows of the request that the plugin holds. Released rows do not count.
    pub fn rows_held(&self, number: u64, plugin: &str) -> u32 {
        let Some(hold) = self.of(number, plugin) else { return 0 };
        let rows: u64 = hold.rows[hold.released..].iter().map(|row| row.received.rows).sum();
        u32::try_from(rows).unwrap_or(u32::MAX)
    }

    /// Held rows of the request that the plugin has, as the journal counts them: released rows count until they leave.
    pub fn entries(&self, number: u64, plugin: &str) -> usize {
        self.of(number, plugin).map_or(0, |hold| hold.rows.len())
    }

    /// The part of [`HeldRows::entries`] that the plugin has released.
    pub fn released_entries(&self, number: u64, plugin: &str) -> usize {
        self.of(number, plugin).map_or(0, |hold| hold.released)
    }

    /// Received rows that the plugin holds, and the tokens in them.
    pub fn size_of(&self, plugin: &str) -> (u64, u64) {
        let of_plugin = self.by_request.values().flatten().filter(|hold| *hold.plugin == *plugin);
        let sum = |(rows, tokens), row: &HeldRow| (rows + row.received.rows, tokens + u64::from(row.tokens));
        of_plugin.flat_map(|hold| &hold.rows).fold((0, 0), sum)
    }

    /// Tokens that were received for this request and are held.
    pub fn received_tokens(&self, number: u64) -> u64 {
        let rows = self.by_request.get(&number).into_iter().flatten().flat_map(|hold| &hold.rows);
        rows.map(|row| row.received.total()).sum()
    }

    /// The frame that brought the first held row of this request.
    pub fn first_frame(&self, number: u64) -> Option<FrameNo> {
        let first = self.by_request.get(&number).into_iter().flatten().filter_map(|hold| hold.rows.first());
        first.map(|row| row.frame).min()
    }

    /// Checks that the row can be held at all. The error is a sentence for the operator.
    pub fn check(&self, row: &HeldRow) -> Result<(), String> {
        match (row.batch.kind(), &self.joins.ends) {
            (BatchKind::TokenId, JoinEnds::Nowhere) => {
                Err("before a detokenizer rows are held only where sink.tokenizer is known".to_owned())
            }
            (BatchKind::Embedding, _) => Err("an embedding has no tokens".to_owned()),
            // No row follows.
            _ if row.is_last() => Ok(()),
            // Joining the row with itself shows whether each of its columns can be joined.
            _ => HeldRow::join([row, row]).map(drop),
        }
    }

    /// Checks that the row can be joined with the last held row of its request. The error is a sentence for the operator.
    pub fn check_join(&self, number: u64, plugin: &str, row: &HeldRow) -> Result<(), String> {
        let last = self.of(number, plugin).and_then(|hold| hold.rows.last());
        last.map_or(Ok(()), |last| HeldRow::join([last, row]).map(drop))
    }

    /// Checks that the bounds allow one more row. The error is a sentence for the operator.
    pub fn check_room(&self, number: u64, plugin: &str, row: &HeldRow) -> Result<(), String> {
        let rows = self.of(number, plugin).map_or(0, |hold| hold.rows.len());
        if rows >= ROWS_MAX {
            return Err(format!("held rows of the request: {rows}, the limit"));
        }
        let bytes = self.bytes + row.batch.bytes().len();
        if bytes > BYTES_MAX {
            return Err(format!("held rows of the stream with this one: {bytes} bytes, limit {BYTES_MAX}"));
        }
        Ok(())
    }

    /// Holds a row. `until` is the deadline if this is the first row that the plugin holds. A later row has the deadline of the
    /// first, and keeps `until` for the time when the rows before it are released.
    pub fn hold(&mut self, number: u64, slot: RequestSlot, plugin: &Name, mut row: HeldRow, until: Instant) {
        self.bytes += row.batch.bytes().len();
        let before = self.emptied.filter(|(emptied, _)| *emptied == number).map(|(_, since)| since);
        self.since.entry(number).or_insert(before.map_or(row.frame, |before| before.min(row.frame)));
        let of_request = self.by_request.entry(number).or_default();
        let at = match of_request.iter().position(|hold| hold.plugin == *plugin) {
            Some(at) => at,
            None => {
                of_request.push(PluginHold {
                    plugin: plugin.clone(),
                    slot,
                    rows: Vec::new(),
                    deadlines: Vec::new(),
                    released: 0,
                    release_deadline: until,
                    hold_deadline: until,
                    end: None,
                    ends_request: false,
                    progress: TextProgress::default(),
                });
                of_request.len() - 1
            }
        };
        let hold = &mut of_request[at];
        if let Some(vocabulary) = self.joins.ends.vocabulary(row.batch.kind()) {
            row.is_whole = advance(&mut hold.progress, vocabulary, &row.batch);
        }
        if hold.released == hold.rows.len() {
            hold.hold_deadline = until;
        }
        hold.rows.push(row);
        hold.deadlines.push(until);
    }

    /// Whether the text is whole after the plugin's held rows and this row. True if no detokenizer reads the row.
    pub fn is_whole_with(&self, number: u64, plugin: &str, row: &Batch) -> bool {
        let Some(vocabulary) = self.joins.ends.vocabulary(row.kind()) else { return true };
        let mut progress = self.of(number, plugin).map_or(TextProgress::default(), |hold| hold.progress);
        advance(&mut progress, vocabulary, row)
    }

    /// Whether the text is whole after this row, which already contains the held rows.
    pub fn is_whole_alone(&self, row: &Batch) -> bool {
        let vocabulary = self.joins.ends.vocabulary(row.kind());
        vocabulary.is_none_or(|vocabulary| advance(&mut TextProgress::default(), vocabulary, row))
    }

    /// Takes out the first `most` held rows of the request.
    pub fn take(&mut self, number: u64, plugin: &str, most: usize) -> Vec<HeldRow> {
        let Some(of_request) = self.by_request.get_mut(&number) else { return Vec::new() };
        let Some(at) = of_request.iter().position(|hold| *hold.plugin == *plugin) else {
            return Vec::new();
        };
        let hold = &mut of_request[at];
        let taken: Vec<HeldRow> = hold.rows.drain(..most.min(hold.rows.len())).collect();
        hold.deadlines.drain(..taken.len());
        hold.released = hold.released.saturating_sub(taken.len());
        if hold.rows.is_empty() {
            of_request.remove(at);
        }
        if of_request.is_empty() {
            self.by_request.remove(&number);
            self.emptied = self.since.remove(&number).map(|since| (number, since));
        }
        self.bytes -= taken.iter().map(|row| row.batch.bytes().len()).sum::<usize>();
        taken
    }

    /// Releases the request's rows: they leave when the text is whole, or at the deadline of their hold.
    pub fn release(&mut self, number: u64, plugin: &str) {
        if let Some(hold) = self.of_mut(number, plugin) {
            if hold.released == 0 {
                hold.release_deadline = hold.hold_deadline;
            }
            hold.released = hold.rows.len();
        }
    }

    /// Releases the request's rows, to leave at once in a frame of their own.
    pub fn release_now(&mut self, number: u64, plugin: &str, now: Instant) {
        if let Some(hold) = self.of_mut(number, plugin) {
            (hold.released, hold.release_deadline) = (hold.rows.len(), now);
        }
    }

    /// Releases the first held rows, to leave at once in a frame of their own. `received` is their number as
    /// [`HeldRows::rows_held`] counts them. A row of which only a part is released stays held. The other rows stay held until
    /// the deadline of the first of them, if that is later.
    pub fn release_first(&mut self, number: u64, plugin: &str, received: u32, now: Instant) {
        let Some(hold) = self.of_mut(number, plugin) else { return };
        let mut left = u64::from(received);
        let whole = hold.rows[hold.released..].iter().take_while(|row| {
            let is_released = row.received.rows <= left;
            left = left.saturating_sub(row.received.rows);
            is_released
        });
        let count = whole.count();
        if count == 0 {
            return;
        }
        (hold.released, hold.release_deadline) = (hold.released + count, now);
        if let Some(first) = hold.deadlines.get(hold.released) {
            hold.hold_deadline = hold.hold_deadline.max(*first);
        }
    }

    /// Ends the plugin's hold on this request: the rows leave at once, as the last row of the request.
    pub fn finish(&mut self, number: u64, plugin: &str, why: HoldEnd) {
        self.end_request(number, plugin, why);
        if let Some(hold) = self.of_mut(number, plugin) {
            hold.ends_request = true;
        }
    }

    /// Whether the last row of the request is held.
    pub fn has_last_row(&self, number: u64) -> bool {
        self.by_request.get(&number).into_iter().flatten().flat_map(|hold| &hold.rows).any(HeldRow::is_last)
    }

    /// Ends these holds for this reason. A hold that has ended before keeps its first reason.
    fn end(&mut self, why: HoldEnd, is_it: impl Fn(u64, &PluginHold) -> bool) {
        for (number, of_request) in &mut self.by_request {
            for hold in of_request.iter_mut().filter(|hold| is_it(*number, hold)) {
                // At the end of the stream the rows do not wait for whole text.
                match (hold.end, why) {
                    (None, _) | (_, HoldEnd::Stop) => hold.end = Some(why),
                    _ => {}
                }
            }
        }
    }

    /// Ends the plugin's hold on this request.
    pub fn end_request(&mut self, number: u64, plugin: &str, why: HoldEnd) {
        self.end(why, |it, hold| it == number && *hold.plugin == *plugin);
    }

    /// Ends all the plugin's holds, because the instance that held the rows no longer exists.
    pub fn end_instance(&mut self, plugin: &str) {
        self.end(HoldEnd::Instance, |_, hold| *hold.plugin == *plugin);
    }

    /// Ends every hold, or every hold on one request.
    pub fn end_all(&mut self, why: HoldEnd, number: Option<u64>) {
        self.end(why, |it, _| number.is_none_or(|number| number == it));
    }

    /// Ends the holds of plugins that are not in this list.
    pub fn end_missing<'p>(&mut self, plugins: impl Iterator<Item = &'p str> + Clone) {
        self.end(HoldEnd::Instance, |_, hold| !plugins.clone().any(|plugin| *hold.plugin == *plugin));
    }

    /// Whether [`HeldRows::take_due`] returns rows now.
    pub fn is_due(&self, now: Instant) -> bool {
        let mut all = self.by_request.values().flatten();
        all.any(|hold| hold.due(now, &self.joins).is_some())
    }

    /// The time at which [`HeldRows::is_due`] becomes true if nothing else happens.
    pub fn deadline(&self) -> Option<Instant> {
        let all = self.by_request.values().flatten();
        let at = |hold: &PluginHold| {
            let free = (hold.released > 0).then_some(hold.release_deadline);
            let held = (hold.released < hold.rows.len()).then_some(hold.hold_deadline);
            let at = free.into_iter().chain(held).min()?;
            // Rows that cannot leave at that time need no wake-up.
            hold.due(at, &self.joins).map(|_| at)
        };
        all.filter_map(at).min()
    }

    /// The frame from which on a start must read the journal to find the held rows: the first that was held of a request that
    /// still has held rows. A start that began with the oldest held row would take a release of earlier rows for one of this row.
    pub fn oldest(&self) -> Option<FrameNo> {
        self.since.values().copied().min()
    }

    /// Takes out the rows that are due, of one plugin. `None` if no row is due.
    pub fn take_due(&mut self, now: Instant) -> Option<DueRelease> {
        let mut plugin: Option<Name> = None;
        let mut due: Vec<(u64, RequestSlot, usize, HoldEnd)> = Vec::new();
        for (number, of_request) in &self.by_request {
            for hold in of_request {
                let Some((rows, why)) = hold.due(now, &self.joins) else { continue };
                if due.len() < RELEASED_MAX
                    && *plugin.get_or_insert_with(|| hold.plugin.clone()) == hold.plugin
                {
                    due.push((*number, hold.slot, rows, why));
                }
                break;
            }
        }
        let plugin = plugin?;
        let mut rows: Vec<DueRow> = Vec::new();
        for (number, slot, count, why) in due {
            let Some(hold) = self.of(number, &plugin) else { continue };
            // Rows that cannot be joined leave one by one.
            let all = HeldRow::join(&hold.rows[..count]).map(|held| (held, count));
            let Ok((held, rows_of_it)) =
                all.or_else(|_| HeldRow::join(&hold.rows[..1]).map(|held| (held, 1)))
            else {
                continue;
            };
            rows.push(DueRow { slot, number, held, rows: rows_of_it, why });
        }
        let parts: Vec<BatchPart<'_>> = rows.iter().map(|row| BatchPart::from(&row.held.batch)).collect();
        let batch = match Batch::join(&parts) {
            Ok(batch) => batch,
            // Rows of different kinds cannot share a batch: the first leaves now, the others with the next marker.
            Err(_) => {
                rows.truncate(1);
                Batch::join(&[BatchPart::from(&rows.first()?.held.batch)]).ok()?
            }
        };
        for row in &rows {
            drop(self.take(row.number, &plugin, row.rows));
        }
        Some(DueRelease { plugin, rows, batch })
    }

    /// Holds a row again that was taken and could not be written. The row leaves as soon as it can.
    pub fn hold_again(&mut self, number: u64, slot: RequestSlot, plugin: &Name, row: HeldRow, now: Instant) {
        self.hold(number, slot, plugin, row, now);
        self.end_request(number, plugin, HoldEnd::Columns);
    }
}

impl PluginHold {
    /// Whether the deadline of the last rows has passed.
    fn is_past_deadline(&self, now: Instant) -> bool {
        let until = if self.released < self.rows.len() { self.hold_deadline } else { self.release_deadline };
        until <= now
    }

    /// How many rows, counted from the first, leave now as one, and why.
    fn due(&self, now: Instant, joins: &Joins) -> Option<(usize, HoldEnd)> {
        let (rows, why) = self.due_in_all(now, &joins.ends)?;
        if !joins.has_single_rows() {
            return Some((rows, why));
        }
        let first = self.rows.first()?;
        let may_leave = !first.is_joined || joins.ends.vocabulary(first.batch.kind()).is_none();
        let whole = || self.rows[..rows].iter().position(|row| row.is_whole).map_or(rows, |at| at + 1);
        Some((if may_leave { 1 } else { whole() }, why))
    }

    /// How many rows, counted from the first, leave now, and why.
    fn due_in_all(&self, now: Instant, joins: &JoinEnds) -> Option<(usize, HoldEnd)> {
        if self.ends_request && self.released > 0 {
            // The released rows are no part of the request's last row.
            let is_free = joins.vocabulary(self.rows.first()?.batch.kind()).is_none();
            let part = self.rows[..self.released].iter().rposition(|row| is_free || row.is_whole);
            if let Some(last) = part {
                return Some((last + 1, HoldEnd::Verdict));
            }
        }
        let is_hold_over = self.released < self.rows.len() && self.hold_deadline <= now;
        let (rows, why) = match self.end {
            Some(why) => (self.rows.len(), why),
            None if is_hold_over => (self.rows.len(), HoldEnd::Time),
            None if self.released > 0 && self.release_deadline <= now => (self.released, HoldEnd::Verdict),
            None => return None,
        };
        let kind = self.rows.first()?.batch.kind();
        if joins.vocabulary(kind).is_none() || why == HoldEnd::Stop {
            return Some((rows, why));
        }
        // No later row makes the text whole.
        if self.ends_request || self.rows[..rows].last().is_some_and(HeldRow::is_last) {
            return Some((rows, why));
        }
        match self.rows[..rows].iter().rposition(|row| row.is_whole) {
            Some(last) => Some((last + 1, why)),
            // A row that was not joined may leave by itself, whole text or not.
            None => (!self.rows[0].is_joined).then_some((1, why)),
        }
    }
}

/// Adds a row to the text. Returns whether the text is whole after the row.
fn advance(progress: &mut TextProgress, vocabulary: &Vocabulary, row: &Batch) -> bool {
    let mut ids = Vec::new();
    row.row_ids(0, &mut ids);
    let _ending = progress.advance(vocabulary, &ids);
    progress.is_whole()
}

#[cfg(test)]
mod tests;
