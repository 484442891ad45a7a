//! The rows that plugins hold, and which of them are released together.
//!
//! Owns each held row, as a batch of one row with the changes of the plugins before, from its hold to its release. The held
//! rows of a request stay in order and leave as one row, or one by one for a reader of single rows. In front of a detokenizer
//! the row ends only where the text is whole; this crate tracks the text. The chain decides which rows are held, and the ledger
//! counts them.

mod batches;
mod of_request;
mod recover;
mod times;

use crate::HeldRow;
use crate::joins::{JoinEnds, Joins};
use afterbay_events::{HoldEnd, Name};
use afterbay_journal::{FrameNo, JournalRequest};
use afterbay_text::{TextProgress, Vocabulary};
use afterbay_wire::{Batch, BatchKind};
use batches::HeldBatches;
use foldhash::fast::FixedState;
use of_request::{LeaveAt, PluginHold, RequestHolds};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

pub use times::HoldTimes;

/// Bytes of held rows per stream. A row beyond the bound is not held, and the held rows of its request are released.
pub const BYTES_MAX: usize = 64 << 20;
/// Held rows per request and plugin. A row beyond the bound is treated as in [`BYTES_MAX`].
pub const ROWS_MAX: usize = 4096;
/// Requests whose rows one release marker releases; the next marker releases the rest.
const RELEASED_MAX: usize = 1024;

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

/// The size of what a plugin holds: requests, received rows, and the tokens in them.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    requests: u64,
    rows: u64,
    tokens: u64,
}

/// All held rows of a stream. A frame costs what it holds and releases, however many rows are held.
#[derive(Debug)]
pub struct HeldRows {
    /// How the readers allow rows to be joined.
    joins: Joins,
    by_request: HashMap<u64, RequestHolds, FixedState>,
    /// The requests by `RequestHolds::since`.
    by_since: BTreeSet<(FrameNo, u64)>,
    /// The requests by `RequestHolds::due`.
    due: BTreeSet<(LeaveAt, u64)>,
    /// The size of what each plugin holds that holds rows.
    by_plugin: Vec<(Name, Held)>,
    /// The request that last had no held row any more, and its `since`. Its rows may be held again at once, as others.
    emptied: Option<(u64, FrameNo)>,
    batches: HeldBatches,
}

/// Held rows that leave in a frame of their own, because no new row of their requests takes them along.
pub struct DueRelease {
    /// The plugin that held the rows.
    pub plugin: Name,
    /// One row per request, in the order of the batch.
    pub rows: Vec<DueRow>,
    /// The rows as one batch.
    pub batch: Batch,
}

