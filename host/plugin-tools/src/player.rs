//! A plugin's instance and the rows that it is shown, in the order of calls that the contract promises: open, process,
//! close; after a fault a fresh instance, which is told of the requests alive.

use crate::row::{Batch, Row};
use crate::row_outcome::{self, RowOutcome};
use crate::updates::Updates;
use afterbay_runtime::signals::Snapshot;
use afterbay_runtime::{
    Action, Columns, Component, Fault, FinishKind, LogLine, Opened, Plugin, Replacement, StartError, TokenId,
    Verdict,
};
use anyhow::ensure;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Requests that may be alive at once; one more ends the command.
const LIVE_MAX: usize = 1 << 20;

/// What came of one batch.
pub(crate) struct Played {
    /// One for each row.
    pub(crate) fates: Vec<RowOutcome>,
    /// What the plugin logged, with the rid where it named a request.
    pub(crate) log: Vec<(Option<String>, LogLine)>,
    pub(crate) faults: Vec<Fault>,
}

/// The calls of `process`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Calls {
    pub(crate) calls: u64,
    pub(crate) rows: u64,
    pub(crate) took: Duration,
    pub(crate) longest: Duration,
}

struct Request {
    number: u64,
    /// Its `http_worker_ipc`.
    worker: String,
    /// Its reader.
    sink: String,
    prompt_tokens: u64,
    /// Tokens that came before the first row that was read.
    before: u64,
    /// Tokens so far, with those.
    received: u64,
    /// By the scheduler, as its last row says.
    counted: u64,
    /// The plugin has ended it.
    over: bool,
    /// Its rows that wait. No time passes here: they wait for a release, or the last row.
    waiting: Waiting,
}

/// The rows of a request that wait.
#[derive(Default)]
struct Waiting {
    rows: u32,
    ids: Vec<TokenId>,
    text: Option<String>,
    /// The instance that held them is gone: they go on with the next row.
    is_over: bool,
}

impl Waiting {
    fn add(&mut self, row: &Row, fate: &RowOutcome) {
        let (ids, text) = row_outcome::left(row, fate);
        self.ids.extend(ids);
        if let Some(text) = text {
            self.text.get_or_insert_default().push_str(&text);
        }
        self.rows += 1;
    }

    /// What becomes of a row, of which the plugin said this, beside those that wait.
    fn take(&mut self, row: &Row, fate: RowOutcome) -> RowOutcome {
        let is_last =
            row.finish != FinishKind::Running || fate.said().is_some_and(row_outcome::ends) || self.is_over;
        match fate {
            RowOutcome::Judged(Action::Hold(_)) if !is_last => {
                self.add(row, &RowOutcome::AsItCame);
                RowOutcome::Waits(fate.said().cloned())
            }
            RowOutcome::Judged(Action::ReleaseAndHold(_)) if !is_last => {
                let before = std::mem::take(self);
                self.add(row, &RowOutcome::AsItCame);
                let by = fate.said().cloned();
                match before.rows {
                    0 => RowOutcome::Waits(by),
                    _ => RowOutcome::Released { by, ids: before.ids, text: before.text },
                }
            }
            RowOutcome::Judged(Action::ReleaseAs(Replacement { ref ids, ref text })) => {
                let ids = ids.clone();
                self.add(row, &RowOutcome::AsItCame);
                let before = std::mem::take(self).text;
                // Before a detokenizer it is not looked at.
                let text = before.map(|before| text.clone().unwrap_or(before));
                RowOutcome::Released { by: fate.said().cloned(), ids, text }
            }
            fate if self.rows == 0 => fate,
            fate if is_last || matches!(fate, RowOutcome::Judged(Action::Release)) => {
                self.add(row, &fate);
                let Waiting { ids, text, .. } = std::mem::take(self);
                RowOutcome::Released { by: fate.said().cloned(), ids, text }
            }
            fate => {
                self.add(row, &fate);
                RowOutcome::Waits(fate.said().cloned())
            }
        }
    }
}

