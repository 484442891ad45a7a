//! The calls to services that a plugin's instance has made, the answers that it has not received yet, its timers, and the ends of
//! requests that it decided between two batches.

use super::PluginSlot;
use super::state::SlotState;
use crate::calls::{self, CallFailure, CallHandle, CallOutcome, ChainCalls, ServiceResponse};
use crate::context::ChainContext;
use crate::hand_over::{HandedBytes, HandedCall, HandedEnd};
use afterbay_batch::hold::HeldRows;
use afterbay_batch::ledger::Ledger;
use afterbay_config::OnFault;
use afterbay_events::{HoldEnd, Verdict as VerdictKind};
use afterbay_journal::FrameNo;
use afterbay_runtime::{CallId, Ending, RequestAction, RequestVerdict, SentCall, Unsent};
use bytes::Bytes;
use std::any::Any;
use std::collections::{HashMap, HashSet, VecDeque};

/// Calls of one instance that have not ended. A further call fails as overloaded.
const OPEN_MAX: usize = 4096;
/// Answers that one call of the plugin gets. The batch after it waits for that call.
const ANSWERS_AT_ONCE: usize = 32;
/// Milliseconds between two calls about timers: a plugin that sets a timer in the past makes no stream busy.
const TIMERS_EVERY_MS: u64 = 10;
/// Bytes of bodies that one call of the plugin gets, if it gets more than one answer.
const BODIES_AT_ONCE: usize = 1 << 20;

/// The calls of a slot.
#[derive(Default)]
pub(super) struct SlotCalls {
    /// Calls of the process before that are to be asked again.
    again: Vec<HandedCall>,
    /// The calls under way, by ticket.
    open: HashMap<u64, OpenCall>,
    /// The calls whose outcome the instance has not received.
    ended: VecDeque<EndedCall>,
    /// The ends of requests that have no last row yet.
    ends: HashMap<u64, RequestEnd>,
    /// The number of the last call.
    last: CallId,
}

struct OpenCall {
    call: CallId,
    request: u64,
    endpoint: String,
    body: Bytes,
    _handle: CallHandle,
}

struct EndedCall {
    call: CallId,
    request: u64,
    result: Result<ServiceResponse, CallFailure>,
    /// The endpoint and the body; `None` if the call was not sent.
    question: Option<(String, Bytes)>,
    _place: Option<Box<dyn Any + Send>>,
}

/// The end of a request, decided between two batches.
pub enum RequestEnd {
    /// The plugin ends the request.
    Finish(Ending),
    /// A call failed, and `on_fault` is `terminate`: the request is aborted with this message.
    Terminate(String),
}

impl EndedCall {
    fn new(call: CallId, request: u64, result: Result<ServiceResponse, CallFailure>) -> EndedCall {
        EndedCall { call, request, result, question: None, _place: None }
    }
}

impl SlotCalls {
    /// Forgets the calls of an instance that no longer exists, and cancels those under way.
    pub(super) fn forget_instance(&mut self) {
        self.again.clear();
        self.open.clear();
        self.ended.clear();
    }

    /// Forgets everything about requests that have ended.
    pub(super) fn close(&mut self, requests: &[u64]) {
        if self.open.is_empty() && self.ended.is_empty() && self.ends.is_empty() {
            return;
        }
        let closed: HashSet<u64> = requests.iter().copied().collect();
        self.open.retain(|_, call| !closed.contains(&call.request));
        self.ended.retain(|call| !closed.contains(&call.request));
        self.ends.retain(|request, _| !closed.contains(request));
    }

    /// The calls that a successor is told of as cancelled: it has imported the state of the instance that made them.
    pub(super) fn take_cancelled(&mut self) -> Vec<(CallId, u64)> {
        let open = self.open.drain().map(|(_, call)| (call.call, call.request));
        let ended = self.ended.drain(..).map(|call| (call.call, call.request));
        let mut all: Vec<(CallId, u64)> = open.chain(ended).collect();
        all.sort_unstable();
        all
    }

    /// The number of the last call.
    pub(super) fn last(&self) -> CallId {
        self.last
    }

    /// The calls whose answers the instance does not have, in order, for a hand-over. The bodies that find no room are left out.
    pub(super) fn unanswered(&self, mut has_room: impl FnMut(&[u8]) -> bool) -> Vec<HandedCall> {
        let open =
            self.open.values().map(|open| (open.call, open.request, Some((&open.endpoint, &open.body))));
        let ended = self.ended.iter().map(|ended| {
            (ended.call, ended.request, ended.question.as_ref().map(|(endpoint, body)| (endpoint, body)))
        });
        let mut all: Vec<_> = open.chain(ended).collect();
        all.sort_unstable_by_key(|(call, ..)| *call);
        let handed = all.into_iter().map(|(call, request, question)| {
            let body = question.map(|(_, body)| body).filter(|body| has_room(body));
            HandedCall {
                call,
                request,
                endpoint: question.map_or_else(String::new, |(endpoint, _)| endpoint.clone()),
                body: body.map(|body| HandedBytes(body.to_vec())),
            }
        });
        self.again.iter().cloned().chain(handed).collect()
    }

