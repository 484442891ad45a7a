//! Totals of the requests of one segment, and the plugins that acted on them, as the segment grows.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::ReadError;
use crate::outcome::Outcome;
use crate::position::SegmentId;
use crate::record::RecordBody;
use crate::request::{Erasure, RequestInfo};
use crate::segment::{Payloads, Scan, ScanStep, Segment};
use crate::stream_state::StreamState;

/// Reads one segment. A segment lists the requests that are open when it is begun, so it needs no other segment.
pub struct SegmentRequests {
    scan: Scan,
    state: StreamState,
    /// Requests with a new total since the last [`SegmentRequests::changes`].
    changed: BTreeSet<u64>,
    /// Plugins with a new action since then, by request.
    acted: BTreeMap<u64, BTreeSet<String>>,
    /// Requests that were erased before the segment was opened.
    erased: BTreeMap<u64, Erasure>,
}

/// A request whose totals have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestChange {
    /// Totals of the request, also of its rows in earlier segments.
    pub request: RequestInfo,
    /// Plugins and operators that acted on rows of the request that were read.
    pub plugins: BTreeSet<String>,
}

impl SegmentRequests {
    pub(super) fn new(segment: Segment, limit: u64) -> Result<SegmentRequests, ReadError> {
        let summary = segment.summary()?;
        let erased = summary.into_iter().flat_map(|summary| summary.erased);
        let erased = erased.map(|entry| (entry.number.0, entry.erasure)).collect();
        let mut state = StreamState::new();
        state.begin_segment(&segment.header);
        let scan = segment.records(limit, Payloads::Requests);
        Ok(SegmentRequests { scan, state, changed: BTreeSet::new(), acted: BTreeMap::new(), erased })
    }

    /// The segment.
    pub fn id(&self) -> SegmentId {
        self.scan.segment.id
    }

    /// Reads at most `records_max` further records. Returns whether it stopped before the end.
    ///
    /// # Errors
    /// The disk.
    pub fn read(&mut self, records_max: usize) -> Result<bool, ReadError> {
        for _ in 0..records_max {
            match self.scan.step()? {
                ScanStep::Record(record) => {
                    let Some(body) = self.scan.body(&record) else { continue };
                    self.note(record.head.number, &body);
                    self.state.apply(&record, &body);
                }
                ScanStep::Corrupt { .. } => {}
                ScanStep::End { .. } => return Ok(false),
            }
        }
        Ok(true)
    }

    fn note(&mut self, number: u64, body: &RecordBody) {
        match body {
            RecordBody::Open { .. } | RecordBody::Close { .. } | RecordBody::OperatorAbort(_) => {
                self.changed.insert(number);
            }
            RecordBody::Carry(entries) => {
                self.changed.extend(entries.iter().map(|entry| entry.info.number.0));
            }
            RecordBody::Outcome(outcome) => self.note_outcome(outcome),
            _ => {}
        }
    }

    fn note_outcome(&mut self, outcome: &Outcome<'_>) {
        self.changed.extend(outcome.requests.iter().map(|request| request.0));
        for action in outcome.actions.iter() {
            let Some(request) = outcome.requests.get(action.row as usize) else { continue };
            let plugins = self.acted.entry(request.0).or_default();
            if !plugins.contains(&*action.plugin) {
                plugins.insert(action.plugin.to_string());
            }
        }
    }

    /// The requests with a row whose totals have changed since the last call, in the order of their numbers.
    pub fn changes(&mut self) -> impl Iterator<Item = RequestChange> {
        let (changed, mut acted) = (std::mem::take(&mut self.changed), std::mem::take(&mut self.acted));
        changed.into_iter().filter_map(move |number| {
            let mut request = self.state.requests.get(&number)?.info.clone();
            request.erased = self.erased.get(&number).copied();
            // The outcome of the first row may still come.
            (request.rows > 0)
                .then(|| RequestChange { request, plugins: acted.remove(&number).unwrap_or_default() })
        })
    }
}
