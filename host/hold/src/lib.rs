//! Rows that wait because a plugin holds them, and which of them go on together.
//!
//! Owns them, each as a batch of one row with what the plugins before have made of it, from its hold to its release. A
//! request's rows wait in order, and go on as one: before a detokenizer only where the text is whole, which is known here.
//! Who says that they wait, and what becomes of them then, is the chain's (`judge/holding.rs`) and the ledger's.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![expect(missing_docs, reason = "written with the words of this crate")]

mod recover;

use afterbay_batch::{HeldRow, RequestSlot};
use afterbay_events::{HoldEnd, Name};
use afterbay_journal::FrameNo;
use afterbay_outbox::Joins;
use afterbay_text::{Progress, Vocabulary};
use afterbay_wire::{Batch, Kind, Part};
use std::collections::BTreeMap;
use std::time::Instant;

/// Bytes of rows that wait, of a stream. Past it a row is not held, and what waits of its request goes on.
pub const BYTES_MAX: usize = 64 << 20;
/// Rows of one request that wait with one plugin, likewise.
pub const ROWS_MAX: usize = 4096;
/// Requests whose rows go on in one frame of Afterbay's own; the others follow in the next.
const RELEASED_MAX: usize = 1024;

/// The rows of a request that wait with one plugin.
#[derive(Debug)]
struct PluginHold {
    plugin: Name,
    slot: RequestSlot,
    rows: Vec<HeldRow>,
    /// So many of them, the first ones, the plugin has let go: they wait for the text to be whole, or for the next frame.
    free: usize,
    /// When they go on, whole or not.
    free_until: Instant,
    /// When the others do.
    until: Instant,
    /// All go on as they came, for this reason.
    over: Option<HoldEnd>,
    /// Where the text stands after them.
    progress: Progress,
}

/// How rows of a request wait with a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldState {
    /// None does.
    No,
    /// The plugin holds some.
    Held,
    /// It has let go of all, and they wait for the text to be whole.
    Free,
    /// They are to go on, for this reason.
    Over(HoldEnd),
}

/// All rows of a stream that wait.
#[derive(Debug)]
pub struct HeldRows {
    /// Where joined rows may end that a detokenizer reads.
    joins: Joins,
    by_request: BTreeMap<u64, Vec<PluginHold>>,
    bytes: usize,
}

/// What goes on without a row of its request that takes it along.
pub struct DueRelease {
    /// With whom it waited.
    pub plugin: Name,
    /// By request, in order of their numbers.
    pub rows: Vec<DueRow>,
    /// All of it side by side.
    pub batch: Batch,
}

/// What goes on of one request.
pub struct DueRow {
    pub slot: RequestSlot,
    pub number: u64,
    pub held: HeldRow,
    /// How many of those that waited it is.
    pub rows: usize,
    pub why: HoldEnd,
}

impl HeldRows {
    pub fn new(joins: Joins) -> HeldRows {
        HeldRows { joins, by_request: BTreeMap::new(), bytes: 0 }
    }

    /// Where joined rows may end from now on.
    pub fn set_joins(&mut self, joins: Joins) {
        self.joins = joins;
    }

    pub fn is_empty(&self) -> bool {
        self.by_request.is_empty()
    }

    /// Rows of this request wait.
    pub fn has(&self, number: u64) -> bool {
        self.by_request.contains_key(&number)
    }

    /// Rows wait with this plugin.
    pub fn has_any_of(&self, plugin: &str) -> bool {
        self.by_request.values().flatten().any(|waiting| *waiting.plugin == *plugin)
    }

    fn of(&self, number: u64, plugin: &str) -> Option<&PluginHold> {
        self.by_request.get(&number)?.iter().find(|waiting| *waiting.plugin == *plugin)
    }

    fn of_mut(&mut self, number: u64, plugin: &str) -> Option<&mut PluginHold> {
        self.by_request.get_mut(&number)?.iter_mut().find(|waiting| *waiting.plugin == *plugin)
    }

    /// How rows of the request wait with the plugin.
    pub fn waits(&self, number: u64, plugin: &str, now: Instant) -> HoldState {
        let Some(waiting) = self.of(number, plugin) else { return HoldState::No };
        match waiting.over {
            Some(why) => HoldState::Over(why),
            None if waiting.is_over(now) => HoldState::Over(HoldEnd::Time),
            None if waiting.free < waiting.rows.len() => HoldState::Held,
            None => HoldState::Free,
        }
    }