    /// The ends of requests that have no last row yet, for a hand-over.
    pub(super) fn ends_to_hand(&self) -> Vec<(u64, HandedEnd)> {
        let end = |end: &RequestEnd| match end {
            RequestEnd::Finish(ending) => HandedEnd::of(ending),
            RequestEnd::Terminate(message) => HandedEnd::Terminate { message: message.clone() },
        };
        self.ends.iter().map(|(request, of_request)| (*request, end(of_request))).collect()
    }

    /// Continues the calls and the ends of the process before, for the open requests.
    pub(super) fn take_over(&mut self, last: CallId, ends: Vec<(u64, HandedEnd)>, ledger: &Ledger) {
        self.last = last;
        let ends = ends.into_iter().filter(|(request, _)| ledger.is_open(*request));
        self.ends = ends
            .map(|(request, end)| {
                let ending = end.into_ending();
                (request, ending.map_or_else(RequestEnd::Terminate, RequestEnd::Finish))
            })
            .collect();
    }

    /// Asks these calls again the next time that calls are sent.
    pub(super) fn ask_again(&mut self, calls: Vec<HandedCall>) {
        self.again = calls;
    }

    pub(super) fn cancel(&mut self, calls: Vec<(CallId, u64)>) {
        let cancelled = |(call, request)| EndedCall::new(call, request, Err(CallFailure::Cancelled));
        self.ended.extend(calls.into_iter().map(cancelled));
    }

    /// The number after which a successor that imports the state begins, so that its calls have other numbers. The instance may
    /// make further calls until the successor takes over.
    pub(super) fn numbers_of_successor(&self) -> CallId {
        self.last + (1 << 32)
    }

    fn start(
        &mut self,
        plugin: &afterbay_events::Name,
        (call, request): (CallId, u64),
        endpoint: String,
        body: Bytes,
        calls: &mut ChainCalls,
    ) {
        let (ticket, handle) = calls.send(plugin, &endpoint, body.clone());
        self.open.insert(ticket, OpenCall { call, request, endpoint, body, _handle: handle });
    }

    /// The next answers for one call of the plugin.
    fn next_group(&mut self) -> Vec<EndedCall> {
        let (mut group, mut bytes) = (Vec::new(), 0);
        while let Some(next) = self.ended.front() {
            bytes += next.result.as_ref().map_or(0, |response| response.body.len());
            if group.len() == ANSWERS_AT_ONCE || (bytes > BODIES_AT_ONCE && !group.is_empty()) {
                break;
            }
            group.extend(self.ended.pop_front());
        }
        group
    }
}

impl PluginSlot {
    /// Whether [`PluginSlot::send_calls`] sends any.
    pub fn has_unsent_calls(&self) -> bool {
        !self.calls.again.is_empty() || self.state.running().is_some_and(|(plugin, _)| plugin.has_calls())
    }

    /// Whether a call has not ended, or its answer was not delivered.
    pub fn has_open_calls(&self) -> bool {
        let SlotCalls { again, open, ended, .. } = &self.calls;
        !again.is_empty() || !open.is_empty() || !ended.is_empty()
    }

    /// Whether the plugin may hold the last row of a request: only a plugin that calls services can release the row later.
    pub fn may_hold_last_rows(&self) -> bool {
        self.component.grants().call
    }

    /// Sends the calls that the instance has made.
    pub fn send_calls(&mut self, ledger: &Ledger, calls: &mut ChainCalls) {
        for HandedCall { call, request, endpoint, body } in std::mem::take(&mut self.calls.again) {
            match body.filter(|_| ledger.is_open(request)) {
                Some(body) => {
                    let (name, of) = (&self.telemetry.plugin, (call, request));
                    self.calls.start(name, of, endpoint, body.0.into(), calls);
                }
                None => self.calls.cancel(vec![(call, request)]),
            }
        }
        let SlotState::Running { plugin, .. } = &mut self.state else { return };
        for SentCall { call, request, endpoint, body } in plugin.drain_calls() {
            self.calls.last = call;
            let body = match body {
                Err(Unsent::NotOnPath) => Err(CallFailure::Cancelled),
                Err(Unsent::TooMany) => Err(CallFailure::Overloaded),
                Err(why) => Err(CallFailure::Refused(why.to_string())),
                Ok(_) if !ledger.is_open(request) => {
                    Err(CallFailure::Refused(format!("request {request} is not open")))
                }
                Ok(_) if self.calls.open.len() >= OPEN_MAX => Err(CallFailure::Overloaded),
                Ok(body) => Ok(Bytes::from(body)),
            };
            match body {
                Ok(body) => {
                    let (name, of) = (&self.telemetry.plugin, (call, request));
                    self.calls.start(name, of, endpoint, body, calls);
                }
                Err(error) => self.calls.ended.push_back(EndedCall::new(call, request, Err(error))),
            }
        }
    }

