//! Shows batches to a plugin instance, in the contract's order of calls: open, process, close. After a fault, a fresh instance
//! opens the live requests again.

use crate::row::{Batch, Row};
use crate::row_outcome::{self, RowOutcome};
use afterbay_runtime::signals::Snapshot;
use afterbay_runtime::{
    Action, Component, Ending, Fault, FinishKind, LogLine, Opened, OwnedColumns, PlainValues, Plugin,
    RecordReader, Replacement, RequestAction, RequestVerdict, StartError, TokenId, Verdict,
};
use anyhow::ensure;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most live requests; one more ends the command.
const LIVE_MAX: usize = 1 << 20;
/// Milliseconds between two calls about timers, as in a stream.
const TIMERS_EVERY_MS: u64 = 10;

/// The outcomes of one batch.
#[derive(Default)]
pub(crate) struct PlayedBatch {
    /// One for each row.
    pub(crate) outcomes: Vec<RowOutcome>,
    /// One for each row.
    pub(crate) rows: Vec<PlayedRow>,
    /// The lines that the plugin logged, with the rid if a line names a request.
    pub(crate) log: Vec<(Option<String>, LogLine)>,
    pub(crate) faults: Vec<Fault>,
    /// The requests that the plugin ended before the batch, when their timers were due, by rid.
    pub(crate) ended: Vec<(String, Action)>,
}

/// A row in the hands of the plugin, beside its outcome.
#[derive(Clone, Default)]
pub(crate) struct PlayedRow {
    /// The number of the request. 0 if the plugin was not shown the row.
    pub(crate) request: u64,
    /// The held rows of the request before this row, as the plugin saw them.
    pub(crate) waiting: u32,
    /// The attributes of the request, as JSON.
    pub(crate) attributes: Option<Arc<str>>,
    /// The batches of the held rows that left in this row, oldest first.
    pub(crate) joined: Vec<String>,
}

/// Statistics on the calls of `process`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Calls {
    pub(crate) calls: u64,
    pub(crate) rows: u64,
    pub(crate) took: Duration,
    pub(crate) longest: Duration,
}

#[derive(Default)]
struct Request {
    number: u64,
    /// The front end that waits for the request.
    front_end: String,
    sink: String,
    /// The time of the record, or else of the first row, in milliseconds since 1970.
    arrived_ms: u64,
    prompt_tokens: u64,
    /// Tokens before the first row that was read.
    before: u64,
    /// Tokens so far, `before` included.
    received: u64,
    /// The scheduler's count in the last row.
    counted: u64,
    /// The plugin ended the request.
    is_ended: bool,
    /// No hold times out here: rows are held until a release, or the last row.
    held: HeldRows,
}

/// The held rows of a request.
#[derive(Default)]
struct HeldRows {
    rows: u32,
    /// The batch of each row.
    from: Vec<String>,
    ids: Vec<TokenId>,
    text: Option<String>,
    /// The batches of the held rows that the last row took with it.
    left: Vec<String>,
    /// The instance that held the rows faulted, so they go on with the next row.
    is_orphaned: bool,
}

impl HeldRows {
    fn add(&mut self, from: &str, row: &Row, outcome: &RowOutcome) {
        let (ids, text) = row_outcome::left(row, outcome);
        self.ids.extend(ids);
        if let Some(text) = text {
            self.text.get_or_insert_default().push_str(&text);
        }
        self.rows += 1;
        self.from.push(from.to_owned());
    }

    /// Takes all rows, of which the last has just been added.
    fn leave(&mut self) -> HeldRows {
        let mut before = std::mem::take(self);
        before.from.pop();
        self.left = std::mem::take(&mut before.from);
        before
    }

    /// The number of rows that the present instance holds.
    fn waiting(&self) -> u32 {
        if self.is_orphaned { 0 } else { self.rows }
    }

