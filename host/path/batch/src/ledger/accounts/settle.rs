//! Settling a batch: the chain's decisions are applied, counted and recorded.

use super::departed::DEPARTED;
use super::{Ledger, Request};
use crate::hold::HeldRows;
use crate::records::Records;
use crate::{
    BatchChange, ChainOutput, Decoded, Destination, RecordedVerdicts, ReleasedRow, Row, Settled, not_judged,
};
use afterbay_events::event::{RequestFinishedEarly, RequestImbalance, RowsDropped, VerdictFailed};
use afterbay_events::{EndCause, Name};
use afterbay_journal::reader::OperatorAbort;
use afterbay_journal::{
    FrameNo, JournalRequest, OPERATOR, Outcome, Passage, PluginAction, RowFinish, SWALLOWED, Verdict,
    end_cause,
};
use afterbay_wire::{Batch, Edit, FinishKind, TokenEdit};
use std::collections::HashMap;

impl Ledger {
    /// Settles a frame that an earlier run persisted and did not account, and that every sink has. Nothing is sent again, and no
    /// plugin is called.
    pub fn recover(&mut self, decoded: Decoded, held_rows: &mut HeldRows, records: &mut Records) -> Settled {
        let settled = match self.account(decoded, records) {
            Ok(accounted) => {
                let begun = accounted.rows().iter().filter(|row| row.opens && !row.hidden);
                self.unannounced.extend(begun.map(|row| row.request));
                self.settle(ChainOutput::new(accounted), held_rows, records)
            }
            Err(settled) => settled,
        };
        self.close_departed(held_rows, records);
        settled.without_content()
    }

    /// Counts the tokens by the chain's decisions, records the outcome, and makes the content to send.
    pub fn settle(
        &mut self,
        mut output: ChainOutput,
        held_rows: &mut HeldRows,
        records: &mut Records,
    ) -> Settled {
        let (any, is_released) = (output.accounted().any(), output.accounted().is_released());
        let is_redirected = output.decisions.iter().any(|decision| decision.destination.is_some());
        let redirected = if any.skips || is_redirected { self.redirect(&mut output) } else { Vec::new() };
        let needs_edit = any.needs_edit || !output.decisions.is_empty() || !output.released().is_empty();
        let mut edits = if needs_edit { self.edits(&output) } else { Vec::new() };
        let change = self.change(&mut output, &mut edits, held_rows);
        let is_changed = !matches!(change, BatchChange::Unchanged);
        let applied: &[Edit] = if is_changed { &edits } else { &[] };
        self.count_tokens(&output, applied);
        let frame = output.accounted().persisted().frame();
        if is_changed || is_released {
            self.telemetry.counters.frames_rewritten.add(1);
            self.publish_verdicts(output.accounted().rows(), &output.verdicts, frame);
            self.abort_upstream(output.accounted().rows(), &output.verdicts);
            let swallowed = self.swallowed(output.accounted().rows());
            swallowed.into_iter().for_each(|action| output.verdicts.push(action));
            output.verdicts.sort();
        }
        let (batch, rows) = (output.accounted().batch(), output.accounted().rows());
        let finished = if is_released || !any.may_close { Vec::new() } else { self.finished(rows) };
        let (passage, changed) = match &change {
            BatchChange::Unchanged if is_released => (Passage::Changed, Some(batch)),
            BatchChange::Unchanged => (Passage::Unchanged, None),
            BatchChange::Changed(batch) => (Passage::Changed, Some(batch)),
            BatchChange::Dropped => (Passage::Dropped, None),
        };
        records.record_first_held(held_rows.oldest());
        records.record_outcome(&Outcome {
            frame,
            received_unix_ns: output.accounted().persisted().at().unix_ns,
            changed: changed.map(|batch| batch.bytes().clone()),
            passage,
            requests: (&self.handles).into(),
            tokens: (&self.tokens).into(),
            finished: finished.into(),
            gaps: (&self.gaps).into(),
            actions: output.verdicts.as_slice().into(),
        });
        records.record_held_from(held_rows.oldest());
        if any.may_close {
            self.close_ended(rows, held_rows, records);
        }
        self.close_single_frame(records);
        let (requests, redirected) = (numbers(rows, applied), reindex(redirected, applied));
        let (settled, rows) = output.into_settled(change, requests, redirected);
        self.rows = rows;
        settled
    }

    /// Edits the batch, and puts the released rows in place. Falls back to [`Ledger::fall_back`] if the batch cannot be written.
    fn change(
        &self,
        output: &mut ChainOutput,
        edits: &mut Vec<Edit>,
        held_rows: &mut HeldRows,
    ) -> BatchChange {
        let released = output.released().iter().filter(|released| !released.in_place);
        let joined = released.map(|ReleasedRow { row, held, .. }| (*row, &held.batch, held.row));
        let joined: Vec<(u32, &Batch, u32)> = joined.collect();
        if edits.is_empty() && joined.is_empty() {
            return BatchChange::Unchanged;
        }
        match output.accounted().batch().edit_replacing(edits, &joined) {
            Ok(edited) => edited.into(),
            Err(error) => {
                self.report_failed_edit(output, &error.to_string());
                self.fall_back(output, edits, held_rows)
            }
        }
    }

