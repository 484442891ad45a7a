//! Finds the outcome of each frame that is read back: a second walk, which passes over the frames' bytes.
//!
//! An outcome stands somewhere behind its frame, mostly in the order of frames; so the walk goes on to each in turn, and
//! what it meets too early is held, up to a bound. What found no room is looked for again from its frame on.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::walk::{SegmentWalk, Start, WalkStep};
use crate::background::StreamShared;
use crate::error::ReadError;
use crate::format::RecordKind;
use crate::position::{FrameNo, Position};
use crate::record::RecordBody;
use crate::segment::Payloads;
use crate::stored::Outcome;

/// Outcomes that are held, and the bytes that go with them; past either bound those furthest ahead are forgotten.
const HELD_MAX: usize = 1024;
const HELD_BYTES_MAX: usize = 16 << 20;

pub(super) struct Outcomes {
    shared: Arc<StreamShared>,
    walk: Option<SegmentWalk>,
    /// Met before their frames.
    held: BTreeMap<u64, Outcome>,
    held_bytes: usize,
    /// Some were forgotten since the walk began.
    forgot: bool,
    /// The bytes that the outcome to come is about.
    changed: Option<(u64, Bytes)>,
}

impl Outcomes {
    pub fn new(shared: Arc<StreamShared>) -> Outcomes {
        Outcomes { shared, walk: None, held: BTreeMap::new(), held_bytes: 0, forgot: false, changed: None }
    }

    /// That of the frame which stands here; in order of frames.
    pub fn of(&mut self, place: Position) -> Result<Option<Outcome>, ReadError> {
        let frame = place.frame.0;
        while let Some(first) = self.held.first_entry().filter(|first| *first.key() <= frame) {
            let (number, outcome) = first.remove_entry();
            self.held_bytes -= bytes(&outcome);
            if number == frame {
                return Ok(Some(outcome));
            }
        }
        if let Some(outcome) = self.look_on(place)? {
            return Ok(Some(outcome));
        }
        if !std::mem::take(&mut self.forgot) {
            return Ok(None);
        }
        (self.walk, self.held_bytes) = (None, 0);
        self.held.clear();
        self.look_on(place)
    }

    fn look_on(&mut self, place: Position) -> Result<Option<Outcome>, ReadError> {
        loop {
            let shared = &self.shared;
            let begin = || SegmentWalk::new(shared.clone(), Start::Place(place), Payloads::Outcomes);
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
            self.hold(number, outcome);
        }
    }

    fn hold(&mut self, number: u64, outcome: Outcome) {
        self.held_bytes += bytes(&outcome);
        if let Some(before) = self.held.insert(number, outcome) {
            self.held_bytes -= bytes(&before);
        }
        while self.held.len() > HELD_MAX || self.held_bytes > HELD_BYTES_MAX {
            let Some((_, furthest)) = self.held.pop_last() else { return };
            self.held_bytes -= bytes(&furthest);
            self.forgot = true;
        }
    }
}

/// What an outcome takes, roughly: its columns, and the bytes that left.
fn bytes(outcome: &Outcome) -> usize {
    outcome.changed.as_ref().map_or(0, Bytes::len) + outcome.requests.len() * 12
}