/// The row of a [`DueRelease`] that stands for the held rows of one request.
pub struct DueRow {
    /// The request.
    pub request: JournalRequest,
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
            by_request: HashMap::default(),
            by_since: BTreeSet::new(),
            due: BTreeSet::new(),
            by_plugin: Vec::new(),
            emptied: None,
            batches: HeldBatches::default(),
        }
    }

    /// Replaces the rule for how rows are joined.
    pub fn set_joins(&mut self, joins: Joins) {
        self.joins = joins;
        self.change_all(|_, _| {});
    }

    /// Changes what the plugins hold of every request.
    fn change_all(&mut self, mut change: impl FnMut(u64, &mut PluginHold)) {
        let HeldRows { by_request, due, joins, .. } = self;
        due.clear();
        for (number, request) in by_request {
            request.of_plugins.iter_mut().for_each(|hold| change(*number, hold));
            request.due = request.leave_at(joins);
            due.extend(request.due.map(|at| (at, *number)));
        }
    }

    /// Changes what the plugin holds of the request, if it holds something.
    fn change(&mut self, number: u64, plugin: &str, change: impl FnOnce(&mut PluginHold)) {
        let Some(request) = self.by_request.get_mut(&number) else { return };
        let Some(hold) = request.of_plugins.iter_mut().find(|hold| *hold.plugin == *plugin) else { return };
        change(hold);
        self.schedule(number);
    }

    /// Notes when rows of the request leave, after a change of what is held of it.
    fn schedule(&mut self, number: u64) {
        let Some(request) = self.by_request.get_mut(&number) else { return };
        let at = request.leave_at(&self.joins);
        if request.due != at {
            let before = std::mem::replace(&mut request.due, at);
            before.map(|before| self.due.remove(&(before, number)));
            self.due.extend(at.map(|at| (at, number)));
        }
    }

    fn held(&mut self, plugin: &Name) -> &mut Held {
        let at = self.by_plugin.iter().position(|(known, _)| known == plugin).unwrap_or_else(|| {
            self.by_plugin.push((plugin.clone(), Held::default()));
            self.by_plugin.len() - 1
        });
        &mut self.by_plugin[at].1
    }

    fn holds_of(&self, number: u64) -> &[PluginHold] {
        self.by_request.get(&number).map_or(&[], |request| &request.of_plugins)
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
        self.by_plugin.iter().any(|(name, _)| **name == *plugin)
    }

    fn of(&self, number: u64, plugin: &str) -> Option<&PluginHold> {
        self.holds_of(number).iter().find(|hold| *hold.plugin == *plugin)
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
        let held = self.by_plugin.iter().find(|(name, _)| **name == *plugin);
        held.map_or((0, 0), |(_, held)| (held.rows, held.tokens))
    }

    /// Tokens that were received for this request and are held.
    pub fn received_tokens(&self, number: u64) -> u64 {
        let rows = self.holds_of(number).iter().flat_map(|hold| &hold.rows);
        rows.map(|row| row.received.total()).sum()
    }

    /// The frame that brought the first held row of this request.
    pub fn first_frame(&self, number: u64) -> Option<FrameNo> {
        let first = self.holds_of(number).iter().filter_map(|hold| hold.rows.first());
        first.map(|row| row.frame).min()
    }

    /// Checks that the row can be held at all. Rows that cannot be joined can: they leave one by one. The error is a sentence for
    /// the operator.
    pub fn check(&self, row: &HeldRow) -> Result<(), String> {
        match (row.kind(), &self.joins.ends) {
            (BatchKind::TokenId, JoinEnds::Nowhere) => {
                Err("before a detokenizer rows are held only where sink.tokenizer is known".to_owned())
            }
            (BatchKind::Embedding, _) => Err("an embedding has no tokens".to_owned()),
            _ => Ok(()),
        }
    }

    /// Checks that the bounds allow one more row. The error is a sentence for the operator.
    pub fn check_room(&mut self, number: u64, plugin: &str, row: &HeldRow) -> Result<(), String> {
        let rows = self.of(number, plugin).map_or(0, |hold| hold.rows.len());
        if rows >= ROWS_MAX {
            return Err(format!("held rows of the request: {rows}, the limit"));
        }
        let mut bytes = self.batches.bytes_with(&row.batch);
        if bytes > BYTES_MAX && self.batches.are_sparse() {
            self.detach_rows();
            bytes = self.batches.bytes_with(&row.batch);
        }
        if bytes > BYTES_MAX {
            return Err(format!("held rows of the stream with this one: {bytes} bytes, limit {BYTES_MAX}"));
        }
        Ok(())
    }

    /// Takes the rows of each batch of which few rows are still held into a smaller batch.
    fn detach_rows(&mut self) {
        let HeldRows { by_request, batches, .. } = self;
        let holds = by_request.values_mut().flat_map(|request| &mut request.of_plugins);
        let mut of_batches: BTreeMap<usize, Vec<&mut HeldRow>> = BTreeMap::new();
        for row in holds.flat_map(|hold| &mut hold.rows).filter(|row| batches.is_sparse(&row.batch)) {
            of_batches.entry(row.batch.address()).or_default().push(row);
        }
        for mut rows in of_batches.into_values() {
            rows.sort_unstable_by_key(|row| row.row);
            let indexes: Vec<u32> = rows.iter().map(|row| row.row).collect();
            let Some(Ok(own)) = rows.first().map(|row| row.batch.detach(&indexes)) else { continue };
            for (at, row) in (0..).zip(rows) {
                batches.remove(&row.batch);
                batches.add(&own);
                (row.batch, row.row) = (own.clone(), at);
            }
        }
    }

    /// Holds a row. `until` is the deadline if this is the first row that the plugin holds. A later row has the deadline of the
    /// first, and keeps `until` for the time when the rows before it are released.
    pub fn hold(&mut self, handle: JournalRequest, plugin: &Name, mut row: HeldRow, until: Instant) {
        let number = handle.number().0;
        self.batches.add(&row.batch);
        let before = self.emptied.filter(|(emptied, _)| *emptied == number).map(|(_, since)| since);
        let request = self.by_request.entry(number).or_insert_with(|| {
            let since = before.map_or(row.frame, |before| before.min(row.frame));
            self.by_since.insert((since, number));
            RequestHolds { since, due: None, of_plugins: Vec::new() }
        });
        let known = request.of_plugins.iter().position(|hold| hold.plugin == *plugin);
        let at = known.unwrap_or_else(|| {
            request.of_plugins.push(PluginHold {
                plugin: plugin.clone(),
                request: handle,
                rows: Vec::new(),
                deadlines: Vec::new(),
                released: 0,
                release_deadline: until,
                hold_deadline: until,
                end: None,
                ends_request: false,
                progress: TextProgress::default(),
            });
            request.of_plugins.len() - 1
        });
        let hold = &mut request.of_plugins[at];
        if let Some(vocabulary) = self.joins.ends.vocabulary(row.kind()) {
            row.is_whole = advance(&mut hold.progress, vocabulary, &row);
        }
        if hold.released == hold.rows.len() {
            hold.hold_deadline = until;
        }
        let (rows, tokens) = (row.received.rows, u64::from(row.tokens));
        hold.rows.push(row);
        hold.deadlines.push(until);
        let held = self.held(plugin);
        held.requests += u64::from(known.is_none());
        held.rows += rows;
        held.tokens += tokens;
        self.schedule(number);
    }

    /// Whether the text is whole after the plugin's held rows and this row. True if no detokenizer reads the row.
    pub fn is_whole_with(&self, number: u64, plugin: &str, row: &HeldRow) -> bool {
        let Some(vocabulary) = self.joins.ends.vocabulary(row.kind()) else { return true };
        let mut progress = self.of(number, plugin).map_or(TextProgress::default(), |hold| hold.progress);
        advance(&mut progress, vocabulary, row)
    }

    /// Whether the text is whole after this row, which already contains the held rows.
    pub fn is_whole_alone(&self, row: &HeldRow) -> bool {
        let vocabulary = self.joins.ends.vocabulary(row.kind());
        vocabulary.is_none_or(|vocabulary| advance(&mut TextProgress::default(), vocabulary, row))
    }

    /// Removes the first `most` held rows of the request, and returns them.
    pub fn remove(&mut self, number: u64, plugin: &str, most: usize) -> Vec<HeldRow> {
        let Some(request) = self.by_request.get_mut(&number) else { return Vec::new() };
        let Some(at) = request.of_plugins.iter().position(|hold| *hold.plugin == *plugin) else {
            return Vec::new();
        };
        let hold = &mut request.of_plugins[at];
        let plugin = hold.plugin.clone();
        let taken: Vec<HeldRow> = hold.rows.drain(..most.min(hold.rows.len())).collect();
        hold.deadlines.drain(..taken.len());
        hold.released = hold.released.saturating_sub(taken.len());
        let is_empty = hold.rows.is_empty();
        if is_empty {
            request.of_plugins.remove(at);
        }
        self.schedule(number);
        if let Entry::Occupied(request) = self.by_request.entry(number)
            && request.get().of_plugins.is_empty()
        {
            let since = request.remove().since;
            self.by_since.remove(&(since, number));
            self.emptied = Some((number, since));
        }
        taken.iter().for_each(|row| self.batches.remove(&row.batch));
        let held = self.held(&plugin);
        held.requests -= u64::from(is_empty);
        held.rows -= taken.iter().map(|row| row.received.rows).sum::<u64>();
        held.tokens -= taken.iter().map(|row| u64::from(row.tokens)).sum::<u64>();
        self.by_plugin.retain(|(_, held)| held.requests > 0);
        taken
    }

    /// Releases the request's rows: they leave when the text is whole, or at the deadline of their hold.
    pub fn release(&mut self, number: u64, plugin: &str) {
        self.change(number, plugin, |hold| {
            if hold.released == 0 {
                hold.release_deadline = hold.hold_deadline;
            }
            hold.released = hold.rows.len();
        });
    }

    /// Releases the request's rows, to leave at once in a frame of their own.
    pub fn release_now(&mut self, number: u64, plugin: &str, now: Instant) {
        self.change(number, plugin, |hold| (hold.released, hold.release_deadline) = (hold.rows.len(), now));
    }

    /// Releases the first held rows, to leave at once in a frame of their own. `received` is their number as
    /// [`HeldRows::rows_held`] counts them. A row of which only a part is released stays held. The other rows stay held until
    /// the deadline of the first of them, if that is later.
    pub fn release_first(&mut self, number: u64, plugin: &str, received: u32, now: Instant) {
        self.change(number, plugin, |hold| {
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
        });
    }

    /// Ends the plugin's hold on this request: the rows leave at once, as the last row of the request.
    pub fn finish(&mut self, number: u64, plugin: &str, why: HoldEnd) {
        self.change(number, plugin, |hold| {
            hold.end(why);
            hold.ends_request = true;
        });
    }

    /// Whether the last row of the request is held.
    pub fn has_last_row(&self, number: u64) -> bool {
        self.holds_of(number).iter().flat_map(|hold| &hold.rows).any(HeldRow::is_last)
    }

    /// Ends the plugin's hold on this request. A hold that has ended before keeps its first reason.
    pub fn end_request(&mut self, number: u64, plugin: &str, why: HoldEnd) {
        self.change(number, plugin, |hold| hold.end(why));
    }

    /// Ends every hold on this request.
    pub fn end_all_of(&mut self, number: u64, why: HoldEnd) {
        if let Some(request) = self.by_request.get_mut(&number) {
            request.of_plugins.iter_mut().for_each(|hold| hold.end(why));
            self.schedule(number);
        }
    }

    /// Ends every hold.
    pub fn end_all(&mut self, why: HoldEnd) {
        self.change_all(|_, hold| hold.end(why));
    }

    /// Ends all the plugin's holds, because the instance that held the rows no longer exists.
    pub fn end_instance(&mut self, plugin: &str) {
        self.end_instances(|it| *it == *plugin);
    }

    /// Ends the holds of plugins that are not in this list.
    pub fn end_missing<'p>(&mut self, plugins: impl Iterator<Item = &'p str> + Clone) {
        self.end_instances(|it| !plugins.clone().any(|plugin| *it == *plugin));
    }

    fn end_instances(&mut self, is_gone: impl Fn(&Name) -> bool) {
        if !self.by_plugin.iter().any(|(plugin, _)| is_gone(plugin)) {
            return;
        }
        self.change_all(|_, hold| {
            if is_gone(&hold.plugin) {
                hold.end(HoldEnd::Instance);
            }
        });
    }

    /// Whether [`HeldRows::take_due`] returns rows now.
    pub fn is_due(&self, now: Instant) -> bool {
        self.due.first().is_some_and(|(at, _)| *at <= Some(now))
    }

    /// The time at which [`HeldRows::is_due`] becomes true if nothing else happens: `at_once` for rows for which it is true.
    pub fn deadline(&self, at_once: Instant) -> Option<Instant> {
        let first = self.due.first().map(|(at, _)| at.unwrap_or(at_once));
        let timed = self.due.range((None, u64::MAX)..).find_map(|(at, _)| *at);
        first.into_iter().chain(timed).min()
    }

    /// The frame from which on a start must read the journal to find the held rows: the first that was held of a request that
    /// still has held rows. A start that began with the oldest held row would take a release of earlier rows for one of this row.
    pub fn oldest(&self) -> Option<FrameNo> {
        self.by_since.first().map(|(since, _)| *since)
    }

    /// Removes the rows that are due, of one plugin, and returns them. `None` if no row is due.
    pub fn take_due(&mut self, now: Instant) -> Option<DueRelease> {
        let mut plugin: Option<Name> = None;
        let mut due: Vec<(JournalRequest, usize, HoldEnd)> = Vec::new();
        for (_, number) in self.due.iter().take_while(|(at, _)| *at <= Some(now)) {
            let mut holds = self.holds_of(*number).iter();
            let first = holds.find_map(|hold| hold.due(Some(now), &self.joins).map(|due| (hold, due)));
            let Some((hold, (rows, why))) = first else { continue };
            if *plugin.get_or_insert_with(|| hold.plugin.clone()) == hold.plugin {
                due.push((hold.request, rows, why));
            }
            if due.len() == RELEASED_MAX {
                break;
            }
        }
        let plugin = plugin?;
        due.sort_unstable_by_key(|(request, ..)| request.number());
        let rows_of = |(request, count, _): &(JournalRequest, usize, HoldEnd)| {
            self.of(request.number().0, &plugin).map_or(&[][..], |hold| &hold.rows[..*count])
        };
        let requests: Vec<&[HeldRow]> = due.iter().map(rows_of).collect();
        let joined = match HeldRow::join_all(&requests) {
            Ok(joined) => joined,
            Err(_) => {
                // Rows that cannot be joined leave one by one.
                let join = |((_, count, _), rows): (&mut (_, usize, _), &&[HeldRow])| {
                    HeldRow::join(rows).unwrap_or_else(|_| {
                        *count = 1;
                        rows[0].clone()
                    })
                };
                let rows: Vec<HeldRow> = due.iter_mut().zip(&requests).map(join).collect();
                // Rows of different kinds cannot share a batch: the first leaves now, the others with the next marker.
                let each: Vec<&[HeldRow]> = rows.iter().map(std::slice::from_ref).collect();
                HeldRow::join_all(&each).or_else(|_| Ok::<_, String>(vec![rows[0].detached()?])).ok()?
            }
        };
        let batch = joined.first()?.batch.clone();
        let due = due.into_iter().zip(joined);
        let mut rows: Vec<DueRow> =
            due.map(|((request, rows, why), held)| DueRow { request, held, rows, why }).collect();
        rows.sort_unstable_by_key(|row| row.held.row);
        for row in &rows {
            drop(self.remove(row.request.number().0, &plugin, row.rows));
        }
        Some(DueRelease { plugin, rows, batch })
    }

    /// Holds a row again that was taken and could not be written. The row leaves as soon as it can.
    pub fn hold_again(&mut self, request: JournalRequest, plugin: &Name, row: HeldRow, now: Instant) {
        self.hold(request, plugin, row, now);
        self.end_request(request.number().0, plugin, HoldEnd::Columns);
    }
}

/// Adds a row to the text. Returns whether the text is whole after the row.
fn advance(progress: &mut TextProgress, vocabulary: &Vocabulary, row: &HeldRow) -> bool {
    let mut ids = Vec::new();
    row.ids(&mut ids);
    let _ending = progress.advance(vocabulary, &ids);
    progress.is_whole()
}

#[cfg(test)]
mod tests;
