//! The ledger: which request each row belongs to, and where every token of it went.
//!
//! Owns the live requests and their counts. A batch comes in from decode, is accounted row by row, goes to the plugins,
//! and is settled when it is known what leaves: then every token that was received is forwarded, replaced or dropped,
//! and the outcome goes into the journal beside the frame. Knows nothing of wasm or of sockets.

mod account;
mod booking;
mod bound;
mod destinations;
mod endings;
mod released;
mod restart;
mod unread;
mod whole;

pub use endings::{ABORTED, FinishedEarly, LiveStatus, RequestStatus, TellScheduler};
pub use endings::{Aborts, OPERATOR};
pub use restart::RestartGap;

use crate::requests::Requests;
use afterbay_batch::{
    Accounted, ChainOutput, Decoded, Persisted, ReaderKey, RecordedVerdicts, RequestSlot, RoutingTable, Row,
    Settled, SettledContent,
};
use afterbay_events::Name;
use afterbay_events::StreamTelemetry;
use afterbay_events::event::{RequestFinishedEarly, RequestImbalance, RowsDropped, VerdictFailed};
use afterbay_hold::HeldRows;
use afterbay_journal as journal;
use afterbay_journal::reader::OperatorAbort;
use afterbay_persist::Persister;
use afterbay_runtime::FinishKind;
use afterbay_wire::{AbortShape, Batch, Edit, Finish, TokenEdit};
use bound::LiveBound;
use released::in_place_of;
use std::sync::Arc;
use std::time::Instant;

/// Why the tokens of a row went no further whose request a plugin had finished, for the journal.
const SWALLOWED: &str = "swallowed: the request had ended";

/// Stands for the plugin that finished a request before the last start: the journal has it in the request's rows only.
const EARLIER_RUN: &str = "(a plugin of an earlier run)";

/// A live request.
pub struct Request {
    /// Its handle in the journal; its number is also what plugins call it.
    pub handle: journal::JournalRequest,
    /// Tokens received, and where they went: `received == forwarded + replaced + dropped + swallowed + held` at
    /// every settled batch.
    pub received: u64,
    forwarded: u64,
    replaced: u64,
    dropped: u64,
    swallowed: u64,
    held: u64,
    /// The scheduler has ended it, and rows of it wait.
    lingers: bool,
    /// The scheduler's own count, at its last row.
    counted: u64,
    /// How many tokens that count has more than were received, as far as nobody can say where they are: their row could not be
    /// read, or Afterbay did not know the request when they came.
    unaccounted: i64,
    /// The next count that the scheduler says is taken as it is.
    is_uncounted: bool,
    /// The journal, and everybody whom Afterbay tells of it, has a hash in the place of its rid.
    is_rid_hashed: bool,
    /// Tokens of it that did not arrive around a start, as the start's own event says.
    missing: u64,
    /// What the reader was sent more (or less) than came: added to the scheduler's count in every later row.
    shift: i64,
    /// It is SGLang's own, to see whether it is alive: no plugin knows of it.
    is_health_check: bool,
    /// The prompt's length in tokens, 0 where the scheduler did not say.
    pub prompt_tokens: u64,
    /// A row of it has left for the reader, which so knows of it.
    reader_knows: bool,
    /// The plugin that has finished it: what still comes is swallowed.
    ended_by: Option<Name>,
    /// The plugin that lets it skip the detokenizer.
    skips_by: Option<Name>,
    /// Whom its rows are for.
    pub reader: ReaderKey,
    last_row: Instant,
}

impl Request {
    fn new(handle: journal::JournalRequest, now: Instant) -> Request {
        Request {
            handle,
            is_health_check: false,
            received: 0,
            forwarded: 0,
            replaced: 0,
            dropped: 0,
            swallowed: 0,
            held: 0,
            lingers: false,
            counted: 0,
            unaccounted: 0,
            is_uncounted: false,
            is_rid_hashed: false,
            missing: 0,
            shift: 0,
            prompt_tokens: 0,
            reader_knows: false,
            ended_by: None,
            skips_by: None,
            reader: ReaderKey::default(),
            last_row: now,
        }
    }

