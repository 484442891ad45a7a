//! The ledger: which request each row belongs to, and where every token of it went.
//!
//! Owns the live requests and their counts. A batch comes in from decode, is accounted row by row, goes to the plugins,
//! and is settled when it is known what leaves: then every token that was received is forwarded, replaced or dropped,
//! and the outcome goes into the journal beside the frame. Knows nothing of wasm or of sockets.

mod endings;
mod ways;
mod whole;

pub(crate) use endings::{Aborts, OPERATOR};
pub use endings::{End, FinishedEarly, Live, Looked, TellScheduler};
pub(crate) use ways::Ways;

use crate::actions::Actions;
use crate::decode::Decoded;
use crate::judge::{Fate, Judged, Written};
use crate::keep::{Keep, Kept};
use crate::requests::{Requests, Slot};
use crate::route::Leaves;
use crate::telemetry::Telemetry;
use afterbay_events::Name;
use afterbay_events::event::{
    RequestAbandoned, RequestFinishedEarly, RequestGap, RequestImbalance, RowsDropped, VerdictFailed,
};
use afterbay_journal as journal;
use afterbay_runtime::FinishKind;
use afterbay_wire::{AbortShape, Batch, Edit, Finish, Tokens};
use std::time::{Duration, Instant};

/// Why the tokens of a row went no further whose request a plugin had finished, for the journal.
const SWALLOWED: &str = "swallowed: the request had ended";

/// Stands for the plugin that finished a request before the last start: the journal has it in the request's rows only.
const EARLIER_RUN: &str = "(a plugin of an earlier run)";

/// A live request.
pub(crate) struct Request {
    /// Its handle in the journal; its number is also what plugins call it.
    pub(crate) kept: journal::Request,
    /// Tokens received, and where they went: `received == forwarded + replaced + dropped + swallowed` at
    /// every settled batch.
    pub(crate) received: u64,
    forwarded: u64,
    replaced: u64,
    dropped: u64,
    swallowed: u64,
    /// The scheduler's own count, at its last row.
    counted: u64,
    /// What the reader was sent more (or less) than came: added to the scheduler's count in every later row.
    shift: i64,
    /// The prompt's length in tokens, 0 where the scheduler did not say.
    pub(crate) prompt_tokens: u64,
    /// A row of it has left for the reader, which so knows of it.
    reader_knows: bool,
    /// The plugin that has finished it: what still comes is swallowed.
    ended_by: Option<Name>,
    /// The plugin that lets it skip the detokenizer.
    skips_by: Option<Name>,
    last_row: Instant,
}

impl Request {
    /// A plugin has finished it: no plugin sees what still comes.
    pub(crate) fn ended_early(&self) -> bool {
        self.ended_by.is_some()
    }
}

/// A row that was accounted.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) slot: Slot,
    /// The request's number, as plugins and the journal know it.
    pub(crate) number: u64,
    pub(crate) tokens: u32,
    pub(crate) completion_tokens: Option<u64>,
    pub(crate) finish: FinishKind,
    /// The request began with this row.
    pub(crate) first: bool,
    /// Not shown to plugins: it belongs to a request that a plugin has finished.
    pub(crate) swallowed: bool,
}

/// A batch whose rows are accounted.
pub(crate) struct Accounted {
    pub(crate) kept: Kept,
    pub(crate) batch: Batch,
    pub(crate) rows: Vec<Row>,
    /// Some row needs an edit whatever the plugins say: its request's count is shifted or it has ended early.
    needs_edit: bool,
    /// Some row's request skips the detokenizer.
    skips: bool,
}

/// What goes on to the sinks.
pub(crate) struct Settled {
    pub(crate) kept: Kept,
    pub(crate) leaves: Leaves,
}

/// The live requests of a stream and where their tokens went.
pub(crate) struct Ledger {
    requests: Requests<Request>,
    telemetry: Telemetry,
    endings: Vec<endings::Ending>,
    /// How the scheduler reads an abort, by its last batch.
    abort_shape: Option<AbortShape>,
    /// Where rows may go but to their reader.
    ways: Ways,
    /// Who tells the scheduler of requests that plugins finish.
    upstream: Option<TellScheduler>,
    // Kept between batches so that a batch allocates nothing.
    rows: Vec<Row>,
    kept_requests: Vec<journal::Request>,
    tokens: Vec<u32>,
    gaps: Vec<journal::Gap>,
}