/// One instance, and the requests that it knows.
pub(crate) struct Player {
    component: Component,
    settings: String,
    plugin: Plugin,
    requests: HashMap<String, Request>,
    rids: HashMap<u64, String>,
    /// What it was told of some requests, by rid; also of those that have not begun.
    attributes: HashMap<String, Arc<str>>,
    signals: Option<Snapshot>,
    last_number: u64,
    pub(crate) calls: Calls,
}

impl Player {
    pub(crate) fn new(component: Component, settings: String) -> Result<Player, StartError> {
        let plugin = component.instantiate(&settings)?;
        Ok(Player {
            component,
            settings,
            plugin,
            requests: HashMap::new(),
            rids: HashMap::new(),
            attributes: HashMap::new(),
            signals: None,
            last_number: 0,
            calls: Calls::default(),
        })
    }

    /// Requests that it was shown.
    pub(crate) fn requests(&self) -> u64 {
        self.last_number
    }

    /// What it has now.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.plugin.memory_bytes()
    }

    /// Shows it a batch. The error is that of a plugin that cannot go on, or of too many requests.
    pub(crate) fn play(&mut self, batch: &Batch) -> anyhow::Result<Played> {
        let mut played = Played { fates: Vec::new(), log: Vec::new(), faults: Vec::new() };
        self.tell(&batch.updates, &mut played)?;
        self.end_earlier_lives(batch, &mut played)?;
        let begun = self.begin(batch)?;
        let swallowed: Vec<bool> = batch.rows.iter().map(|row| self.is_over(row)).collect();
        let shown: Vec<usize> = (0..batch.rows.len()).filter(|row| !swallowed[*row]).collect();
        let fates = swallowed
            .iter()
            .map(|swallowed| if *swallowed { RowOutcome::Swallowed } else { RowOutcome::AsItCame });
        played.fates = fates.collect();
        if !begun.is_empty() {
            let ended = self.open(&begun);
            self.settle(ended, &mut played)?;
        }
        let rows: Vec<&Row> = shown.iter().map(|row| &batch.rows[*row]).collect();
        for verdict in self.process(&rows, &mut played)? {
            if let Some(row) = shown.get(verdict.row as usize) {
                played.fates[*row] = RowOutcome::Judged(verdict.action);
            }
        }
        for row in shown {
            if let Some(request) = self.requests.get_mut(&batch.rows[row].rid) {
                let fate = std::mem::replace(&mut played.fates[row], RowOutcome::AsItCame);
                played.fates[row] = request.waiting.take(&batch.rows[row], fate);
            }
        }
        self.close(batch, &mut played)?;
        Ok(played)
    }

    /// What it says of the rows; it is not asked where there are none, and a fault says nothing.
    fn process(&mut self, rows: &[&Row], played: &mut Played) -> anyhow::Result<Vec<Verdict>> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let held = Held::new(rows, &self.requests);
        let started = Instant::now();
        let answer = self.plugin.process(&held.columns());
        self.calls.add(rows.len(), started.elapsed());
        match answer {
            Ok(verdicts) => {
                self.drain_log(played);
                Ok(verdicts)
            }
            Err(fault) => self.settle(Err(fault), played).map(|()| Vec::new()),
        }
    }

    /// How the stream stands, then attributes that are others.
    fn tell(&mut self, updates: &Updates, played: &mut Played) -> anyhow::Result<()> {
        if let Some(signals) = &updates.signals {
            self.signals = Some(signals.clone());
            self.plugin.set_signals(signals.clone());
            let ended = self.plugin.pressure();
            self.settle(ended, played)?;
        }
        let mut changed = Vec::new();
        for (rid, attributes) in &updates.attributes {
            self.attributes.insert(rid.clone(), attributes.clone());
            let open = self.requests.get(rid).filter(|request| !request.over);
            changed.extend(open.map(|request| request.number));
            self.set_attributes(rid);
        }
        if !changed.is_empty() {
            let ended = self.plugin.changed(&changed);
            self.settle(ended, played)?;
        }
        Ok(())
    }

    /// Of a request that is open.
    fn set_attributes(&mut self, rid: &str) {
        if let (Some(request), Some(attributes)) = (self.requests.get(rid), self.attributes.get(rid)) {
            self.plugin.set_attributes(request.number, Some(attributes.clone()));
        }
    }

    /// A request whose count goes back to its beginning is another of the same name. (A row may have all ids so far, so that
    /// its own number of ids says nothing by itself.)
    fn end_earlier_lives(&mut self, batch: &Batch, played: &mut Played) -> anyhow::Result<()> {
        let begins_anew = |row: &&Row| {
            let counted = self.requests.get(&row.rid).map_or(0, |request| request.counted);
            (1..=counted.min(row.ids.len() as u64)).contains(&row.completion_tokens)
        };
        let ended: Vec<&str> = batch.rows.iter().filter(begins_anew).map(|row| row.rid.as_str()).collect();
        let known = ended.into_iter().filter_map(|rid| self.requests.remove(rid));
        let numbers: Vec<u64> = known.filter(|request| !request.over).map(|request| request.number).collect();
        self.close_numbers(&numbers, played)
    }

    /// Gives the requests that begin here their numbers; their rids. Each row's tokens are counted.
    fn begin(&mut self, batch: &Batch) -> anyhow::Result<Vec<String>> {
        let mut begun = Vec::new();
        for row in &batch.rows {
            let tokens = row.ids.len() as u64;
            if let Some(request) = self.requests.get_mut(&row.rid) {
                request.received += tokens;
                request.counted = row.completion_tokens;
                continue;
            }
            ensure!(
                self.requests.len() < LIVE_MAX,
                "{}: {LIVE_MAX} requests are alive already, the limit",
                batch.from
            );
            self.last_number += 1;
            let number = self.last_number;
            // Not 0 where the first row that there is was not the request's first.
            let before = row.completion_tokens.saturating_sub(tokens);
            let (prompt_tokens, received) = (row.prompt_tokens, before + tokens);
            let (worker, sink) = (row.http_worker_ipc.clone(), row.sink.clone());
            let request = Request {
                number,
                worker,
                sink,
                prompt_tokens,
                before,
                received,
                counted: row.completion_tokens,
                over: false,
                waiting: Waiting::default(),
            };
            self.requests.insert(row.rid.clone(), request);
            self.rids.insert(number, row.rid.clone());
            self.set_attributes(&row.rid);
            begun.push(row.rid.clone());
        }
        Ok(begun)
    }

    fn open(&mut self, begun: &[String]) -> Result<(), Fault> {
        // Moved out: what is opened borrows the requests, and the call changes the instance.
        let requests = std::mem::take(&mut self.requests);
        let opened: Vec<Opened<'_>> =
            begun.iter().filter_map(|rid| Some(requests.get(rid)?.opened(rid, false))).collect();
        let ended = self.plugin.open(&opened);
        self.requests = requests;
        ended
    }

    fn is_over(&self, row: &Row) -> bool {
        self.requests.get(&row.rid).is_some_and(|request| request.over)
    }

    /// After a fault a fresh instance takes over, and is told of the requests alive.
    fn settle(&mut self, ended: Result<(), Fault>, played: &mut Played) -> anyhow::Result<()> {
        self.drain_log(played);
        let Err(fault) = ended else { return Ok(()) };
        played.faults.push(fault);
        self.requests.values_mut().for_each(|request| request.waiting.is_over |= request.waiting.rows > 0);
        let alive: Vec<&str> =
            self.requests.iter().filter(|(_, request)| !request.over).map(|(rid, _)| rid.as_str()).collect();
        let mut fresh = self.component.instantiate(&self.settings)?;
        if let Some(signals) = &self.signals {
            fresh.set_signals(signals.clone());
        }
        for rid in &alive {
            if let (Some(request), Some(attributes)) = (self.requests.get(*rid), self.attributes.get(*rid)) {
                fresh.set_attributes(request.number, Some(attributes.clone()));
            }
        }
        let alive = alive.iter().filter_map(|rid| Some(self.requests.get(*rid)?.opened(rid, true)));
        let opened: Vec<Opened<'_>> = alive.collect();
        fresh.open(&opened)?;
        self.plugin = fresh;
        Ok(())
    }

    fn drain_log(&mut self, played: &mut Played) {
        for line in self.plugin.drain_log() {
            let rid = line.request.and_then(|number| self.rids.get(&number)).cloned();
            played.log.push((rid, line));
        }
    }

    /// Tells it of the requests that have ended with this batch.
    fn close(&mut self, batch: &Batch, played: &mut Played) -> anyhow::Result<()> {
        let mut numbers = Vec::new();
        for (row, fate) in batch.rows.iter().zip(&played.fates) {
            let is_last = row.finish != FinishKind::Running;
            let Some(request) = self.requests.get_mut(&row.rid) else { continue };
            if is_last || fate.said().is_some_and(row_outcome::ends) {
                numbers.extend((!request.over).then_some(request.number));
                request.over = true;
            }
            if is_last {
                self.requests.remove(&row.rid);
            }
        }
        self.close_numbers(&numbers, played)
    }

    fn close_numbers(&mut self, numbers: &[u64], played: &mut Played) -> anyhow::Result<()> {
        if numbers.is_empty() {
            return Ok(());
        }
        let closed = self.plugin.close(numbers);
        numbers.iter().for_each(|number| self.plugin.set_attributes(*number, None));
        self.settle(closed, played)?;
        numbers.iter().for_each(|number| _ = self.rids.remove(number));
        Ok(())
    }
}

