//! Reads frames back while the writer goes on: for those that wait in the journal and nowhere else.
//!
//! Reads straight ahead and in large pieces, checks each frame, and passes over what was done with frames by the heads
//! of those records. Knows from the writer where the whole records end, so it asks the disk nothing where there is
//! nothing to read, and never takes for a record what a failed write has left.

mod outcome_cursor;
mod walk;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::background::StreamShared;
use crate::error::ReadError;
use crate::format::RecordKind;
use crate::position::{FrameNo, Position};
use crate::record::RecordBody;
use crate::segment::{Payloads, RawRecord};
use crate::stored::Outcome;
use outcome_cursor::Outcomes;
use walk::{SegmentWalk, Start, WalkStep};

/// Frames of a stream, in order, as far as they are written; then on from there.
pub struct Backlog {
    shared: Arc<StreamShared>,
    walk: SegmentWalk,
    outcomes: Option<Outcomes>,
    /// The frame that comes next.
    next: u64,
    /// Damage since the last frame.
    damage: Option<(PathBuf, u64)>,
}

/// What comes next of a backlog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backlogged {
    /// A frame.
    Frame(BacklogFrame),
    /// So many frames from this one on went on without being kept.
    Skipped(FrameNo, u64),
}

/// A frame that was read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BacklogFrame {
    /// Its number.
    pub frame: FrameNo,
    /// Its bytes, as it came.
    pub bytes: Bytes,
    /// When it came, unix nanoseconds.
    pub received_unix_ns: u64,
    /// What was done with it, with the bytes that left in its place, where the cursor was made to tell. `None` too where
    /// nothing of it is written, or the record of it is damaged.
    pub outcome: Option<Box<Outcome>>,
}

impl Backlog {
    pub(crate) fn new(shared: Arc<StreamShared>, from: FrameNo, place: Option<Position>) -> Backlog {
        let walk = match place {
            Some(place) => SegmentWalk::new(shared.clone(), Start::Place(place), Payloads::Frames),
            None => SegmentWalk::new(shared.clone(), Start::Frame(from), Payloads::Skipped),
        };
        Backlog { shared, walk, outcomes: None, next: from.0.max(1), damage: None }
    }

    /// With what was done with each frame by the time it is read, and the bytes that left in its place. Reads the journal
    /// twice, side by side.
    pub fn with_outcomes(mut self) -> Backlog {
        self.outcomes = Some(Outcomes::new(self.shared.clone()));
        self
    }

    /// Goes on at this frame, if that is not behind: what lies between is passed over by the heads of its records, and whole
    /// segments not even so.
    pub fn pass_to(&mut self, frame: FrameNo) -> Result<(), ReadError> {
        if frame.0 <= self.next {
            return Ok(());
        }
        self.next = frame.0;
        if self.walk.is_in(frame)? {
            self.walk.read(Payloads::Skipped);
        } else {
            self.walk = SegmentWalk::new(self.shared.clone(), Start::Frame(frame), Payloads::Skipped);
            self.outcomes = self.outcomes.take().map(|_| Outcomes::new(self.shared.clone()));
        }
        Ok(())
    }

    /// The frame that comes next.
    pub fn position(&self) -> FrameNo {
        FrameNo(self.next)
    }

    /// What comes next; `None` at the end of what is written by now: ask again when more is.
    ///
    /// Frames that are missing are an error that names them; the call after it goes on behind them. After an error of the
    /// disk the same is tried again.
    #[allow(clippy::should_implement_trait, reason = "None is not the end")]
    pub fn next(&mut self) -> Result<Option<Backlogged>, ReadError> {
        loop {
            // Before the end of the records is looked at: these frames are within it.
            let last = self.shared.appended.load(Ordering::SeqCst);
            if self.next > last {
                return Ok(None);
            }
            match self.walk.step()? {
                WalkStep::Record(record) => {
                    if let Some(read) = self.read(&record)? {
                        return Ok(Some(read));
                    }
                }
                WalkStep::Damaged(path, offset) => _ = self.damage.get_or_insert((path, offset)),
                WalkStep::End => return Err(self.missing(last)),
            }
        }
    }

    /// Takes in a record; `None` where it is not what comes next.
    fn read(&mut self, record: &RawRecord) -> Result<Option<Backlogged>, ReadError> {
        let Some(scan) = &mut self.walk.scan else { return Ok(None) };
        let number = record.head.number;
        let count = match record.head.kind {
            RecordKind::FRAME => 1,
            RecordKind::SKIPPED => match scan.body(record) {
                Some(RecordBody::Skipped { count }) => count,
                _ => return Ok(None),
            },
            _ => return Ok(None),
        };
        if number.saturating_add(count) <= self.next {
            return Ok(None);
        }
        if number > self.next {
            // It comes with the next call.
            scan.offset = record.offset;
            return Err(self.missing(number - 1));
        }
        if record.head.kind == RecordKind::SKIPPED {
            let first = self.next;
            self.next = number.saturating_add(count);
            return Ok(Some(Backlogged::Skipped(FrameNo(first), self.next - first)));
        }
        if scan.payloads != Payloads::Frames {
            // Found: it is read once more, with its bytes, and all that follow.
            scan.offset = record.offset;
            self.walk.read(Payloads::Frames);
            return Ok(None);
        }
        let frame = FrameNo(number);
        let place = Position { frame, segment: scan.segment.id, offset: record.offset as u32 };
        let outcome = match self.outcomes.as_mut().map(|outcomes| outcomes.of(place)).transpose() {
            Ok(outcome) => outcome.flatten().map(Box::new),
            Err(error) => {
                scan.offset = record.offset;
                return Err(error);
            }
        };
        let bytes = Bytes::copy_from_slice(scan.payload(record));
        (self.next, self.damage) = (number + 1, None);
        let received_unix_ns = record.head.time;
        Ok(Some(Backlogged::Frame(BacklogFrame { frame, bytes, received_unix_ns, outcome })))
    }

    fn missing(&mut self, through: u64) -> ReadError {
        let from = FrameNo(self.next);
        self.next = through + 1;
        ReadError::Missing { from, through: FrameNo(through), damage: self.damage.take() }
    }
}