impl Ledger {
    /// A ledger that goes on with the requests that were live when the last run ended.
    pub(crate) fn new(
        live: &[journal::LiveRequest],
        aborts: Aborts,
        telemetry: Telemetry,
        now: Instant,
    ) -> Ledger {
        let mut requests = Requests::new();
        for request in live {
            let info = &request.info;
            requests.insert(
                &info.rid,
                Request {
                    kept: request.request,
                    received: info.received,
                    forwarded: info.received.saturating_sub(info.dropped + info.replaced),
                    replaced: info.replaced,
                    dropped: info.dropped,
                    swallowed: 0,
                    counted: info.received,
                    shift: info.forwarded as i64 - info.received as i64,
                    prompt_tokens: 0,
                    reader_knows: true,
                    ended_by: info.ended_early.then(|| EARLIER_RUN.into()),
                    skips_by: None,
                    last_row: now,
                },
            );
        }
        let mut ledger = Ledger {
            requests,
            telemetry,
            endings: Vec::new(),
            abort_shape: None,
            ways: Ways::default(),
            upstream: None,
            rows: Vec::new(),
            kept_requests: Vec::new(),
            tokens: Vec::new(),
            gaps: Vec::new(),
        };
        ledger.take_up(aborts);
        ledger
    }

    pub(crate) fn live(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn requests(&self) -> impl Iterator<Item = (&str, &Request)> {
        self.requests.iter().map(|(_, rid, request)| (rid, request))
    }

    pub(crate) fn request(&self, slot: Slot) -> Option<(&str, &Request)> {
        Some((self.requests.rid(slot)?, self.requests.get(slot)?))
    }

    /// The live request that the journal gave this number. Off the hot path: it looks at all of them.
    pub(crate) fn rid_of(&self, number: u64) -> Option<&str> {
        self.requests().find(|(_, request)| request.kept.number().0 == number).map(|(rid, _)| rid)
    }

    /// Accounts each row of a batch to its request. A batch with a rid that the journal cannot take goes on as a barrier.
    #[expect(clippy::result_large_err, reason = "one a frame: a box would cost more than the move")]
    pub(crate) fn account(&mut self, decoded: Decoded, keep: &mut Keep) -> Result<Accounted, Settled> {
        let (kept, batch) = match decoded {
            Decoded::Batch(kept, batch) => (kept, batch),
            Decoded::Barrier(kept, barrier) => return Err(self.settle_barrier(kept, &barrier, keep)),
        };
        self.abort_shape = Some(batch.abort_shape());
        let mut rows = std::mem::take(&mut self.rows);
        rows.clear();
        self.kept_requests.clear();
        self.tokens.clear();
        self.gaps.clear();
        self.requests.begin_batch();
        let (mut needs_edit, mut skips) = (false, false);
        let mut received = 0;
        let mut refused = None;
        let (counts, finishes) = (batch.completion_counts(), batch.finishes());
        let columns = batch.rid_bytes().zip(batch.token_counts()).zip(counts.zip(finishes));
        for (row, ((rid, tokens), (completion_tokens, finish))) in (0..).zip(columns) {
            let (slot, first) = match self.requests.find_next(rid) {
                Some(slot) => (slot, false),
                None => match keep.request(batch.rid(row)) {
                    Ok(request) => (self.begin(request, &batch, row, kept.at.instant), true),
                    Err(error) => {
                        refused = Some(error);
                        break;
                    }
                },
            };
            let Some(request) = self.requests.get_mut(slot) else { continue };
            let expected = request.counted + u64::from(tokens);
            if let Some(got) = completion_tokens.filter(|got| *got != expected) {
                self.gaps.push(journal::Gap { row, expected, got });
                self.telemetry.counters.request_gaps.add(1);
                let (stream, rid) = (self.telemetry.stream.clone(), batch.rid(row).to_owned());
                let frame = kept.frame.0;
                // The scheduler's count is what was to be expected; what came is what this row brings it to.
                self.telemetry.publish(RequestGap { stream, rid, frame, expected: got, got: expected });
            }
            request.received += u64::from(tokens);
            request.counted = completion_tokens.unwrap_or(expected);
            request.last_row = kept.at.instant;
            needs_edit |= request.shift != 0 || request.ended_early();
            skips |= request.skips_by.is_some();
            received += u64::from(tokens);
            self.kept_requests.push(request.kept);
            self.tokens.push(tokens);
            rows.push(Row {
                slot,
                number: request.kept.number().0,
                tokens,
                completion_tokens,
                finish: finish_kind(&finish),
                first,
                swallowed: request.ended_early(),
            });
        }
        if let Some(error) = refused {
            self.rows = rows;
            return Err(self.carry_whole(kept, batch, error.to_string(), keep));
        }
        self.telemetry.counters.rows_received.add(rows.len() as u64);
        self.telemetry.counters.tokens_received.add(received);
        Ok(Accounted { kept, batch, rows, needs_edit, skips })
    }

    /// Accounts a frame that an earlier run kept and had no time to account. Whether it was sent is not known.
    pub(crate) fn recover(&mut self, decoded: Decoded, keep: &mut Keep) -> Kept {
        match self.account(decoded, keep) {
            Ok(accounted) => {
                let judged = Judged { accounted, fates: Vec::new(), actions: Actions::default() };
                self.settle(judged, keep).kept
            }
            Err(barrier) => barrier.kept,
        }
    }

    fn begin(&mut self, kept: journal::Request, batch: &Batch, row: u32, now: Instant) -> Slot {
        let request = Request {
            kept,
            received: 0,
            forwarded: 0,
            replaced: 0,
            dropped: 0,
            swallowed: 0,
            counted: 0,
            shift: 0,
            prompt_tokens: batch.prompt_tokens(row).unwrap_or(0),
            reader_knows: false,
            ended_by: None,
            skips_by: None,
            last_row: now,
        };
        self.telemetry.counters.requests_opened.add(1);
        self.requests.insert(batch.rid(row), request)
    }

    /// Every row's fate is known: books it, writes the outcome, and makes what leaves.
    pub(crate) fn settle(&mut self, judged: Judged, keep: &mut Keep) -> Settled {
        let Judged { accounted: Accounted { kept, batch, rows, needs_edit, skips }, fates, mut actions } =
            judged;
        let aside = match skips || fates.iter().any(|fate| fate.way.is_some()) {
            true => self.ways(&rows, &fates, &batch, kept.frame, &mut actions),
            false => Vec::new(),
        };
        let edits = if needs_edit || !fates.is_empty() { self.edits(&rows, &fates) } else { Vec::new() };
        // `None`: as it came; `Some(None)`: nothing is left.
        let edited = match edits.is_empty() {
            true => None,
            false => match batch.edit(&edits) {
                Ok(edited) => Some(edited),
                Err(error) => {
                    self.not_edited(&actions, kept.frame, &error.to_string());
                    None
                }
            },
        };
        let applied: &[Edit] = if edited.is_some() { &edits } else { &[] };
        self.book(&rows, applied);
        let mut told: Vec<journal::Action<'_>> = actions.iter().collect();
        if edited.is_some() {
            self.telemetry.counters.frames_rewritten.add(1);
            self.tell_actions(&rows, &actions, kept.frame);
            self.tell_scheduler(&rows, &actions);
            told.extend(self.swallowed(&rows));
            told.sort_by_key(|action| action.row);
        }
        let finished = self.finished(&batch, &rows);
        keep.outcome(&journal::Outcome {
            frame: kept.frame,
            received_unix_ns: kept.at.unix_ns,
            passage: match &edited {
                None => journal::Passage::AsItCame,
                Some(None) => journal::Passage::Dropped,
                Some(Some(_)) => journal::Passage::Changed,
            },
            changed: edited.iter().flatten().next().map(|edited| &edited.bytes()[..]),
            requests: &self.kept_requests,
            tokens: &self.tokens,
            finished: &finished,
            gaps: &self.gaps,
            actions: &told,
        });
        self.end_requests(&rows, keep);
        let numbers = numbers(&rows, applied);
        let leaves = match edited {
            None => Leaves::Rows { batch, requests: numbers, alone: false, aside },
            Some(None) => Leaves::Nothing,
            Some(Some(edited)) => {
                let aside = ways::left(aside, applied);
                Leaves::Rows { batch: edited, requests: numbers, alone: false, aside }
            }
        };
        self.rows = rows;
        Settled { kept, leaves }
    }

    /// What must be written otherwise than it came, in order of rows.
    fn edits(&self, rows: &[Row], fates: &[Fate]) -> Vec<Edit> {
        let mut edits = Vec::new();
        for (index, row) in rows.iter().enumerate() {
            let Some(request) = self.requests.get(row.slot) else { continue };
            let fate = fates.get(index).unwrap_or(&Fate::KEEP);
            let mut edit = Edit::new(index as u32);
            let mut shift = request.shift;
            if row.swallowed {
                edit.tokens = Tokens::Drop;
            } else {
                match &fate.written {
                    Written::AsItCame => {}
                    Written::Delta(ids) => {
                        shift += ids.len() as i64 - i64::from(row.tokens);
                        edit.tokens = Tokens::Delta(ids.clone());
                    }
                    Written::Cumulative(ids) => edit.tokens = Tokens::Cumulative(ids.clone()),
                    Written::Dropped => {
                        shift -= i64::from(row.tokens);
                        let last = row.finish != FinishKind::Running || fate.finish.is_some();
                        // The reader must see both ends of a request.
                        edit.tokens =
                            if last || !request.reader_knows { Tokens::Empty } else { Tokens::Drop };
                    }
                }
                edit.text.clone_from(&fate.text);
                edit.finish.clone_from(&fate.finish);
            }
            if shift != 0 && !matches!(edit.tokens, Tokens::Drop) {
                edit.completion_tokens =
                    row.completion_tokens.map(|count| count.saturating_add_signed(shift));
            }
            if edit != Edit::new(index as u32) {
                edits.push(edit);
            }
        }
        edits
    }

    /// Books where each row's tokens went, by what was really written.
    fn book(&mut self, rows: &[Row], edits: &[Edit]) {
        let mut edits = edits.iter().peekable();
        let mut gone = [(0, 0); 3];
        let [replaced, dropped, swallowed] = &mut gone;
        let mut forwarded = (0, 0);
        for (index, row) in rows.iter().enumerate() {
            let Some(request) = self.requests.get_mut(row.slot) else { continue };
            let edit = edits.next_if(|edit| edit.row == index as u32);
            let tokens = u64::from(row.tokens);
            let (of_request, total) = match edit.map(|edit| &edit.tokens) {
                None | Some(Tokens::Keep) => (&mut request.forwarded, &mut forwarded),
                Some(Tokens::Delta(ids)) => {
                    request.shift += ids.len() as i64 - tokens as i64;
                    (&mut request.replaced, &mut *replaced)
                }
                Some(Tokens::Cumulative(_)) => (&mut request.replaced, &mut *replaced),
                Some(Tokens::Empty | Tokens::Drop) if row.swallowed => {
                    (&mut request.swallowed, &mut *swallowed)
                }
                Some(Tokens::Empty | Tokens::Drop) => {
                    request.shift -= tokens as i64;
                    (&mut request.dropped, &mut *dropped)
                }
            };
            *of_request += tokens;
            *total = (total.0 + 1, total.1 + tokens);
            request.reader_knows |= !matches!(edit.map(|edit| &edit.tokens), Some(Tokens::Drop));
        }
        let counters = &self.telemetry.counters;
        counters.rows_forwarded.add(forwarded.0);
        counters.tokens_forwarded.add(forwarded.1);
        counters.rows_replaced.add(replaced.0);
        counters.rows_dropped.add(dropped.0);
        counters.tokens_dropped.add(dropped.1);
        counters.rows_swallowed.add(swallowed.0);
        counters.tokens_swallowed.add(swallowed.1);
    }

    /// The wire could not carry what the plugins said.
    fn not_edited(&self, actions: &Actions, frame: journal::FrameNo, why: &str) {
        let mut plugins: Vec<&str> = actions.iter().map(|said| said.plugin).collect();
        plugins.dedup();
        for plugin in plugins {
            self.telemetry.publish(VerdictFailed {
                stream: self.telemetry.stream.clone(),
                plugin: plugin.into(),
                frame: frame.0,
                why: why.to_owned(),
            });
        }
    }

    /// Tells of requests that plugins have finished, and of rows that they have dropped.
    fn tell_actions(&mut self, rows: &[Row], actions: &Actions, frame: journal::FrameNo) {
        let stream = self.telemetry.stream.clone();
        // Dropped rows are told together: by plugin and reason.
        let mut dropped: Vec<RowsDropped> = Vec::new();
        for said in actions.iter() {
            let Some(row) = rows.get(said.row as usize) else { continue };
            let (stream, plugin) = (stream.clone(), said.plugin.into());
            match said.verdict {
                journal::Verdict::Finish | journal::Verdict::Abort => {
                    if let Some(request) = self.requests.get_mut(row.slot) {
                        request.ended_by = Some(said.plugin.into());
                    }
                    self.forget_ending(row.slot);
                    // That is told where the scheduler is.
                    if said.plugin == OPERATOR {
                        continue;
                    }
                    self.telemetry.publish(RequestFinishedEarly {
                        stream,
                        plugin,
                        rid: self.requests.rid(row.slot).unwrap_or_default().to_owned(),
                        reason: said.text.to_owned(),
                    });
                }
                journal::Verdict::Drop => {
                    let tokens = u64::from(row.tokens);
                    match dropped
                        .iter_mut()
                        .find(|told| *told.plugin == *said.plugin && told.reason == said.text)
                    {
                        Some(told) => (told.rows, told.tokens) = (told.rows + 1, told.tokens + tokens),
                        None => dropped.push(RowsDropped {
                            stream,
                            plugin,
                            reason: said.text.to_owned(),
                            frame: frame.0,
                            rows: 1,
                            tokens,
                        }),
                    }
                }
                _ => {}
            }
        }
        dropped.into_iter().for_each(|event| self.telemetry.publish(event));
    }

    /// What the journal is told of rows whose request a plugin had finished before.
    fn swallowed(&self, rows: &[Row]) -> impl Iterator<Item = journal::Action<'_>> {
        let swallowed = rows.iter().enumerate().filter(|(_, row)| row.swallowed);
        swallowed.map(|(index, row)| journal::Action {
            row: index as u32,
            plugin: self
                .requests
                .get(row.slot)
                .and_then(|request| request.ended_by.as_deref())
                .unwrap_or_default(),
            verdict: journal::Verdict::Drop,
            text: SWALLOWED,
            ids: &[],
            forwarded: 0,
        })
    }

