//! Requests that a plugin or an operator ends before the scheduler does, and the aborts that the scheduler is sent for them.
//!
//! Owns the operator's aborts of live requests, and decides which requests that plugins finish are handed to the sender of
//! aborts. Does not know how an abort is sent.

use super::{Ledger, Request};
use crate::records::Records;
use crate::{ChainOutput, RecordedVerdicts, Row, RowContent, end_of_record};
use afterbay_events::event::AbortFailed;
use afterbay_journal::reader::OperatorAbort;
use afterbay_journal::{JournalRequest, OPERATOR, PluginAction, Verdict};
use afterbay_types::Engine;
use afterbay_wire::{AbortShape, FinishKind, FinishReason};

/// `matched` in the last row of a request that an operator aborted.
pub const ABORTED: &str = "afterbay: aborted by operator";

/// Queues an abort for the scheduler. Must not block. Returns false if the queue is full.
pub type AbortSender = Box<dyn Fn(FinishedEarly) -> bool + Send>;

/// A request that a plugin has finished while the scheduler continues it, or an operator, if the scheduler answers no abort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedEarly {
    /// The rid.
    pub rid: String,
    /// The plugin. `None`: the operator.
    pub plugin: Option<String>,
    /// The finish reason that the reader gets.
    pub reason: Option<FinishReason>,
    /// How the scheduler reads an abort, known from its last batch.
    pub shape: Option<AbortShape>,
}

/// The stream's answer to a question about a rid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestStatus {
    /// The live request with this rid.
    pub live: Option<LiveStatus>,
    /// How the scheduler reads an abort, known from its last batch. `None` before the first batch.
    pub shape: Option<AbortShape>,
}

/// The status of a live request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveStatus {
    /// The request's number in the journal.
    pub number: u64,
    /// The plugin that has finished the request for its reader, or [`OPERATOR`]. The scheduler may still continue the request.
    pub finished_by: Option<String>,
}

impl Ledger {
    /// Replaces the sender of aborts. With `None`, the scheduler is sent no abort.
    pub fn set_upstream(&mut self, upstream: Option<AbortSender>) {
        self.links.upstream = upstream;
    }

    /// The live requests that are known by this id, each with its rid. Searches all live requests.
    pub fn with_id(&self, engine: Engine, id: &str) -> Vec<(String, JournalRequest)> {
        let known = self.requests().filter(|(rid, _)| engine.has_id(rid, id));
        known.map(|(rid, request)| (rid.to_owned(), request.handle)).collect()
    }

    /// The status of a rid.
    pub fn request_status(&self, rid: &str) -> RequestStatus {
        let live = self.requests.find(rid.as_bytes()).and_then(|handle| self.requests.get(handle));
        let live = live.map(|request| LiveStatus {
            number: request.number(),
            finished_by: request.finished_by.as_deref().map(str::to_owned),
        });
        RequestStatus { live, shape: self.links.abort_shape }
    }

    /// Sets how far the operator's abort of a live request has come, and records it for the next start. Does nothing if the
    /// request has ended or has another number.
    pub fn set_operator_abort(
        &mut self,
        rid: &str,
        number: u64,
        abort: OperatorAbort,
        records: &mut Records,
    ) {
        let Some(handle) = self.requests.find(rid.as_bytes()) else { return };
        let is_same = |request: &&Request| request.number() == number && !request.is_finished_early();
        let Some(request) = self.requests.get(handle).filter(is_same) else { return };
        match (abort, request.abort) {
            (OperatorAbort::Expected, OperatorAbort::No) => {}
            (OperatorAbort::Due, OperatorAbort::Expected | OperatorAbort::Due) => {}
            // An abort that failed does not cancel another abort that the scheduler has.
            (OperatorAbort::No, OperatorAbort::Expected) => {}
            _ => return,
        }
        records.record_abort(request.handle, abort);
        self.set_abort(handle, abort);
    }

