//! Finds the outcome of each frame in a second pass that skips the bytes of frames.
//!
//! An outcome stands after its frame, mostly in the order of frames. The pass stores outcomes that it meets
//! early, up to a bound, and evicts those furthest ahead. It looks for evicted outcomes again, starting at
//! their frame.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::walk::{SegmentWalk, Start, WalkStep};
use crate::background::StreamShared;
use crate::error::ReadError;
use crate::format::RecordKind;
use crate::outcome::Outcome;
use crate::position::{FrameNo, Position};
use crate::record::RecordBody;
use crate::segment::Payloads;

/// Bounds on outcomes stored early: their number, and their bytes.
const EARLY_MAX: usize = 1024;
const EARLY_BYTES_MAX: usize = 16 << 20;

pub(super) struct OutcomeCursor {
    shared: Arc<StreamShared>,
    walk: Option<SegmentWalk>,
    /// Outcomes met before they were asked for.
    early: BTreeMap<u64, Outcome<'static>>,
    early_bytes: usize,
    /// Whether outcomes were evicted since the pass began.
    has_evicted: bool,
    /// Bytes of the CHANGED that precedes the next outcome.
    changed: Option<(u64, Bytes)>,
}

impl OutcomeCursor {
    pub fn new(shared: Arc<StreamShared>) -> OutcomeCursor {
        OutcomeCursor {
            shared,
            walk: None,
            early: BTreeMap::new(),
            early_bytes: 0,
            has_evicted: false,
            changed: None,
        }
    }

    /// Outcome of the frame at this position. Ask in order of frames.
    pub fn outcome_of(&mut self, place: Position) -> Result<Option<Outcome<'static>>, ReadError> {
        let frame = place.frame.0;
        while let Some(first) = self.early.first_entry().filter(|first| *first.key() <= frame) {
            let (number, outcome) = first.remove_entry();
            self.early_bytes -= bytes(&outcome);
            if number == frame {
                return Ok(Some(outcome));
            }
        }
        if let Some(outcome) = self.walk_to(place)? {
            return Ok(Some(outcome));
        }
        if !std::mem::take(&mut self.has_evicted) {
            return Ok(None);
        }
        (self.walk, self.early_bytes) = (None, 0);
        self.early.clear();
        self.walk_to(place)
    }

    fn walk_to(&mut self, place: Position) -> Result<Option<Outcome<'static>>, ReadError> {
        loop {
            let shared = &self.shared;
            let begin = || SegmentWalk::new(shared.clone(), Start::Place(place), Payloads::NotReceived);
            let walk = self.walk.get_or_insert_with(begin);
            let record = match walk.step()? {
                WalkStep::Record(record) => record,
                WalkStep::Damaged(..) => continue,
                WalkStep::End => return Ok(None),
            };
            let (Some(scan), FrameNo(wanted), number) = (&walk.scan, place.frame, record.head.number) else {
                return Ok(None);
            };
            if record.head.kind == RecordKind::CHANGED && number >= wanted {
                self.changed = Some((number, Bytes::copy_from_slice(scan.payload(&record))));
            }
            if record.head.kind != RecordKind::OUTCOME || number < wanted {
                continue;
            }
            let Some(RecordBody::Outcome(mut outcome)) = scan.body(&record) else { continue };
            outcome.changed = self.changed.take().filter(|(of, _)| *of == number).map(|(_, bytes)| bytes);
            if number == wanted {
                return Ok(Some(outcome));
            }
            self.store_early(number, outcome);
        }
    }

    fn store_early(&mut self, number: u64, outcome: Outcome<'static>) {
        self.early_bytes += bytes(&outcome);
        if let Some(before) = self.early.insert(number, outcome) {
            self.early_bytes -= bytes(&before);
        }
        while self.early.len() > EARLY_MAX || self.early_bytes > EARLY_BYTES_MAX {
            let Some((_, furthest)) = self.early.pop_last() else { return };
            self.early_bytes -= bytes(&furthest);
            self.has_evicted = true;
        }
    }
}

/// Approximate size of an outcome: its columns and its changed bytes.
fn bytes(outcome: &Outcome<'_>) -> usize {
    outcome.changed.as_ref().map_or(0, Bytes::len) + outcome.requests.len() * 12
}