    /// How many rows that came for the request the plugin holds.
    pub fn rows_held(&self, number: u64, plugin: &str) -> u32 {
        let Some(waiting) = self.of(number, plugin) else { return 0 };
        let rows: u64 = waiting.rows[waiting.free..].iter().map(|row| row.came.rows).sum();
        u32::try_from(rows).unwrap_or(u32::MAX)
    }

    /// How many entries wait for the request with the plugin, as the journal counts them.
    pub fn entries(&self, number: u64, plugin: &str) -> usize {
        self.of(number, plugin).map_or(0, |waiting| waiting.rows.len())
    }

    /// How many of them the plugin has let go.
    pub fn entries_free(&self, number: u64, plugin: &str) -> usize {
        self.of(number, plugin).map_or(0, |waiting| waiting.free)
    }

    /// Rows that came and wait with the plugin, and the tokens they have.
    pub fn size_of(&self, plugin: &str) -> (u64, u64) {
        let of_plugin = self.by_request.values().flatten().filter(|waiting| *waiting.plugin == *plugin);
        let sum = |(rows, tokens), row: &HeldRow| (rows + row.came.rows, tokens + u64::from(row.tokens));
        of_plugin.flat_map(|waiting| &waiting.rows).fold((0, 0), sum)
    }

    /// Tokens that came for this request and wait.
    pub fn came_of(&self, number: u64) -> u64 {
        let rows = self.by_request.get(&number).into_iter().flatten().flat_map(|waiting| &waiting.rows);
        rows.map(|row| row.came.tokens()).sum()
    }

    /// Whether such a row can wait at all. The error is for people.
    pub fn check(&self, row: &HeldRow) -> Result<(), String> {
        match (row.batch.kind(), &self.joins) {
            (Kind::TokenId, Joins::Nowhere) => {
                Err("before a detokenizer rows are held only where sink.tokenizer is known".to_owned())
            }
            (Kind::Embedding, _) => Err("an embedding has no tokens".to_owned()),
            // A column that cannot be joined shows where two rows have it.
            _ => Batch::join(&[Part::from(&row.batch), Part::from(&row.batch)])
                .map(drop)
                .map_err(|error| error.to_string()),
        }
    }

    /// Whether a row becomes one with the last of those that wait of its request. The error is for people.
    pub fn goes_with(&self, number: u64, plugin: &str, row: &HeldRow) -> Result<(), String> {
        let Some(last) = self.of(number, plugin).and_then(|waiting| waiting.rows.last()) else {
            return Ok(());
        };
        Batch::join(&[Part::from(&last.batch), Part::from(&row.batch)])
            .map(drop)
            .map_err(|error| error.to_string())
    }

    /// Whether a further row of the request finds room with the plugin. The error is for people.
    pub fn room(&self, number: u64, plugin: &str, row: &HeldRow) -> Result<(), String> {
        let rows = self.of(number, plugin).map_or(0, |waiting| waiting.rows.len());
        if rows >= ROWS_MAX {
            return Err(format!("{rows} rows of the request wait, at most {ROWS_MAX}"));
        }
        let bytes = self.bytes + row.batch.bytes().len();
        if bytes > BYTES_MAX {
            return Err(format!("rows that wait would have {bytes} bytes, at most {BYTES_MAX}"));
        }
        Ok(())
    }

    /// A row comes to wait with the plugin, until then if it is the first that the plugin holds.
    pub fn push(&mut self, number: u64, slot: RequestSlot, plugin: &Name, mut row: HeldRow, until: Instant) {
        self.bytes += row.batch.bytes().len();
        let of_request = self.by_request.entry(number).or_default();
        let at = match of_request.iter().position(|waiting| waiting.plugin == *plugin) {
            Some(at) => at,
            None => {
                of_request.push(PluginHold {
                    plugin: plugin.clone(),
                    slot,
                    rows: Vec::new(),
                    free: 0,
                    free_until: until,
                    until,
                    over: None,
                    progress: Progress::default(),
                });
                of_request.len() - 1
            }
        };
        let waiting = &mut of_request[at];
        if let Some(vocabulary) = self.joins.vocabulary(row.batch.kind()) {
            row.is_whole = advance(&mut waiting.progress, vocabulary, &row.batch);
        }
        if waiting.free == waiting.rows.len() {
            waiting.until = until;
        }
        waiting.rows.push(row);
    }

