//! State of a stream as its records give it: requests and their counts, frames without an outcome, progress
//! of sinks.
//!
//! Recovery, journal readers and `verify` apply records to this state. The writer keeps the same numbers in
//! `open_requests`, where they are cheaper.

use crate::format::SegmentHeader;
use crate::outcome::{Outcome, row_effects};
use crate::position::FrameNo;
use crate::record::{RecordBody, RequestEntry, SegmentTotals, apply_to_sinks};
use crate::request::RequestState;
use crate::request_table::RequestTable;
use crate::segment::{RawRecord, SegmentSummary};

/// State after some record.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamState {
    /// Requests of this segment and requests carried into it, by number.
    pub requests: RequestTable,
    /// Totals of this segment.
    pub totals: SegmentTotals,
    /// Run of unfinished frames that the last record pushed out: first frame, and length.
    pub dropped_run: Option<(FrameNo, u64)>,
}

impl StreamState {
    /// State before the first segment.
    pub fn new() -> StreamState {
        let totals = SegmentTotals { next_frame: 1, next_request: 1, ..SegmentTotals::default() };
        StreamState { totals, ..StreamState::default() }
    }

    /// State at the end of a segment with a summary.
    pub fn at_end_of(summary: &SegmentSummary) -> StreamState {
        let (requests, totals) = (summary.entries.iter().cloned().collect(), summary.totals.clone());
        StreamState { requests, totals, dropped_run: None }
    }

    /// Continues with the next segment. Closed requests are removed.
    pub fn begin_segment(&mut self, header: &SegmentHeader) {
        self.requests.retain(|entry| {
            (entry.here, entry.info.erased) = (false, None);
            !entry.closed
        });
        self.totals.begin_segment();
        self.totals.next_request = self.totals.next_request.max(header.next_request);
    }

    /// Applies a record.
    pub fn apply(&mut self, record: &RawRecord, body: &RecordBody) {
        let totals = &mut self.totals;
        let (number, time) = (record.head.number, record.head.time);
        match body {
            RecordBody::Frame => {
                totals.count_frame(time, record.head.payload.into());
                totals.last_unix_ns = time;
                totals.next_frame = totals.next_frame.max(number + 1);
                totals.unfinished.insert(number);
                self.dropped_run = totals.unfinished.drop_oldest_run();
            }
            RecordBody::Outcome(outcome) => {
                totals.unfinished.remove(number);
                self.dropped_run = totals.unfinished.drop_oldest_run();
                self.outcome(outcome);
            }
            RecordBody::Open { rid } => self.entry(number).info.rid.clone_from(rid),
            RecordBody::Close { state, finish } => {
                let entry = self.entry(number);
                entry.closed = true;
                entry.info.state = *state;
                if entry.info.finish.is_empty() {
                    entry.info.finish.clone_from(finish);
                }
            }
            RecordBody::OperatorAbort(ending) => {
                if let Some(entry) = self.requests.get_mut(number) {
                    entry.info.ending = *ending;
                }
            }
            RecordBody::Attributes(attributes) => {
                if let Some(entry) = self.requests.get_mut(number) {
                    entry.info.attributes.clone_from(attributes);
                }
            }
            RecordBody::Taken(_) | RecordBody::Sent { .. } | RecordBody::Sink(_) => {
                apply_to_sinks(&mut totals.sinks, body)
            }
            RecordBody::Skipped { count, left_out } => {
                totals.skip(number, *count, *left_out);
                totals.next_frame = totals.next_frame.max(number.saturating_add(*count));
            }
            RecordBody::Carry(entries) => {
                // Not merged: with many live requests there are many such records, and each merge sorts all requests.
                for carried in entries {
                    let number = carried.info.number.0;
                    let here = self.requests.get(number).is_some_and(|known| known.here);
                    *self.entry(number) = RequestEntry { here, ..carried.clone() };
                }
            }
            RecordBody::Lost | RecordBody::Plugin(_) | RecordBody::Routed(_) | RecordBody::Aside => {}
        }
    }

    fn outcome(&mut self, outcome: &Outcome<'_>) {
        for (request, &tokens) in outcome.requests.iter().zip(outcome.tokens.iter()) {
            let entry = self.entry(request.0);
            if entry.closed {
                continue;
            }
            entry.here = true;
            let info = &mut entry.info;
            info.last_frame = info.last_frame.max(outcome.frame);
            info.last_unix_ns = info.last_unix_ns.max(outcome.received_unix_ns);
            if outcome.is_record() {
                info.note_record(outcome.frame, outcome.received_unix_ns);
                continue;
            }
            if info.rows == 0 {
                (info.first_frame, info.first_unix_ns) = (outcome.frame, outcome.received_unix_ns);
            }
            if info.state == RequestState::Abandoned {
                info.state = RequestState::Live;
            }
            info.rows += 1;
            info.received += u64::from(tokens);
            info.forwarded += u64::from(tokens);
        }
        let row_of = |row: u32| {
            let row = row as usize;
            Some((outcome.requests.get(row)?.0, u64::from(*outcome.tokens.get(row)?)))
        };
        for effect in row_effects(&outcome.actions) {
            let Some((request, tokens)) = row_of(effect.row) else { continue };
            let info = &mut self.entry(request).info;
            info.forwarded = effect.forwarded(info.forwarded, tokens);
            effect.count(tokens, info);
        }
        for gap in outcome.gaps.iter() {
            let Some((request, _)) = row_of(gap.row) else { continue };
            self.entry(request).info.gaps += 1;
        }
        for finish in outcome.finished.iter() {
            let Some((request, _)) = row_of(finish.row) else { continue };
            let info = &mut self.entry(request).info;
            info.state = RequestState::Finished;
            info.finish = finish.reason.to_string();
            info.completion_tokens = finish.completion_tokens;
        }
    }

    fn entry(&mut self, number: u64) -> &mut RequestEntry {
        self.totals.next_request = self.totals.next_request.max(number + 1);
        self.requests.entry(number)
    }
}