    /// Whether the operator's abort makes this row the request's last. A request that the scheduler ends for another reason ends
    /// by itself.
    pub fn is_aborted_row(&self, row: &Row) -> bool {
        let abort = match self.aborts {
            0 => OperatorAbort::No,
            _ => self.requests.get(row.request).map_or(OperatorAbort::No, |request| request.abort),
        };
        match abort {
            OperatorAbort::No => false,
            OperatorAbort::Expected => row.finish == FinishKind::Abort,
            OperatorAbort::Due => matches!(row.finish, FinishKind::Abort | FinishKind::Running),
        }
    }

    /// Ends each request that an operator aborted: its current row becomes its last. A request that a plugin ends with the
    /// same row, or that the scheduler ends for another reason, keeps that finish reason.
    pub fn apply_operator_aborts(&self, output: &mut ChainOutput) {
        if self.aborts == 0 {
            return;
        }
        for index in 0..output.accounted().rows().len() {
            let row = output.accounted().rows()[index];
            if row.swallowed || !self.is_aborted_row(&row) {
                continue;
            }
            let decision = &mut output.decide()[index];
            if decision.finish.is_some() {
                continue;
            }
            decision.finish = Some(FinishReason::Stop(ABORTED.to_owned()));
            let at = index as u32;
            let forwarded = match &output.decisions[index].content {
                _ if output.is_held(at) => 0,
                RowContent::Unchanged | RowContent::Cumulative(_) => {
                    output.released_at(at).map_or(row.tokens, |released| released.held.tokens)
                }
                RowContent::Delta(ids) => ids.len() as u32,
                RowContent::Dropped => 0,
            };
            output.verdicts.push(PluginAction {
                row: at,
                plugin: OPERATOR.into(),
                verdict: Verdict::Finish,
                text: ABORTED.into(),
                ids: Vec::new().into(),
                forwarded,
            });
        }
        output.verdicts.sort();
    }

    pub(super) fn set_abort(&mut self, handle: JournalRequest, abort: OperatorAbort) {
        let Some(request) = self.requests.get_mut(handle) else { return };
        let before = std::mem::replace(&mut request.abort, abort);
        self.aborts += usize::from(abort != OperatorAbort::No);
        self.aborts -= usize::from(before != OperatorAbort::No);
    }

    /// Queues aborts of the requests that plugins finish with this batch and the scheduler does not. Call this before any row of the
    /// batch is sent. An operator's abort is with the scheduler already. An engine that answers an abort with no row
    /// gets it now that the reader gets the last row.
    pub(super) fn abort_upstream(&self, rows: &[Row], verdicts: &RecordedVerdicts) {
        let Some(send) = &self.links.upstream else { return };
        let is_answered = self.links.abort_shape.is_none_or(|shape| shape.engine().traits().answers_aborts);
        for action in verdicts.iter() {
            let Some(row) = rows.get(action.row as usize) else { continue };
            let is_sent = action.plugin == OPERATOR && is_answered;
            if !action.ends_request() || is_sent || row.finish != FinishKind::Running {
                continue;
            }
            let Some((rid, request)) = self.request(row.request) else { continue };
            let plugin = (action.plugin != OPERATOR).then(|| action.plugin.to_string());
            let reason = end_of_record(action.verdict, &action.text);
            let shape = self.links.abort_shape;
            let finished = FinishedEarly { rid: rid.to_owned(), plugin, reason, shape };
            if request.is_rid_hashed {
                let why = "its rid is not text, or is longer than an abort may name";
                self.report_withheld(rid, &action.plugin, why);
            } else if !send(finished) {
                self.report_withheld(rid, &action.plugin, "the queue of aborts is full");
            }
        }
    }

    fn report_withheld(&self, rid: &str, plugin: &str, why: &str) {
        let (stream, rid, why) = (self.telemetry.stream.clone(), rid.to_owned(), why.to_owned());
        let by = if plugin == OPERATOR { "the operator".to_owned() } else { format!("plugin {plugin}") };
        self.telemetry.publish(AbortFailed { stream, rid, by, why });
    }
}