    /// Holds the released rows again and applies no decision. Ends all requests of the batch but those of held rows in two
    /// cases: a plugin with `on_fault = "terminate"` has a verdict on the batch, or held rows cannot be removed from it.
    fn fall_back(
        &self,
        output: &mut ChainOutput,
        edits: &mut Vec<Edit>,
        held_rows: &mut HeldRows,
    ) -> BatchChange {
        *edits = self.hold_again(output, held_rows);
        if let Some(guard) = output.guard.clone() {
            return self.terminate_all(output, &guard, &not_judged(&guard), edits).into();
        }
        if edits.is_empty() {
            return BatchChange::Unchanged;
        }
        let hold = output.verdicts.iter().find(|action| action.verdict == Verdict::Hold);
        let holder = hold.map(|action| Name::from(&*action.plugin));
        match (output.accounted().batch().edit(edits), holder) {
            (Ok(edited), _) => edited.into(),
            // The batch as it arrived has tokens that are held, so the reader would get these tokens twice.
            (Err(_), Some(plugin)) => {
                self.terminate_all(output, &plugin, &not_removable(&plugin), edits).into()
            }
            // A row of a request that has ended tells its reader nothing.
            (Err(_), None) => BatchChange::Unchanged,
        }
    }

    fn report_failed_edit(&self, output: &ChainOutput, why: &str) {
        let mut plugins: Vec<&str> = output.verdicts.iter().map(|action| &*action.plugin).collect();
        plugins.dedup();
        for plugin in plugins {
            self.report_failed_verdict(plugin, output.accounted().persisted().frame(), why);
        }
    }

    pub(super) fn report_failed_verdict(&self, plugin: &str, frame: FrameNo, why: &str) {
        let (stream, plugin, why) = (self.telemetry.stream.clone(), plugin.into(), why.to_owned());
        self.telemetry.publish(VerdictFailed { stream, plugin, frame: frame.0, why });
    }

    /// Marks the requests that plugins finish, and publishes an event for each. Publishes one event per plugin and reason for
    /// dropped rows.
    pub(super) fn publish_verdicts(&mut self, rows: &[Row], verdicts: &RecordedVerdicts, frame: FrameNo) {
        let mut dropped: Vec<RowsDropped> = Vec::new();
        let mut of_reason: HashMap<(&str, &str), usize> = HashMap::new();
        for action in verdicts.iter() {
            let Some(row) = rows.get(action.row as usize) else { continue };
            match action.verdict {
                _ if action.ends_request() => {
                    if let Some(request) = self.requests.get_mut(row.request)
                        && request.finished_by.replace((&*action.plugin).into()).is_none()
                    {
                        let cause = end_cause(action.verdict, &action.plugin, &action.text);
                        self.telemetry.counters.requests_ended.add(cause, 1);
                    }
                    self.set_abort(row.request, OperatorAbort::No);
                    // The operator's abort has its own event.
                    if action.plugin == OPERATOR {
                        continue;
                    }
                    self.telemetry.publish(RequestFinishedEarly {
                        stream: self.telemetry.stream.clone(),
                        plugin: (&*action.plugin).into(),
                        rid: self.requests.rid(row.request).unwrap_or_default().to_owned(),
                        reason: match action.verdict {
                            Verdict::Length => "length".to_owned(),
                            _ => action.text.to_string(),
                        },
                    });
                }
                Verdict::Drop => {
                    let at = *of_reason.entry((&action.plugin, &action.text)).or_insert(dropped.len());
                    if at == dropped.len() {
                        let (stream, plugin) = (self.telemetry.stream.clone(), (&*action.plugin).into());
                        let (reason, frame) = (action.text.to_string(), frame.0);
                        dropped.push(RowsDropped { stream, plugin, reason, frame, rows: 0, tokens: 0 });
                    }
                    dropped[at].rows += 1;
                    dropped[at].tokens += u64::from(row.tokens);
                }
                _ => {}
            }
        }
        dropped.into_iter().for_each(|event| self.telemetry.publish(event));
    }

