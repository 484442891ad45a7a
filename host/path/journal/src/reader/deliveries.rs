//! Sinks that were sent the rows of some requests, and have taken them, from the records of each sink.
//!
//! Removed sinks count like present ones.

use std::collections::{BTreeMap, HashMap};

use super::RowDelivery;
use crate::position::{FrameNo, RequestNo};
use crate::record::{RecordBody, Taken};
use crate::release_marker::HELD_SINK;
use crate::sink_progress::{SentFrame, SinkContent};

#[derive(Default)]
struct TrackedRow {
    deliveries: Vec<RowDelivery>,
    /// Sinks that the row was routed to, for a stream with several sinks.
    routed: Vec<String>,
}

impl TrackedRow {
    fn may_be_of(&self, sink: &str) -> bool {
        self.routed.is_empty() || self.routed.iter().any(|routed| routed == sink)
    }

    fn deliver(&mut self, sink: &str, frame: &SentFrame) {
        if self.may_be_of(sink) && !self.deliveries.iter().any(|delivery| delivery.sink == sink) {
            self.deliveries.push(RowDelivery {
                sink: sink.to_owned(),
                sequence: frame.sequence,
                sent_unix_ns: frame.unix_ns,
                taken: false,
                taken_unix_ns: 0,
            });
        }
    }

    fn is_taken(&self) -> bool {
        !self.deliveries.is_empty() && self.deliveries.iter().all(|delivery| delivery.taken)
    }
}

/// Rows of interest, followed from their first outcome on.
#[derive(Default)]
pub(super) struct Deliveries {
    /// By request, then by frame.
    rows: HashMap<u64, BTreeMap<u64, TrackedRow>>,
    /// Last frame up to which each sink has taken everything.
    through: HashMap<String, FrameNo>,
}

impl Deliveries {
    /// Adds a row once its outcome was read.
    pub(super) fn track(&mut self, frame: FrameNo, request: RequestNo) {
        self.rows.entry(request.0).or_default().entry(frame.0).or_default();
    }

    /// Applies a record.
    pub(super) fn apply(&mut self, number: u64, body: &RecordBody) {
        match body {
            RecordBody::Routed(routed) => {
                for (request, sink) in &routed.rows {
                    let row = self.rows.get_mut(&request.0).and_then(|rows| rows.get_mut(&number));
                    let (Some(row), Some(sink)) = (row, routed.sinks.get(usize::from(*sink))) else {
                        continue;
                    };
                    if !row.routed.contains(sink) {
                        row.routed.push(sink.clone());
                    }
                }
            }
            RecordBody::Sent { sink, frame } => self.sent(sink, frame),
            RecordBody::Taken(taken) if taken.sink != HELD_SINK => self.taken(taken),
            RecordBody::Sink(sink) if sink.is_reader() => {
                self.taken(&Taken::by(sink));
                sink.sent().for_each(|frame| self.sent(sink.name(), frame));
            }
            _ => {}
        }
    }

    fn sent(&mut self, sink: &str, frame: &SentFrame) {
        match &frame.content {
            SinkContent::Whole(whole) => {
                for rows in self.rows.values_mut() {
                    rows.get_mut(&whole.0).into_iter().for_each(|row| row.deliver(sink, frame));
                }
            }
            SinkContent::Rows(sent) => {
                for (request, last) in sent.iter() {
                    let Some(rows) = self.rows.get_mut(&request.0) else { continue };
                    // Rows sent before are not sent again.
                    let rows = rows.range_mut(..=last.0).map(|(_, row)| row);
                    rows.filter(|row| row.deliveries.is_empty()).for_each(|row| row.deliver(sink, frame));
                }
            }
        }
    }

    fn taken(&mut self, taken: &Taken) {
        let sink = &taken.sink;
        self.through.insert(sink.clone(), taken.through);
        if taken.forgotten {
            self.through.remove(sink);
        }
        for row in self.rows.values_mut().flat_map(BTreeMap::values_mut) {
            let of_sink = row.deliveries.iter_mut().filter(|delivery| delivery.sink == *sink);
            for delivery in of_sink.filter(|it| !it.taken && it.sequence <= taken.sequence) {
                (delivery.taken, delivery.taken_unix_ns) = (true, taken.unix_ns);
            }
            if taken.is_void() {
                row.deliveries.retain(|delivery| delivery.taken || delivery.sink != *sink);
            }
        }
    }

    /// Whether no later record can change these rows.
    pub(super) fn is_settled(&self) -> bool {
        let last = self.rows.values().filter_map(|rows| rows.last_key_value()).map(|(frame, _)| *frame).max();
        let is_behind = |last: u64| !self.through.is_empty() && self.through.values().all(|to| to.0 >= last);
        last.is_none_or(is_behind) || self.rows.values().flat_map(BTreeMap::values).all(TrackedRow::is_taken)
    }

    /// Frames that carried a row.
    pub(super) fn of_row(&self, frame: FrameNo, request: RequestNo) -> Vec<RowDelivery> {
        let row = self.rows.get(&request.0).and_then(|rows| rows.get(&frame.0));
        row.map(|row| row.deliveries.clone()).unwrap_or_default()
    }
}