    /// Takes in what its first row says of it.
    fn first_row(&mut self, batch: &Batch, row: u32) {
        self.prompt_tokens = batch.prompt_tokens(row).unwrap_or(0);
        self.reader = ReaderKey::of(batch, row);
    }

    /// A plugin has finished it: no plugin sees what still comes.
    fn ended_early(&self) -> bool {
        self.ended_by.is_some()
    }

    /// No plugin knows of it, or none does any more.
    pub fn is_unseen(&self) -> bool {
        self.lingers || self.ended_early() || self.is_health_check
    }
}

/// The live requests of a stream and where their tokens went.
pub struct Ledger {
    requests: Requests<Request>,
    telemetry: StreamTelemetry,
    /// Requests whose end the operator has asked for.
    endings: Vec<(RequestSlot, OperatorAbort)>,
    /// What did not arrive since the last run.
    restart: RestartGap,
    /// How the scheduler reads an abort, by its last batch.
    abort_shape: Option<AbortShape>,
    /// Where rows may go but to their reader.
    routing: Arc<RoutingTable>,
    /// Who tells the scheduler of requests that plugins finish.
    upstream: Option<TellScheduler>,
    // Persisted between batches so that a batch allocates nothing.
    rows: Vec<Row>,
    handles: Vec<journal::JournalRequest>,
    tokens: Vec<u32>,
    gaps: Vec<journal::TokenGap>,
    /// Requests that live no longer than the frame in hand, though the scheduler goes on with them: there is no room for them, or
    /// they have no rid.
    brief: Vec<RequestSlot>,
    /// Rows of the frame in hand that end their requests as they begin them.
    begun_and_ended: usize,
    bound: LiveBound,
}