    /// The journal's records of swallowed rows.
    fn swallowed(&self, rows: &[Row]) -> Vec<PluginAction<'static>> {
        let swallowed = (0..).zip(rows).filter(|(_, row)| row.swallowed);
        let actions = swallowed.map(|(index, row)| {
            let plugin = self.requests.get(row.request).and_then(|request| request.finished_by.as_deref());
            PluginAction {
                row: index,
                plugin: plugin.unwrap_or_default().to_owned().into(),
                verdict: Verdict::Drop,
                text: SWALLOWED.into(),
                ids: Vec::new().into(),
                forwarded: 0,
            }
        });
        actions.collect()
    }

    fn finished(&self, rows: &[Row]) -> Vec<RowFinish<'static>> {
        let ended = (0..).zip(rows).filter(|(_, row)| row.finish != FinishKind::Running);
        let finished = ended.map(|(index, row)| {
            let request = self.requests.get(row.request);
            let is_accounted = request.is_none_or(|request| request.unaccounted == 0);
            RowFinish {
                row: index,
                reason: row.finish.word().into(),
                // A count that contains unaccounted tokens is not recorded.
                completion_tokens: row.completion_tokens().filter(|_| is_accounted),
            }
        });
        finished.collect()
    }

    /// Closes the requests that the scheduler has ended and that have no held rows, and checks that their tokens add up.
    fn close_ended(&mut self, rows: &[Row], held_rows: &HeldRows, records: &mut Records) {
        for row in rows.iter().filter(|row| row.may_close) {
            let Some(request) = self.requests.get_mut(row.request) else { continue };
            request.is_finishing = held_rows.has(row.number());
            if request.is_finishing {
                continue;
            }
            let finish = match row.finish {
                FinishKind::Running if request.is_departed => DEPARTED,
                finish => finish.word(),
            };
            let cause = self.sender_cause(finish);
            let Some((rid, request)) = self.remove(row.request, records) else { continue };
            self.count_end(&request, cause);
            self.check_balance(&rid, &request);
        }
    }

    /// The cause of an end with this finish reason of the sender.
    pub(super) fn sender_cause(&self, finish: &str) -> EndCause {
        match self.links.records.find {
            // The stream before has counted the end.
            Some(_) => EndCause::FirstLeg,
            None => EndCause::of_finish(finish),
        }
    }

    /// Counts the end of a request. The end of a request that a plugin or an operator finished was counted then.
    pub(super) fn count_end(&self, request: &Request, cause: EndCause) {
        if !request.is_finished_early() {
            self.telemetry.counters.requests_ended.add(cause, 1);
        }
    }

    fn check_balance(&self, rid: &str, request: &Request) {
        let Request { received, forwarded, replaced, dropped, swallowed, held, .. } = *request;
        let scheduler_count = request.before + request.scheduler_count;
        let accounted = received.wrapping_add_signed(request.unaccounted);
        let adds_up = received == forwarded + replaced + dropped + swallowed && held == 0;
        if adds_up && accounted == scheduler_count {
            return;
        }
        self.telemetry.counters.request_imbalances.add(1);
        // Tokens lost around a start have an event of their own.
        if !adds_up || accounted + request.missing != scheduler_count {
            let (stream, counted) = (self.telemetry.stream.clone(), scheduler_count);
            self.telemetry.publish(RequestImbalance {
                stream,
                rid: rid.to_owned(),
                counted,
                received,
                forwarded,
                replaced,
                dropped,
                swallowed,
            });
        }
    }

    /// Removes a live request and closes it in the journal. Returns it with its rid.
    pub(super) fn remove(
        &mut self,
        handle: JournalRequest,
        records: &mut Records,
    ) -> Option<(Box<str>, Request)> {
        let (rid, request) = self.requests.remove(handle)?;
        self.aborts -= usize::from(request.abort != OperatorAbort::No);
        self.end_lease(&request);
        self.forget_interrupted(&request);
        records.record_close(request.handle, if request.is_departed { DEPARTED } else { "" });
        Some((rid, request))
    }
}

/// The request numbers of the rows that the edits leave in the batch.
fn numbers(rows: &[Row], edits: &[Edit]) -> Box<[u64]> {
    if edits.is_empty() {
        // An iterator of known length is collected without a copy.
        return rows.iter().map(|row| row.number()).collect();
    }
    let mut dropped = dropped(edits).peekable();
    let left = (0..).zip(rows).filter(|(index, _)| dropped.next_if_eq(index).is_none());
    left.map(|(_, row)| row.number()).collect()
}

/// Converts row indexes of the batch received to row indexes of the batch sent.
fn reindex(redirected: Vec<(u32, Destination)>, edits: &[Edit]) -> Vec<(u32, Destination)> {
    let (mut dropped, mut before) = (dropped(edits).peekable(), 0);
    let left = redirected.into_iter().filter_map(|(row, destination)| {
        while dropped.next_if(|dropped| *dropped < row).is_some() {
            before += 1;
        }
        (dropped.peek() != Some(&row)).then_some((row - before, destination))
    });
    left.collect()
}

/// The rows that the edits remove from the batch.
fn dropped(edits: &[Edit]) -> impl Iterator<Item = u32> {
    edits.iter().filter(|edit| edit.tokens == TokenEdit::Drop).map(|edit| edit.row)
}

/// The message of a request that ends because its batch cannot be written without the rows that `plugin` holds.
fn not_removable(plugin: &str) -> String {
    format!("afterbay: the batch cannot be written without the rows that plugin {plugin:?} holds")
}