    fn finished<'b>(&self, batch: &'b Batch, rows: &[Row]) -> Vec<journal::Finished<'b>> {
        let ended = rows.iter().enumerate().filter(|(_, row)| row.finish != FinishKind::Running);
        ended
            .map(|(index, row)| journal::Finished {
                row: index as u32,
                reason: finish_name(&batch.finish(index as u32)),
                completion_tokens: row.completion_tokens,
            })
            .collect()
    }

    /// Takes out the requests that the scheduler has ended, and looks whether their tokens add up.
    fn end_requests(&mut self, rows: &[Row], keep: &mut Keep) {
        for row in rows.iter().filter(|row| row.finish != FinishKind::Running) {
            let Some(rid) = self.requests.rid(row.slot).map(str::to_owned) else { continue };
            let Some(request) = self.requests.remove(row.slot) else { continue };
            self.forget_ending(row.slot);
            keep.close(request.kept);
            self.telemetry.counters.requests_finished.add(1);
            let Request { received, forwarded, replaced, dropped, swallowed, counted, .. } = request;
            if received != forwarded + replaced + dropped + swallowed || received != counted {
                self.telemetry.counters.request_imbalances.add(1);
                let stream = self.telemetry.stream.clone();
                self.telemetry.publish(RequestImbalance {
                    stream,
                    rid,
                    counted,
                    received,
                    forwarded,
                    replaced,
                    dropped,
                    swallowed,
                });
            }
        }
    }

    /// Forgets requests without a row for that long: their scheduler died, or lost them. Their numbers.
    pub(crate) fn abandon(&mut self, idle: Duration, now: Instant, keep: &mut Keep) -> Vec<u64> {
        let old = |request: &Request| now.saturating_duration_since(request.last_row) >= idle;
        let slots: Vec<Slot> =
            self.requests.iter().filter(|(_, _, request)| old(request)).map(|(slot, ..)| slot).collect();
        let mut gone = Vec::new();
        for slot in slots {
            let Some(rid) = self.requests.rid(slot).map(str::to_owned) else { continue };
            let Some(request) = self.requests.remove(slot) else { continue };
            self.forget_ending(slot);
            keep.close(request.kept);
            gone.push(request.kept.number().0);
            self.telemetry.publish(RequestAbandoned { stream: self.telemetry.stream.clone(), rid });
        }
        gone
    }
}

/// The requests of the rows that are left.
fn numbers(rows: &[Row], edits: &[Edit]) -> Box<[u64]> {
    if edits.is_empty() {
        // Its length is known, so that it is written once.
        return rows.iter().map(|row| row.number).collect();
    }
    let mut gone =
        edits.iter().filter(|edit| edit.tokens == Tokens::Drop).map(|edit| edit.row as usize).peekable();
    let left = rows.iter().enumerate().filter(|(index, _)| gone.next_if_eq(index).is_none());
    left.map(|(_, row)| row.number).collect()
}

fn finish_kind(finish: &Finish<'_>) -> FinishKind {
    match finish {
        Finish::Running => FinishKind::Running,
        Finish::Stop { .. } => FinishKind::Stop,
        Finish::Length => FinishKind::Length,
        Finish::Abort => FinishKind::Abort,
        Finish::Other => FinishKind::Other,
    }
}

/// As SGLang writes it in `type`.
fn finish_name(finish: &Finish<'_>) -> &'static str {
    match finish {
        Finish::Running => "running",
        Finish::Stop { .. } => "stop",
        Finish::Length => "length",
        Finish::Abort => "abort",
        Finish::Other => "other",
    }
}
