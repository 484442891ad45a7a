//! Which sinks were given the rows of some requests, and have taken them: by what the journal says was sent to each.
//!
//! Owns no position of a sink: where a sink stands says nothing of a row that it never was to have. Sinks that were there then
//! and are no more count as those that are.

use std::collections::{BTreeMap, HashMap};

use crate::position::{FrameNo, RequestNo};
use crate::record::RecordBody;
use crate::release_marker::HELD_SINK;
use crate::sink_progress::Held;

/// A row was sent to a sink.
struct Delivery {
    sink: String,
    /// Its number among those that the sink was sent.
    sequence: u64,
    taken: bool,
}

#[derive(Default)]
struct Row {
    gifts: Vec<Delivery>,
    /// Where it was to go, if the stream has several sinks.
    routed: Vec<String>,
}

impl Row {
    fn may_be_of(&self, sink: &str) -> bool {
        self.routed.is_empty() || self.routed.iter().any(|routed| routed == sink)
    }

    fn give(&mut self, sink: &str, sequence: u64) {
        if self.may_be_of(sink) && !self.gifts.iter().any(|gift| gift.sink == sink) {
            self.gifts.push(Delivery { sink: sink.to_owned(), sequence, taken: false });
        }
    }

    fn is_taken(&self) -> bool {
        !self.gifts.is_empty() && self.gifts.iter().all(|gift| gift.taken)
    }
}

/// The rows that are asked for, while the journal is read from their first outcome on.
#[derive(Default)]
pub(super) struct Deliveries {
    /// By request, then by frame.
    rows: HashMap<u64, BTreeMap<u64, Row>>,
    /// Up to where each sink has taken everything.
    through: HashMap<String, FrameNo>,
}

impl Deliveries {
    /// A row is asked for; its outcome has come.
    pub(super) fn row(&mut self, frame: FrameNo, request: RequestNo) {
        self.rows.entry(request.0).or_default().entry(frame.0).or_default();
    }

    /// Takes in a record.
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
            RecordBody::Sent { sink, held: Held::Whole(frame) } => {
                for rows in self.rows.values_mut() {
                    rows.get_mut(&frame.0).into_iter().for_each(|row| row.give(sink, number));
                }
            }
            RecordBody::Sent { sink, held: Held::Rows(sent) } => {
                for (request, last) in sent {
                    let Some(rows) = self.rows.get_mut(&request.0) else { continue };
                    // Those that had left before went where they went.
                    let rows = rows.range_mut(..=last.0).map(|(_, row)| row);
                    rows.filter(|row| row.gifts.is_empty()).for_each(|row| row.give(sink, number));
                }
            }
            RecordBody::Taken(taken) if taken.sink != HELD_SINK => {
                let sink = &taken.sink;
                self.through.insert(sink.clone(), taken.through);
                if taken.forgotten {
                    self.through.remove(sink);
                }
                for row in self.rows.values_mut().flat_map(BTreeMap::values_mut) {
                    for gift in row.gifts.iter_mut().filter(|gift| gift.sink == *sink) {
                        gift.taken |= gift.sequence <= taken.sequence;
                    }
                    if taken.void || taken.forgotten {
                        row.gifts.retain(|gift| gift.taken || gift.sink != *sink);
                    }
                }
            }
            _ => {}
        }
    }

    /// Nothing that comes later says more of these rows.
    pub(super) fn is_settled(&self) -> bool {
        let last = self.rows.values().filter_map(|rows| rows.last_key_value()).map(|(frame, _)| *frame).max();
        let is_behind = |last: u64| !self.through.is_empty() && self.through.values().all(|to| to.0 >= last);
        last.is_none_or(is_behind) || self.rows.values().flat_map(BTreeMap::values).all(Row::is_taken)
    }

    /// The sinks that have taken a row; `None` where the journal does not say who was sent it.
    pub(super) fn taken_by(&self, frame: FrameNo, request: RequestNo) -> Option<Vec<String>> {
        let row = self.rows.get(&request.0)?.get(&frame.0)?;
        if row.gifts.is_empty() && row.routed.is_empty() {
            return None;
        }
        Some(row.gifts.iter().filter(|gift| gift.taken).map(|gift| gift.sink.clone()).collect())
    }
}
