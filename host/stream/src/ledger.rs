//! The ledger: which request each row belongs to, and where every token of it went.
//!
//! Owns the live requests and their counts. A batch comes in from decode, is accounted row by row, goes to the plugins,
//! and is settled when it is known what leaves: then every token that was received is forwarded, replaced or dropped,
//! and the outcome goes into the journal beside the frame. Knows nothing of wasm or of sockets.

mod booking;
mod endings;
mod released;
mod row;
mod ways;
mod whole;

pub use endings::{ABORTED, FinishedEarly, Live, Looked, TellScheduler};
pub(crate) use endings::{Aborts, OPERATOR};
pub(crate) use row::{Accounted, Any, Row};
pub(crate) use ways::Ways;

use crate::actions::Actions;
use crate::decode::Decoded;
use crate::hold::Holds;
use crate::judge::Judged;
use crate::keep::{Keep, Kept};
use crate::requests::{Requests, Slot};
use crate::route::{Awaited, Leaves, Reader};
use crate::telemetry::Telemetry;
use afterbay_events::event::{
    RequestAbandoned, RequestFinishedEarly, RequestGap, RequestImbalance, RowsDropped, VerdictFailed,
};
use afterbay_events::{HoldEnd, Name};
use afterbay_journal as journal;
use afterbay_journal::reader::Ending;
use afterbay_runtime::FinishKind;
use afterbay_wire::{AbortShape, Batch, Edit, Finish, Tokens, is_health_check};
use released::in_place_of;
use std::time::{Duration, Instant};

/// Why the tokens of a row went no further whose request a plugin had finished, for the journal.
const SWALLOWED: &str = "swallowed: the request had ended";

/// Stands for the plugin that finished a request before the last start: the journal has it in the request's rows only.
const EARLIER_RUN: &str = "(a plugin of an earlier run)";

/// A live request.
pub(crate) struct Request {
    /// Its handle in the journal; its number is also what plugins call it.
    pub(crate) kept: journal::Request,
    /// Tokens received, and where they went: `received == forwarded + replaced + dropped + swallowed + held` at
    /// every settled batch.
    pub(crate) received: u64,
    forwarded: u64,
    replaced: u64,
    dropped: u64,
    swallowed: u64,
    held: u64,
    /// The scheduler has ended it, and rows of it wait.
    lingers: bool,
    /// The scheduler's own count, at its last row.
    counted: u64,
    /// What the reader was sent more (or less) than came: added to the scheduler's count in every later row.
    shift: i64,
    /// It is SGLang's own, to see whether it is alive: no plugin knows of it.
    is_health_check: bool,
    /// The prompt's length in tokens, 0 where the scheduler did not say.
    pub(crate) prompt_tokens: u64,
    /// A row of it has left for the reader, which so knows of it.
    reader_knows: bool,
    /// The plugin that has finished it: what still comes is swallowed.
    ended_by: Option<Name>,
    /// The plugin that lets it skip the detokenizer.
    skips_by: Option<Name>,
    /// Whom its rows are for.
    pub(crate) reader: Reader,
    last_row: Instant,
}

impl Request {
    fn new(kept: journal::Request, rid: &str, now: Instant) -> Request {
        Request {
            kept,
            is_health_check: is_health_check(rid.as_bytes()),
            received: 0,
            forwarded: 0,
            replaced: 0,
            dropped: 0,
            swallowed: 0,
            held: 0,
            lingers: false,
            counted: 0,
            shift: 0,
            prompt_tokens: 0,
            reader_knows: false,
            ended_by: None,
            skips_by: None,
            reader: Reader::default(),
            last_row: now,
        }
    }

    /// Takes in what its first row says of it.
    fn meet(&mut self, batch: &Batch, row: u32) {
        self.prompt_tokens = batch.prompt_tokens(row).unwrap_or(0);
        self.reader = Reader::of(batch, row);
    }

    /// A plugin has finished it: no plugin sees what still comes.
    fn ended_early(&self) -> bool {
        self.ended_by.is_some()
    }