impl Ledger {
    /// A ledger that goes on with the requests that were live when the last run ended.
    pub fn new(
        live: &[journal::LiveRequest],
        aborts: Aborts,
        restart: RestartGap,
        routing: Arc<RoutingTable>,
        telemetry: StreamTelemetry,
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
                    ..Request::new(request.request, now)
                },
            );
            if info.ending != OperatorAbort::No && !info.ended_early {
                endings.push((slot, info.ending));
            }
        }
        let Aborts { upstream, shape: abort_shape } = aborts;
        Ledger {
            requests,
            telemetry,
            endings,
            restart,
            abort_shape,
            routing,
            upstream,
            rows: Vec::new(),
            handles: Vec::new(),
            tokens: Vec::new(),
            gaps: Vec::new(),
            brief: Vec::new(),
            begun_and_ended: 0,
            bound: LiveBound::default(),
        }
    }

    pub fn live(&self) -> usize {
        self.requests.len()
    }

    pub fn requests(&self) -> impl Iterator<Item = (&str, &Request)> {
        self.requests.iter().map(|(_, rid, request)| (rid, request))
    }

    pub fn request(&self, slot: RequestSlot) -> Option<(&str, &Request)> {
        Some((self.requests.rid(slot)?, self.requests.get(slot)?))
    }

    /// The name of the sink that reads the request; `None` where that is not known.
    pub fn sink_name(&self, request: &Request) -> Option<&Name> {
        self.routing.reader_name(&request.reader)
    }

    /// The live request that the journal gave this number. Off the hot path: it looks at all of them.
    pub fn rid_of(&self, number: u64) -> Option<&str> {
        self.requests().find(|(_, request)| request.handle.number().0 == number).map(|(rid, _)| rid)
    }

    /// Accounts a frame that an earlier run kept and had no time to account. Whether it was sent is not known.
    pub fn recover(
        &mut self,
        decoded: Decoded,
        held_rows: &mut HeldRows,
        persister: &mut Persister,
    ) -> Persisted {
        match self.account(decoded, persister) {
            Ok(accounted) => self.settle(ChainOutput::new(accounted), held_rows, persister).persisted,
            Err(barrier) => barrier.persisted,
        }
    }

    /// Every row's fate is known: books it, writes the outcome, and makes what leaves.
    pub fn settle(
        &mut self,
        mut output: ChainOutput,
        held_rows: &mut HeldRows,
        persister: &mut Persister,
    ) -> Settled {
        let (frame, now) = (output.accounted.persisted.frame, output.accounted.persisted.at.instant);
        let Accounted { any, is_released, .. } = output.accounted;
        let aside = match any.skips || output.decisions.iter().any(|decision| decision.way.is_some()) {
            true => self.destinations(&mut output),
            false => Vec::new(),
        };
        let needs_edit = any.needs_edit || !output.decisions.is_empty() || !output.instead.is_empty();
        let mut edits = if needs_edit { self.edits(&output) } else { Vec::new() };
        let instead: Vec<_> = in_place_of(&output);
        // `None`: as it came; `Some(None)`: nothing is left.
        let edited = match edits.is_empty() && instead.is_empty() {
            true => None,
            false => match output.accounted.batch.edit_replacing(&edits, &instead) {
                Ok(edited) => Some(edited),
                Err(error) => {
                    self.not_edited(&output.actions, frame, &error.to_string());
                    edits = self.wait_again(&mut output, held_rows, now);
                    let batch = &output.accounted.batch;
                    match output.guard.clone() {
                        Some(guard) => Some(self.end_all(&mut output, &guard, &mut edits)),
                        None if edits.is_empty() => None,
                        None => batch.edit(&edits).ok(),
                    }
                }
            },
        };
        let ChainOutput { accounted: Accounted { persisted, batch, rows, .. }, .. } = &output;
        let applied: &[Edit] = if edited.is_some() { &edits } else { &[] };
        self.book(&output, applied);
        let mut told: Vec<journal::PluginAction<'_>> = output.actions.plugin_actions().collect();
        if edited.is_some() || is_released {
            self.telemetry.counters.frames_rewritten.add(1);
            self.tell_actions(rows, &output.actions, persisted.frame);
            self.tell_scheduler(rows, &output.actions);
            told.extend(self.swallowed(rows));
            told.sort_by_key(|action| action.row);
        }
        let finished = if is_released || !any.ends { Vec::new() } else { self.finished(batch, rows) };
        let passage = match &edited {
            None if is_released => journal::Passage::Changed,
            None => journal::Passage::Unchanged,
            Some(None) => journal::Passage::Dropped,
            Some(Some(_)) => journal::Passage::Changed,
        };
        let left = edited.as_ref().map_or(Some(batch), Option::as_ref);
        persister.record_first_held(held_rows.oldest());
        persister.record_outcome(&journal::Outcome {
            frame: persisted.frame,
            received_unix_ns: persisted.at.unix_ns,
            changed: left.filter(|_| passage == journal::Passage::Changed).map(|left| left.bytes().clone()),
            passage,
            requests: (&self.handles).into(),
            tokens: (&self.tokens).into(),
            finished: finished.into(),
            gaps: (&self.gaps).into(),
            actions: told.into(),
        });
        persister.record_held_from(held_rows.oldest());
        if any.ends {
            self.end_requests(rows, held_rows, persister);
        }
        if !self.brief.is_empty() {
            self.end_brief(persister);
        }
        let requests = numbers(rows, applied);
        let aside = destinations::left(aside, applied);
        let ChainOutput { accounted: Accounted { persisted, batch, rows, .. }, .. } = output;
        let content = match edited {
            None => SettledContent::Rows { alone: !batch.has_text_rids(), batch, requests, aside },
            Some(None) => SettledContent::Nothing,
            Some(Some(batch)) => {
                SettledContent::Rows { alone: !batch.has_text_rids(), batch, requests, aside }
            }
        };
        self.rows = rows;
        Settled { persisted, content }
    }

    /// The wire could not carry what the plugins said.
    fn not_edited(&self, actions: &RecordedVerdicts, frame: journal::FrameNo, why: &str) {
        let mut plugins: Vec<&str> = actions.iter().map(|said| &*said.plugin).collect();
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
    fn tell_actions(&mut self, rows: &[Row], actions: &RecordedVerdicts, frame: journal::FrameNo) {
        let stream = self.telemetry.stream.clone();
        // Dropped rows are told together: by plugin and reason.
        let mut dropped: Vec<RowsDropped> = Vec::new();
        for said in actions.iter() {
            let Some(row) = rows.get(said.row as usize) else { continue };
            let (stream, plugin) = (stream.clone(), (&*said.plugin).into());
            match said.verdict {
                journal::Verdict::Finish | journal::Verdict::Abort => {
                    if let Some(request) = self.requests.get_mut(row.slot) {
                        request.ended_by = Some((&*said.plugin).into());
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
                        reason: said.text.clone(),
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
                            reason: said.text.clone(),
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
    fn swallowed(&self, rows: &[Row]) -> impl Iterator<Item = journal::PluginAction<'_>> {
        let swallowed = rows.iter().enumerate().filter(|(_, row)| row.swallowed);
        swallowed.map(|(index, row)| journal::PluginAction {
            row: index as u32,
            plugin: self
                .requests
                .get(row.slot)
                .and_then(|request| request.ended_by.as_deref())
                .unwrap_or_default()
                .into(),
            verdict: journal::Verdict::Drop,
            text: SWALLOWED.into(),
            ids: Vec::new().into(),
            forwarded: 0,
        })
    }

    fn finished<'b>(&self, batch: &'b Batch, rows: &[Row]) -> Vec<journal::RowFinish<'b>> {
        let ended = rows.iter().enumerate().filter(|(_, row)| row.finish != FinishKind::Running);
        ended
            .map(|(index, row)| journal::RowFinish {
                row: index as u32,
                reason: finish_name(&batch.finish(index as u32)).into(),
                // Not what tokens that are not accounted have a part in.
                completion_tokens: row.completion_tokens.filter(|_| self.is_accounted(row.slot)),
            })
            .collect()
    }

    fn is_accounted(&self, slot: RequestSlot) -> bool {
        self.requests.get(slot).is_none_or(|request| request.unaccounted == 0)
    }

    /// Takes out the requests that the scheduler has ended, and looks whether their tokens add up.
    fn end_requests(&mut self, rows: &[Row], held_rows: &HeldRows, persister: &mut Persister) {
        for row in rows.iter().filter(|row| row.ends) {
            let Some(request) = self.requests.get_mut(row.slot) else { continue };
            // Until what waits of it has gone on.
            request.lingers = held_rows.has(row.number);
            if request.lingers {
                continue;
            }
            let Some(rid) = self.requests.rid(row.slot).map(str::to_owned) else { continue };
            let Some(request) = self.requests.remove(row.slot) else { continue };
            self.forget_ending(row.slot);
            persister.record_close(request.handle);
            self.telemetry.counters.requests_finished.add(1);
            let Request { received, forwarded, replaced, dropped, swallowed, held, counted, .. } = request;
            let all = received.wrapping_add_signed(request.unaccounted);
            let is_placed = received == forwarded + replaced + dropped + swallowed && held == 0;
            if is_placed && all == counted {
                continue;
            }
            self.telemetry.counters.request_imbalances.add(1);
            // What is missing since a start has its own event.
            if !is_placed || all + request.missing != counted {
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
    edits.iter().filter(|edit| edit.tokens == TokenEdit::Drop).map(|edit| edit.row)
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