    /// Whether the text is whole after all that waits with the plugin and this row, or that is of no account.
    pub fn is_whole_with(&self, number: u64, plugin: &str, row: &Batch) -> bool {
        let Some(vocabulary) = self.joins.vocabulary(row.kind()) else { return true };
        let mut progress = self.of(number, plugin).map_or_else(Progress::default, |waiting| waiting.progress);
        advance(&mut progress, vocabulary, row)
    }

    /// Whether the text is whole after this row, of which all that waits is a part.
    pub fn is_whole_alone(&self, row: &Batch) -> bool {
        let vocabulary = self.joins.vocabulary(row.kind());
        vocabulary.is_none_or(|vocabulary| advance(&mut Progress::default(), vocabulary, row))
    }

    /// Takes out all that waits of the request with the plugin, or the first so many.
    pub fn take(&mut self, number: u64, plugin: &str, most: usize) -> Vec<HeldRow> {
        let Some(of_request) = self.by_request.get_mut(&number) else { return Vec::new() };
        let Some(at) = of_request.iter().position(|waiting| *waiting.plugin == *plugin) else {
            return Vec::new();
        };
        let waiting = &mut of_request[at];
        let taken: Vec<HeldRow> = waiting.rows.drain(..most.min(waiting.rows.len())).collect();
        waiting.free = waiting.free.saturating_sub(taken.len());
        if waiting.rows.is_empty() {
            of_request.remove(at);
        }
        if of_request.is_empty() {
            self.by_request.remove(&number);
        }
        self.bytes -= taken.iter().map(|row| row.batch.bytes().len()).sum::<usize>();
        taken
    }

    /// The plugin has let go of all that waits of the request. It goes on when the text is whole, or when its time is over.
    pub fn free(&mut self, number: u64, plugin: &str) {
        if let Some(waiting) = self.of_mut(number, plugin) {
            if waiting.free == 0 {
                waiting.free_until = waiting.until;
            }
            waiting.free = waiting.rows.len();
        }
    }

    /// The plugin has let go of all that waits of the request, and it goes on now, by itself.
    pub fn let_go(&mut self, number: u64, plugin: &str, now: Instant) {
        if let Some(waiting) = self.of_mut(number, plugin) {
            (waiting.free, waiting.free_until) = (waiting.rows.len(), now);
        }
    }

    /// What waits with these plugins goes on, for this reason; what is to go already keeps its own.
    fn end(&mut self, why: HoldEnd, is_it: impl Fn(u64, &PluginHold) -> bool) {
        for (number, of_request) in &mut self.by_request {
            for waiting in of_request.iter_mut().filter(|waiting| is_it(*number, waiting)) {
                // The end of a stream, or of a request, waits for no text.
                match (waiting.over, why) {
                    (None, _) | (_, HoldEnd::Stop) => waiting.over = Some(why),
                    _ => {}
                }
            }
        }
    }

    /// What waits of the request with the plugin goes on.
    pub fn end_of(&mut self, number: u64, plugin: &str, why: HoldEnd) {
        self.end(why, |it, waiting| it == number && *waiting.plugin == *plugin);
    }

    /// What waits of these requests with the plugin goes on: the instance that held it is gone.
    pub fn end_with(&mut self, plugin: &str, is_it: impl Fn(u64) -> bool) {
        self.end(HoldEnd::Instance, |number, waiting| *waiting.plugin == *plugin && is_it(number));
    }

    /// Everything goes on, or all that waits of one request.
    pub fn end_all(&mut self, why: HoldEnd, number: Option<u64>) {
        self.end(why, |it, _| number.is_none_or(|number| number == it));
    }