    /// No plugin knows of it, or none does any more.
    pub(crate) fn is_unseen(&self) -> bool {
        self.lingers || self.ended_early() || self.is_health_check
    }
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
    /// Requests whose end the operator has asked for.
    endings: Vec<(Slot, Ending)>,
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
        let (mut requests, mut endings) = (Requests::new(), Vec::new());
        for request in live {
            let info = &request.info;
            // Tokens that were replaced, held and dropped may count as both.
            let dropped = info.dropped.min(info.received);
            let replaced = info.replaced.min(info.received - dropped);
            let slot = requests.insert(
                &info.rid,
                Request {
                    received: info.received,
                    forwarded: info.received - dropped - replaced,
                    replaced,
                    dropped,
                    counted: info.received,
                    shift: info.forwarded as i64 - info.received as i64,
                    reader_knows: true,
                    ended_by: info.ended_early.then(|| EARLIER_RUN.into()),
                    ..Request::new(request.request, &info.rid, now)
                },
            );
            if info.ending != Ending::No && !info.ended_early {
                endings.push((slot, info.ending));
            }
        }
        let Aborts { upstream, shape: abort_shape } = aborts;
        Ledger {
            requests,
            telemetry,
            endings,
            abort_shape,
            ways: Ways::default(),
            upstream,
            rows: Vec::new(),
            kept_requests: Vec::new(),
            tokens: Vec::new(),
            gaps: Vec::new(),
        }
    }

    pub(crate) fn live(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn requests(&self) -> impl Iterator<Item = (&str, &Request)> {
        self.requests.iter().map(|(_, rid, request)| (rid, request))
    }

    /// The live requests, as far as sinks wait for their end.
    pub(crate) fn awaited(&self) -> Vec<Awaited> {
        let awaited = |(_, request): (&str, &Request)| Awaited {
            number: request.kept.number().0,
            key: request.reader.key,
            skips_detokenizer: request.skips_by.is_some(),
        };
        self.requests().map(awaited).collect()
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
        let mut any = Any::default();
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
            let swallowed = request.ended_early();
            received += u64::from(tokens);
            self.kept_requests.push(request.kept);
            self.tokens.push(tokens);
            let finish = finish_kind(&finish);
            let row = Row {
                slot,
                number: request.kept.number().0,
                tokens,
                completion_tokens,
                finish,
                first,
                ends: finish != FinishKind::Running || request.lingers,
                swallowed,
                unseen: swallowed || request.is_health_check,
            };
            any.count(&row, request.shift != 0, request.skips_by.is_some());
            rows.push(row);
        }
        if let Some(error) = refused {
            self.rows = rows;
            return Err(self.carry_whole(kept, batch, error.to_string(), keep));
        }
        self.telemetry.counters.rows_received.add(rows.len() as u64);
        self.telemetry.counters.tokens_received.add(received);
        Ok(Accounted { kept, batch, rows, any, is_released: false })
    }

    /// Accounts a frame that an earlier run kept and had no time to account. Whether it was sent is not known.
    pub(crate) fn recover(&mut self, decoded: Decoded, holds: &mut Holds, keep: &mut Keep) -> Kept {
        match self.account(decoded, keep) {
            Ok(accounted) => self.settle(Judged::new(accounted), holds, keep).kept,
            Err(barrier) => barrier.kept,
        }
    }

    fn begin(&mut self, kept: journal::Request, batch: &Batch, row: u32, now: Instant) -> Slot {
        let rid = batch.rid(row);
        let mut request = Request::new(kept, rid, now);
        request.meet(batch, row);
        self.telemetry.counters.requests_opened.add(1);
        self.requests.insert(rid, request)
    }

    /// Every row's fate is known: books it, writes the outcome, and makes what leaves.
    pub(crate) fn settle(&mut self, mut judged: Judged, holds: &mut Holds, keep: &mut Keep) -> Settled {
        let (frame, now) = (judged.accounted.kept.frame, judged.accounted.kept.at.instant);
        let Accounted { any, is_released, .. } = judged.accounted;
        let aside = match any.skips || judged.fates.iter().any(|fate| fate.way.is_some()) {
            true => self.ways(&mut judged),
            false => Vec::new(),
        };
        let needs_edit = any.needs_edit || !judged.fates.is_empty() || !judged.instead.is_empty();
        let mut edits = if needs_edit { self.edits(&judged) } else { Vec::new() };
        let instead: Vec<_> = in_place_of(&judged);
        // `None`: as it came; `Some(None)`: nothing is left.
        let edited = match edits.is_empty() && instead.is_empty() {
            true => None,
            false => match judged.accounted.batch.edit_instead(&edits, &instead) {
                Ok(edited) => Some(edited),
                Err(error) => {
                    self.not_edited(&judged.actions, frame, &error.to_string());
                    edits = self.wait_again(&mut judged, holds, now);
                    let batch = &judged.accounted.batch;
                    if edits.is_empty() { None } else { batch.edit(&edits).ok() }
                }
            },
        };
        let Judged { accounted: Accounted { kept, batch, rows, .. }, .. } = &judged;
        let applied: &[Edit] = if edited.is_some() { &edits } else { &[] };
        self.book(&judged, applied);
        let mut told: Vec<journal::Action<'_>> = judged.actions.iter().collect();
        if edited.is_some() || is_released {
            self.telemetry.counters.frames_rewritten.add(1);
            self.tell_actions(rows, &judged.actions, kept.frame);
            self.tell_scheduler(rows, &judged.actions);
            told.extend(self.swallowed(rows));
            told.sort_by_key(|action| action.row);
        }
        let finished = if is_released || !any.ends { Vec::new() } else { self.finished(batch, rows) };
        let passage = match &edited {
            None if is_released => journal::Passage::Changed,
            None => journal::Passage::AsItCame,
            Some(None) => journal::Passage::Dropped,
            Some(Some(_)) => journal::Passage::Changed,
        };
        let left = edited.as_ref().map_or(Some(batch), Option::as_ref);
        keep.hold_from(holds.oldest());
        keep.outcome(&journal::Outcome {
            frame: kept.frame,
            received_unix_ns: kept.at.unix_ns,
            passage,
            changed: left.filter(|_| passage == journal::Passage::Changed).map(|left| &left.bytes()[..]),
            requests: &self.kept_requests,
            tokens: &self.tokens,
            finished: &finished,
            gaps: &self.gaps,
            actions: &told,
        });
        keep.held_from(holds.oldest());
        if any.ends {
            self.end_requests(rows, holds, keep);
        }
        let requests = numbers(rows, applied);
        let aside = ways::left(aside, applied);
        let Judged { accounted: Accounted { kept, batch, rows, .. }, .. } = judged;
        let leaves = match edited {
            None => Leaves::Rows { batch, requests, alone: false, aside },
            Some(None) => Leaves::Nothing,
            Some(Some(edited)) => Leaves::Rows { batch: edited, requests, alone: false, aside },
        };
        self.rows = rows;
        Settled { kept, leaves }
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
    fn end_requests(&mut self, rows: &[Row], holds: &Holds, keep: &mut Keep) {
        for row in rows.iter().filter(|row| row.ends) {
            let Some(request) = self.requests.get_mut(row.slot) else { continue };
            // Until what waits of it has gone on.
            request.lingers = holds.has(row.number);
            if request.lingers {
                continue;
            }
            let Some(rid) = self.requests.rid(row.slot).map(str::to_owned) else { continue };
            let Some(request) = self.requests.remove(row.slot) else { continue };
            self.forget_ending(row.slot);
            keep.close(request.kept);
            self.telemetry.counters.requests_finished.add(1);
            let Request { received, forwarded, replaced, dropped, swallowed, held, counted, .. } = request;
            if received != forwarded + replaced + dropped + swallowed || held != 0 || received != counted {
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
    pub(crate) fn abandon(
        &mut self,
        idle: Duration,
        now: Instant,
        holds: &mut Holds,
        keep: &mut Keep,
    ) -> Vec<u64> {
        let old = |request: &Request| now.saturating_duration_since(request.last_row) >= idle;
        let slots: Vec<Slot> =
            self.requests.iter().filter(|(_, _, request)| old(request)).map(|(slot, ..)| slot).collect();
        let mut gone = Vec::new();
        for slot in slots {
            let Some(rid) = self.requests.rid(slot).map(str::to_owned) else { continue };
            // What waits of it goes first, and it the next time.
            if let Some(number) = self.requests.get(slot).map(|request| request.kept.number().0)
                && holds.has(number)
            {
                holds.end_all(HoldEnd::Stop, Some(number));
                continue;
            }
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
    let mut gone = dropped(edits).peekable();
    let left = (0..).zip(rows).filter(|(index, _)| gone.next_if_eq(index).is_none());
    left.map(|(_, row)| row.number).collect()
}

/// The rows that leave the batch.
fn dropped(edits: &[Edit]) -> impl Iterator<Item = u32> {
    edits.iter().filter(|edit| edit.tokens == Tokens::Drop).map(|edit| edit.row)
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