impl Request {
    /// What an instance is told of a request: at its first row, or (`again`) as it takes over from one that faulted.
    fn opened<'r>(&'r self, rid: &'r str, again: bool) -> Opened<'r> {
        let Request { number, worker, sink, prompt_tokens, before, received, .. } = self;
        let (received_tokens, resumed) = if again { (*received, true) } else { (*before, *before > 0) };
        Opened {
            request: *number,
            rid,
            http_worker_ipc: worker,
            sink,
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

    /// 0 where there was none.
    pub(crate) fn ns_a_row(&self) -> u64 {
        u64::try_from(self.took.as_nanos()).unwrap_or(u64::MAX).checked_div(self.rows).unwrap_or(0)
    }
}

/// The columns of a batch, and what they borrow.
#[derive(Default)]
struct Held<'r> {
    requests: Vec<u64>,
    ids: Vec<TokenId>,
    ends: Vec<u32>,
    completion_tokens: Vec<u64>,
    finished: Vec<FinishKind>,
    texts: Vec<&'r str>,
    waiting: Vec<u32>,
}

impl<'r> Held<'r> {
    fn new(rows: &[&'r Row], requests: &HashMap<String, Request>) -> Held<'r> {
        let mut held = Held::default();
        for row in rows {
            held.requests.push(requests.get(&row.rid).map_or(0, |request| request.number));
            held.ids.extend_from_slice(&row.ids);
            held.ends.push(held.ids.len() as u32);
            held.completion_tokens.push(row.completion_tokens);
            held.finished.push(row.finish);
            held.texts.extend(row.text.as_deref());
            let waiting = requests.get(&row.rid).map(|request| &request.waiting);
            held.waiting.push(waiting.filter(|waiting| !waiting.is_over).map_or(0, |waiting| waiting.rows));
        }
        held
    }

    fn columns(&self) -> Columns<'_> {
        Columns {
            requests: &self.requests,
            output_ids: &self.ids,
            output_ends: &self.ends,
            completion_tokens: &self.completion_tokens,
            finished: &self.finished,
            texts: &self.texts,
            waiting: &self.waiting,
        }
    }
}