    /// What waits with plugins that are not among these goes on.
    pub fn end_without<'p>(&mut self, plugins: impl Iterator<Item = &'p str> + Clone) {
        self.end(HoldEnd::Instance, |_, waiting| !plugins.clone().any(|plugin| *waiting.plugin == *plugin));
    }

    /// Something is to go on now.
    pub fn is_due(&self, now: Instant) -> bool {
        let mut all = self.by_request.values().flatten();
        all.any(|waiting| waiting.due(now, &self.joins).is_some())
    }

    /// When [`HeldRows::is_due`] changes by the time alone.
    pub fn deadline(&self) -> Option<Instant> {
        let all = self.by_request.values().flatten();
        let at = |waiting: &PluginHold| {
            let free = (waiting.free > 0).then_some(waiting.free_until);
            let held = (waiting.free < waiting.rows.len()).then_some(waiting.until);
            let at = free.into_iter().chain(held).min()?;
            // What cannot go on then would be asked for in vain.
            waiting.due(at, &self.joins).map(|_| at)
        };
        all.filter_map(at).min()
    }

    /// The frame in which the oldest row came that waits.
    pub fn oldest(&self) -> Option<FrameNo> {
        // A request's rows wait in order.
        let oldest = self.by_request.values().flatten().filter_map(|waiting| waiting.rows.first());
        oldest.map(|row| row.frame).min()
    }

    /// Takes out what is to go on now, of requests that wait with one plugin. `None`: nothing is.
    pub fn take_due(&mut self, now: Instant) -> Option<DueRelease> {
        let mut plugin: Option<Name> = None;
        let mut due: Vec<(u64, RequestSlot, usize, HoldEnd)> = Vec::new();
        for (number, of_request) in &self.by_request {
            for waiting in of_request {
                let Some((rows, why)) = waiting.due(now, &self.joins) else { continue };
                if due.len() < RELEASED_MAX
                    && *plugin.get_or_insert_with(|| waiting.plugin.clone()) == waiting.plugin
                {
                    due.push((*number, waiting.slot, rows, why));
                }
                break;
            }
        }
        let plugin = plugin?;
        let mut rows: Vec<DueRow> = Vec::new();
        for (number, slot, count, why) in due {
            let Some(waiting) = self.of(number, &plugin) else { continue };
            // Where they cannot become one the first goes by itself.
            let all = HeldRow::join(&waiting.rows[..count]).map(|held| (held, count));
            let Ok((held, rows_of_it)) =
                all.or_else(|_| HeldRow::join(&waiting.rows[..1]).map(|held| (held, 1)))
            else {
                continue;
            };
            rows.push(DueRow { slot, number, held, rows: rows_of_it, why });
        }
        let parts: Vec<Part<'_>> = rows.iter().map(|row| Part::from(&row.held.batch)).collect();
        let batch = match Batch::join(&parts) {
            Ok(batch) => batch,
            // They cannot stand side by side: one goes now.
            Err(_) => {
                rows.truncate(1);
                Batch::join(&[Part::from(&rows.first()?.held.batch)]).ok()?
            }
        };
        for row in &rows {
            drop(self.take(row.number, &plugin, row.rows));
        }
        Some(DueRelease { plugin, rows, batch })
    }

    /// What was taken and could not go on waits again, and is to go on as soon as it can.
    pub fn put_back(&mut self, number: u64, slot: RequestSlot, plugin: &Name, row: HeldRow, now: Instant) {
        self.push(number, slot, plugin, row, now);
        self.end_of(number, plugin, HoldEnd::Columns);
    }
}

impl PluginHold {
    /// The time of the last is over. Those that were let go before it go on by themselves.
    fn is_over(&self, now: Instant) -> bool {
        let until = if self.free < self.rows.len() { self.until } else { self.free_until };
        until <= now
    }

    /// How many of the first rows go on now, and why.
    fn due(&self, now: Instant, joins: &Joins) -> Option<(usize, HoldEnd)> {
        let held_over = self.free < self.rows.len() && self.until <= now;
        let (rows, why) = match self.over {
            Some(why) => (self.rows.len(), why),
            None if held_over => (self.rows.len(), HoldEnd::Time),
            None if self.free > 0 && self.free_until <= now => (self.free, HoldEnd::Verdict),
            None => return None,
        };
        let kind = self.rows.first()?.batch.kind();
        if joins.vocabulary(kind).is_none() || why == HoldEnd::Stop {
            return Some((rows, why));
        }
        match self.rows[..rows].iter().rposition(|row| row.is_whole) {
            Some(last) => Some((last + 1, why)),
            // One that is as it came may go by itself, wherever it ends.
            None => (!self.rows[0].is_made).then_some((1, why)),
        }
    }
}

/// Whether the text is whole after this row, too.
fn advance(progress: &mut Progress, vocabulary: &Vocabulary, row: &Batch) -> bool {
    let mut ids = Vec::new();
    row.row_ids(0, &mut ids);
    let _ending = progress.advance(vocabulary, &ids);
    progress.is_whole()
}

#[cfg(test)]
mod tests;