    /// The outcome of a row with `outcome` as the plugin's part, given the rows that are held.
    fn take(&mut self, from: &str, row: &Row, outcome: RowOutcome) -> RowOutcome {
        let is_last = row.values.finished != FinishKind::Running
            || outcome.verdict().is_some_and(row_outcome::ends)
            || self.is_orphaned;
        match outcome {
            RowOutcome::Verdict(Action::Hold(_)) if !is_last => {
                self.add(from, row, &RowOutcome::AsReceived);
                RowOutcome::Held(outcome.verdict().cloned())
            }
            RowOutcome::Verdict(Action::ReleaseAndHold(_)) if !is_last => {
                let before = std::mem::take(self);
                self.add(from, row, &RowOutcome::AsReceived);
                self.left = before.from;
                let by = outcome.verdict().cloned();
                match before.rows {
                    0 => RowOutcome::Held(by),
                    _ => RowOutcome::Released { by, ids: before.ids, text: before.text },
                }
            }
            RowOutcome::Verdict(Action::ReleaseAs(Replacement { ref ids, ref text })) => {
                let ids = ids.clone();
                self.add(from, row, &RowOutcome::AsReceived);
                let before = self.leave().text;
                // A row without text has no use for the text of the replacement.
                let text = before.map(|before| text.clone().unwrap_or(before));
                RowOutcome::Released { by: outcome.verdict().cloned(), ids, text }
            }
            outcome if self.rows == 0 => outcome,
            RowOutcome::Verdict(Action::Finish(Ending { replacement: Some(ref replacement), .. })) => {
                let Replacement { ids, text } = replacement.clone();
                self.add(from, row, &RowOutcome::AsReceived);
                let before = self.leave().text;
                let text = before.map(|before| text.unwrap_or(before));
                RowOutcome::Released { by: outcome.verdict().cloned(), ids, text }
            }
            outcome if is_last || matches!(outcome, RowOutcome::Verdict(Action::Release)) => {
                self.add(from, row, &outcome);
                let HeldRows { ids, text, .. } = self.leave();
                RowOutcome::Released { by: outcome.verdict().cloned(), ids, text }
            }
            outcome => {
                self.add(from, row, &outcome);
                RowOutcome::Held(outcome.verdict().cloned())
            }
        }
    }
}

/// A plugin instance, and the requests that it knows.
pub(crate) struct Player {
    component: Component,
    settings: String,
    plugin: Plugin,
    requests: HashMap<String, Request>,
    rids: HashMap<u64, String>,
    /// Request attributes by rid, also of requests that have not begun.
    attributes: HashMap<String, Arc<str>>,
    /// The records of requests, by rid.
    asked: HashMap<String, RecordReader>,
    signals: Option<Snapshot>,
    last_number: u64,
    pub(crate) calls: Calls,
}

impl Player {
    pub(crate) fn new(component: Component, settings: String) -> Result<Player, StartError> {
        let mut plugin = component.instantiate(&settings)?;
        plugin.set_effects(true);
        Ok(Player {
            component,
            settings,
            plugin,
            requests: HashMap::new(),
            rids: HashMap::new(),
            attributes: HashMap::new(),
            asked: HashMap::new(),
            signals: None,
            last_number: 0,
            calls: Calls::default(),
        })
    }

    /// The number of requests so far.
    pub(crate) fn requests(&self) -> u64 {
        self.last_number
    }

