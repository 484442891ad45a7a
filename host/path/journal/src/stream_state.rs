//! State of a stream as its records give it: requests and their counts, frames without an outcome, progress
//! of sinks.
//!
//! Recovery, journal readers and `verify` apply records to this state. The writer keeps the same numbers in
//! `open_requests`, where they are cheaper.

use std::collections::BTreeMap;

use crate::format::SegmentHeader;
use crate::frame_set::FrameSet;
use crate::outcome::{Outcome, row_effects};
use crate::plugin_component::PluginComponent;
use crate::position::FrameNo;
use crate::record::{RecordBody, RequestEntry, SegmentTotals, apply_to_sinks};
use crate::request::RequestState;
use crate::request_table::RequestTable;
use crate::segment::{RawRecord, SegmentSummary};
use crate::sink_progress::SinkProgress;

/// State after some record.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamState {
    /// Requests of this segment and requests carried into it, by number.
    pub requests: RequestTable,
    pub unfinished: FrameSet,
    /// Run of unfinished frames that the last record pushed out: first frame, and length.
    pub dropped_run: Option<(FrameNo, u64)>,
    pub sinks: Vec<SinkProgress>,
    /// Component of each plugin, by its name, as this segment has recorded it.
    pub plugins: BTreeMap<String, PluginComponent>,
    pub next_frame: u64,
    pub next_request: u64,
    /// Totals of this segment.
    pub frames: u64,
    pub frame_bytes: u64,
    pub first_unix_ns: u64,
    pub last_unix_ns: u64,
    /// Whether the segment's summary has begun. A summary that was torn sums the records before up and adds nothing.
    in_summary: bool,
}

impl StreamState {
    /// State before the first segment.
    pub fn new() -> StreamState {
        StreamState { next_frame: 1, next_request: 1, ..StreamState::default() }
    }

    /// State at the end of a sealed segment.
    pub fn at_end_of(summary: &SegmentSummary) -> StreamState {
        let totals = &summary.totals;
        StreamState {
            requests: summary.entries.iter().cloned().collect(),
            unfinished: totals.unfinished.clone(),
            dropped_run: None,
            sinks: totals.sinks.clone(),
            plugins: BTreeMap::new(),
            next_frame: totals.next_frame,
            next_request: totals.next_request,
            frames: totals.frames,
            frame_bytes: totals.frame_bytes,
            first_unix_ns: totals.first_unix_ns,
            last_unix_ns: totals.last_unix_ns,
            in_summary: false,
        }
    }

    /// Continues with the next segment. Closed requests are removed.
    pub fn begin_segment(&mut self, header: &SegmentHeader) {
        self.requests.retain(|entry| !entry.closed);
        for entry in self.requests.iter_mut() {
            entry.here = false;
            entry.info.erased = None;
        }
        self.next_request = self.next_request.max(header.next_request);
        (self.frames, self.frame_bytes, self.first_unix_ns, self.last_unix_ns) = (0, 0, 0, 0);
        self.plugins.clear();
        self.in_summary = false;
    }

    /// Whether the records have reached the segment's summary, which is not applied.
    pub fn is_in_summary(&self) -> bool {
        self.in_summary
    }

    /// Applies a record.
    pub fn apply(&mut self, record: &RawRecord, body: &RecordBody) {
        self.in_summary |= record.begins_summary();
        if self.in_summary {
            return;
        }
        let (number, time) = (record.head.number, record.head.time);
        match body {
            RecordBody::Frame => {
                if self.frames == 0 {
                    self.first_unix_ns = time;
                }
                self.frames += 1;
                self.frame_bytes += u64::from(record.head.payload);
                self.last_unix_ns = time;
                self.next_frame = self.next_frame.max(number + 1);
                self.unfinished.insert(number);
                self.dropped_run = self.unfinished.drop_oldest_run();
            }
            RecordBody::Outcome(outcome) => {
                self.unfinished.remove(number);
                self.dropped_run = self.unfinished.drop_oldest_run();
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
            RecordBody::Plugin(component) => {
                self.plugins.insert(component.plugin.clone(), component.clone());
            }
            RecordBody::Taken(_)
            | RecordBody::Sent { .. }
            | RecordBody::Handed { .. }
            | RecordBody::Ahead { .. } => {
                apply_to_sinks(&mut self.sinks, number, body);
            }
            RecordBody::Skipped { count, .. } => {
                self.next_frame = self.next_frame.max(number.saturating_add(*count))
            }
            RecordBody::Carry(entries) => {
                // Not merged: with many live requests there are many such records, and each merge sorts all requests.
                for carried in entries {
                    let number = carried.info.number.0;
                    let here = self.requests.get(number).is_some_and(|known| known.here);
                    *self.entry(number) = RequestEntry { here, ..carried.clone() };
                }
            }
            RecordBody::Lost | RecordBody::Routed(_) | RecordBody::Aside => {}
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
            if info.rows == 0 {
                (info.first_frame, info.first_unix_ns) = (outcome.frame, outcome.received_unix_ns);
            }
            if info.state == RequestState::Abandoned {
                info.state = RequestState::Live;
            }
            info.rows += 1;
            info.received += u64::from(tokens);
            info.forwarded += u64::from(tokens);
            info.last_frame = info.last_frame.max(outcome.frame);
            info.last_unix_ns = info.last_unix_ns.max(outcome.received_unix_ns);
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
        self.next_request = self.next_request.max(number + 1);
        self.requests.entry(number)
    }

    /// Totals for a summary of this segment.
    pub fn totals(&self) -> SegmentTotals {
        SegmentTotals {
            frames: self.frames,
            frame_bytes: self.frame_bytes,
            first_unix_ns: self.first_unix_ns,
            last_unix_ns: self.last_unix_ns,
            next_frame: self.next_frame,
            next_request: self.next_request,
            clean: false,
            unfinished: self.unfinished.clone(),
            sinks: self.sinks.clone(),
        }
    }
}