    /// Takes the outcome of a call. An outcome for an instance or a request that no longer exists is dropped.
    pub fn call_ended(&mut self, ticket: u64, outcome: CallOutcome) {
        let Some(open) = self.calls.open.remove(&ticket) else { return };
        let CallOutcome { result, place } = outcome;
        let ended = EndedCall::new(open.call, open.request, result);
        let question = Some((open.endpoint, open.body));
        self.calls.ended.push_back(EndedCall { question, _place: Some(place), ..ended });
    }

    /// Delivers answers to the instance, and applies what it decides about their requests. Returns whether more answers wait.
    pub fn deliver_answers(&mut self, held_rows: &mut HeldRows, context: ChainContext<'_>) -> bool {
        let delivered = self.calls.next_group();
        if delivered.is_empty() {
            return false;
        }
        delivered.iter().for_each(|ended| self.apply_call_failure(ended, held_rows));
        let answers = delivered.iter().map(|ended| calls::answer(ended.call, ended.request, &ended.result));
        let answers: Vec<_> = answers.collect();
        let verdicts = self.call(context, |plugin| plugin.answered(&answers)).unwrap_or_default();
        for verdict in verdicts {
            self.apply_request_verdict(verdict, held_rows, context);
        }
        self.end_lost_holds(held_rows);
        !self.calls.ended.is_empty()
    }

    /// Does what `on_fault` says about a failed call.
    fn apply_call_failure(&mut self, ended: &EndedCall, held_rows: &mut HeldRows) {
        if matches!(ended.result, Ok(_) | Err(CallFailure::Cancelled)) || self.is_shadow() {
            return;
        }
        let request = ended.request;
        match self.on_fault() {
            OnFault::Bypass => {
                held_rows.end_request(request, &self.telemetry.plugin, HoldEnd::Call);
            }
            OnFault::Terminate => {
                let message = format!("afterbay: a call of plugin {:?} failed", self.name());
                self.calls.ends.insert(request, RequestEnd::Terminate(message));
                held_rows.finish(request, &self.telemetry.plugin, HoldEnd::Call);
            }
        }
    }

    /// The time of the next call about timers, in milliseconds since 1970.
    pub fn next_timer_ms(&self) -> Option<u64> {
        let (plugin, _) = self.state.running()?;
        plugin.next_timer_ms().map(|next| next.max(self.timers_after_ms))
    }

    /// Tells the instance of the timers that are due, and applies what it decides about their requests.
    pub fn tell_of_timers(&mut self, held_rows: &mut HeldRows, context: ChainContext<'_>) {
        let now_ms = context.now.unix_ns / 1_000_000;
        if self.next_timer_ms().is_none_or(|next| next > now_ms) {
            return;
        }
        self.timers_after_ms = now_ms + TIMERS_EVERY_MS;
        let verdicts = self.call(context, |plugin| plugin.due(now_ms)).unwrap_or_default();
        for verdict in verdicts {
            self.apply_request_verdict(verdict, held_rows, context);
        }
        self.end_lost_holds(held_rows);
    }

    /// Gives each request that is to end, and of which the plugin holds no row, a row to end with.
    pub fn give_rows_to_ends(&self, held_rows: &mut HeldRows, frame: FrameNo, context: ChainContext<'_>) {
        for request in self.calls.ends.keys() {
            if held_rows.entries(*request, self.name()) > 0 {
                continue;
            }
            if let Some((handle, row)) = context.ledger.blank_row(*request, frame) {
                held_rows.hold(handle, &self.telemetry.plugin, row, context.now.instant);
                held_rows.finish(*request, &self.telemetry.plugin, HoldEnd::Verdict);
            }
        }
    }

    fn apply_request_verdict(
        &mut self,
        RequestVerdict { request, action }: RequestVerdict,
        held_rows: &mut HeldRows,
        context: ChainContext<'_>,
    ) {
        let ending = match action {
            RequestAction::Release(rows) => {
                self.telemetry.counters.verdicts.add(VerdictKind::Release, 1);
                if !self.is_shadow() {
                    held_rows.release_first(request, &self.telemetry.plugin, rows, context.now.instant);
                }
                return;
            }
            RequestAction::Finish(ending) => ending,
        };
        self.telemetry.counters.verdicts.add(ending.kind(), 1);
        if context.ledger.is_open(request) && !self.is_shadow() {
            // A request that a failed call has terminated stays so.
            self.calls.ends.entry(request).or_insert(RequestEnd::Finish(ending));
            held_rows.finish(request, &self.telemetry.plugin, HoldEnd::Verdict);
        }
    }

    /// Whether [`PluginSlot::take_end`] returns any.
    pub fn has_ends(&self) -> bool {
        !self.calls.ends.is_empty()
    }

    /// Takes the end of this request, to be applied to its next row.
    pub fn take_end(&mut self, request: u64) -> Option<RequestEnd> {
        self.calls.ends.remove(&request)
    }

    /// Forgets the ends of requests that are not open.
    pub(super) fn retain_ends(&mut self, ledger: &Ledger) {
        self.calls.ends.retain(|request, _| ledger.is_open(*request));
    }
}