    /// The instance's memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.plugin.memory_bytes()
    }

    /// Shows a batch to the instance.
    ///
    /// # Errors
    /// A fresh instance does not start after a fault, or there are too many live requests.
    pub(crate) fn play(&mut self, batch: &Batch) -> anyhow::Result<PlayedBatch> {
        let mut played = PlayedBatch::default();
        self.tell_of_timers(batch.time_ms, &mut played)?;
        self.update(batch, &mut played)?;
        self.end_earlier_lives(batch, &mut played)?;
        let begun = self.begin(batch)?;
        let swallowed: Vec<bool> = batch.rows.iter().map(|row| self.is_ended(row)).collect();
        played.rows = batch.rows.iter().map(|row| self.seen(row)).collect();
        let shown: Vec<usize> = (0..batch.rows.len()).filter(|row| !swallowed[*row]).collect();
        let outcomes = swallowed
            .iter()
            .map(|swallowed| if *swallowed { RowOutcome::Swallowed } else { RowOutcome::AsReceived });
        played.outcomes = outcomes.collect();
        if !begun.is_empty() {
            let ended = self.open(&begun, false);
            self.settle(ended, &mut played)?;
        }
        let rows: Vec<&Row> = shown.iter().map(|row| &batch.rows[*row]).collect();
        for verdict in self.process(batch.time_ms, &rows, &mut played)? {
            if let Some(row) = shown.get(verdict.row as usize) {
                played.outcomes[*row] = RowOutcome::Verdict(verdict.action);
            }
        }
        for row in shown {
            if let Some(request) = self.requests.get_mut(&batch.rows[row].rid) {
                let outcome = std::mem::replace(&mut played.outcomes[row], RowOutcome::AsReceived);
                played.outcomes[row] = request.held.take(&batch.from, &batch.rows[row], outcome);
                played.rows[row].joined = std::mem::take(&mut request.held.left);
            }
        }
        self.close(batch, &mut played)?;
        Ok(played)
    }

    /// The plugin's knowledge of a row beside its columns.
    fn seen(&self, row: &Row) -> PlayedRow {
        match self.requests.get(&row.rid) {
            Some(request) if !request.is_ended => PlayedRow {
                request: request.number,
                waiting: request.held.waiting(),
                attributes: self.attributes.get(&row.rid).cloned(),
                joined: Vec::new(),
            },
            _ => PlayedRow::default(),
        }
    }

    /// The verdicts on the rows; none if there are no rows, or after a fault.
    fn process(
        &mut self,
        time_ms: u64,
        rows: &[&Row],
        played: &mut PlayedBatch,
    ) -> anyhow::Result<Vec<Verdict>> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let columns = columns(time_ms, rows, &self.requests);
        let strings = columns.strings();
        let started = Instant::now();
        let answer = self.plugin.process(&columns.columns(&strings));
        self.calls.add(rows.len(), started.elapsed());
        match answer {
            Ok(verdicts) => {
                self.drain_log(played);
                Ok(verdicts)
            }
            Err(fault) => self.settle(Err(fault), played).map(|()| Vec::new()),
        }
    }

    /// Tells the instance of the timers that are due up to this time, each at its own.
    fn tell_of_timers(&mut self, until_ms: u64, played: &mut PlayedBatch) -> anyhow::Result<()> {
        let mut earliest = 0;
        while let Some(now) = self.plugin.next_timer_ms().map(|next| next.max(earliest))
            && now <= until_ms
        {
            earliest = now + TIMERS_EVERY_MS;
            let verdicts = match self.plugin.due(now) {
                Ok(verdicts) => verdicts,
                Err(fault) => return self.settle(Err(fault), played),
            };
            self.drain_log(played);
            let mut numbers = Vec::new();
            for RequestVerdict { request: number, action } in verdicts {
                let Some(rid) = self.rids.get(&number) else { continue };
                let Some(request) = self.requests.get_mut(rid).filter(|it| !it.is_ended) else { continue };
                match action {
                    RequestAction::Finish(ending) => {
                        request.is_ended = true;
                        numbers.push(number);
                        played.ended.push((rid.clone(), Action::Finish(ending)));
                    }
                    // They leave with the next row.
                    RequestAction::Release(_) => request.held.is_orphaned |= request.held.rows > 0,
                }
            }
            self.close_numbers(&numbers, played)?;
        }
        Ok(())
    }

    /// Passes changed signals to the instance, then records, then changed attributes.
    fn update(&mut self, batch: &Batch, played: &mut PlayedBatch) -> anyhow::Result<()> {
        let updates = &batch.updates;
        if let Some(signals) = &updates.signals {
            self.signals = Some(signals.clone());
            self.plugin.set_signals(signals.clone());
            let ended = self.plugin.pressure();
            self.settle(ended, played)?;
        }
        let mut begun = Vec::new();
        for (rid, asked) in &updates.asked {
            let record: serde_json::Value = serde_json::from_str(&asked.asked)?;
            let asked = asked.clone();
            self.asked.insert(rid.clone(), Arc::new(move || Some(asked.clone())));
            // A record begins the request.
            if !self.requests.contains_key(rid) {
                let prompt_tokens = record["prompt_tokens"].as_u64().unwrap_or(0);
                let front_end = record["front_end"].as_str().unwrap_or_default().to_owned();
                let request =
                    Request { arrived_ms: batch.time_ms, prompt_tokens, front_end, ..Request::default() };
                self.insert(rid, request, batch)?;
                begun.push(rid.clone());
            }
        }
        self.attributes.extend(updates.attributes.iter().map(|(rid, of)| (rid.clone(), of.clone())));
        if !begun.is_empty() {
            let ended = self.open(&begun, false);
            self.settle(ended, played)?;
        }
        let mut changed = Vec::new();
        for rid in updates.attributes.keys() {
            let open = self.requests.get(rid).filter(|request| !request.is_ended && !begun.contains(rid));
            changed.extend(open.map(|request| request.number));
            self.set_attributes(rid);
        }
        if !changed.is_empty() {
            let ended = self.plugin.changed(&changed);
            self.settle(ended, played)?;
        }
        Ok(())
    }

    /// Sets the attributes of a request that is open.
    fn set_attributes(&mut self, rid: &str) {
        if let Some(request) = self.requests.get(rid) {
            self.plugin.set_attributes(request.number, self.attributes.get(rid).cloned());
        }
    }

    /// Closes requests whose token count starts again: another request uses the same rid. (The number of ids in a row says
    /// nothing, because a row may carry all ids so far.)
    fn end_earlier_lives(&mut self, batch: &Batch, played: &mut PlayedBatch) -> anyhow::Result<()> {
        let begins_anew = |row: &&Row| {
            let counted = self.requests.get(&row.rid).map_or(0, |request| request.counted);
            (1..=counted.min(row.ids.len() as u64)).contains(&row.values.completion_tokens)
        };
        let ended: Vec<&str> = batch.rows.iter().filter(begins_anew).map(|row| row.rid.as_str()).collect();
        let known = ended.into_iter().filter_map(|rid| self.requests.remove(rid));
        let numbers: Vec<u64> =
            known.filter(|request| !request.is_ended).map(|request| request.number).collect();
        self.close_numbers(&numbers, played)
    }

    /// Counts each row's tokens, and gives new requests their numbers. Returns the rids of the new requests.
    fn begin(&mut self, batch: &Batch) -> anyhow::Result<Vec<String>> {
        let mut begun = Vec::new();
        for row in &batch.rows {
            let tokens = row.ids.len() as u64;
            if let Some(request) = self.requests.get_mut(&row.rid) {
                request.received += tokens;
                request.counted = row.values.completion_tokens;
                continue;
            }
            // Not 0 if earlier rows of the request were not read.
            let before = row.values.completion_tokens.saturating_sub(tokens);
            let (prompt_tokens, received) = (row.prompt_tokens, before + tokens);
            let (front_end, sink) = (row.front_end.clone(), row.sink.clone());
            let request = Request {
                front_end,
                sink,
                arrived_ms: batch.time_ms,
                prompt_tokens,
                before,
                received,
                counted: row.values.completion_tokens,
                ..Request::default()
            };
            self.insert(&row.rid, request, batch)?;
            begun.push(row.rid.clone());
        }
        Ok(begun)
    }

    /// Adds a request, and gives it a number.
    fn insert(&mut self, rid: &str, request: Request, batch: &Batch) -> anyhow::Result<()> {
        ensure!(
            self.requests.len() < LIVE_MAX,
            "{}: {LIVE_MAX} requests are alive already, the limit",
            batch.from
        );
        self.last_number += 1;
        self.requests.insert(rid.to_owned(), Request { number: self.last_number, ..request });
        self.rids.insert(self.last_number, rid.to_owned());
        Ok(())
    }

    /// Opens requests in the instance: at their first row, or (`again`) after a fault of the instance before.
    fn open(&mut self, rids: &[String], again: bool) -> Result<(), Fault> {
        for rid in rids {
            let Some(request) = self.requests.get(rid) else { continue };
            self.plugin.set_attributes(request.number, self.attributes.get(rid).cloned());
            self.plugin.set_record(request.number, self.asked.get(rid).cloned());
        }
        // Moved out, because `opened` borrows the requests while the call changes `self`.
        let requests = std::mem::take(&mut self.requests);
        let opened: Vec<Opened<'_>> =
            rids.iter().filter_map(|rid| Some(requests.get(rid)?.opened(rid, again))).collect();
        let ended = self.plugin.open(&opened);
        self.requests = requests;
        ended
    }

    fn is_ended(&self, row: &Row) -> bool {
        self.requests.get(&row.rid).is_some_and(|request| request.is_ended)
    }

    /// After a fault a fresh instance takes over, and is told of the requests alive.
    fn settle(&mut self, ended: Result<(), Fault>, played: &mut PlayedBatch) -> anyhow::Result<()> {
        self.drain_log(played);
        let Err(fault) = ended else { return Ok(()) };
        played.faults.push(fault);
        self.requests.values_mut().for_each(|request| request.held.is_orphaned |= request.held.rows > 0);
        let alive = self.requests.iter().filter(|(_, request)| !request.is_ended);
        let alive: Vec<String> = alive.map(|(rid, _)| rid.clone()).collect();
        let mut fresh = self.component.instantiate(&self.settings)?;
        fresh.set_effects(true);
        if let Some(signals) = &self.signals {
            fresh.set_signals(signals.clone());
        }
        self.plugin = fresh;
        Ok(self.open(&alive, true)?)
    }

    fn drain_log(&mut self, played: &mut PlayedBatch) {
        for line in self.plugin.drain_log() {
            let rid = line.request.and_then(|number| self.rids.get(&number)).cloned();
            played.log.push((rid, line));
        }
    }

    /// Closes the requests that ended with this batch.
    fn close(&mut self, batch: &Batch, played: &mut PlayedBatch) -> anyhow::Result<()> {
        let mut numbers = Vec::new();
        for (row, outcome) in batch.rows.iter().zip(&played.outcomes) {
            let is_last = row.values.finished != FinishKind::Running;
            let Some(request) = self.requests.get_mut(&row.rid) else { continue };
            if is_last || outcome.verdict().is_some_and(row_outcome::ends) {
                numbers.extend((!request.is_ended).then_some(request.number));
                request.is_ended = true;
            }
            if is_last {
                self.requests.remove(&row.rid);
                self.asked.remove(&row.rid);
            }
        }
        self.close_numbers(&numbers, played)
    }

    fn close_numbers(&mut self, numbers: &[u64], played: &mut PlayedBatch) -> anyhow::Result<()> {
        if numbers.is_empty() {
            return Ok(());
        }
        let closed = self.plugin.close(numbers);
        numbers.iter().for_each(|number| self.plugin.forget(*number));
        self.settle(closed, played)?;
        numbers.iter().for_each(|number| _ = self.rids.remove(number));
        Ok(())
    }
}

impl Request {
    /// The request as an instance opens it: at its first row, or (`again`) after a fault of the instance before.
    fn opened<'r>(&'r self, rid: &'r str, again: bool) -> Opened<'r> {
        let Request { number, front_end, sink, arrived_ms, prompt_tokens, before, received, .. } = self;
        let (received_tokens, resumed) = if again { (*received, true) } else { (*before, *before > 0) };
        Opened {
            request: *number,
            rid,
            front_end,
            sink,
            arrived_ms: *arrived_ms,
            prompt_tokens: *prompt_tokens,
            received_tokens,
            resumed,
        }
    }
}

impl Calls {
    fn add(&mut self, rows: usize, took: Duration) {
        self.calls += 1;
        self.rows += rows as u64;
        self.took += took;
        self.longest = self.longest.max(took);
    }

    /// Nanoseconds for each row; 0 without rows.
    pub(crate) fn ns_a_row(&self) -> u64 {
        u64::try_from(self.took.as_nanos()).unwrap_or(u64::MAX).checked_div(self.rows).unwrap_or(0)
    }
}

/// The columns of these rows.
fn columns(time_ms: u64, rows: &[&Row], requests: &HashMap<String, Request>) -> OwnedColumns {
    let mut columns = OwnedColumns::at(time_ms);
    for row in rows {
        let request = requests.get(&row.rid);
        let values =
            PlainValues { waiting: request.map_or(0, |request| request.held.waiting()), ..row.values };
        let number = request.map_or(0, |request| request.number);
        columns.push(number, &row.ids, row.text.as_deref(), values, &row.facts);
    }
    columns
}
