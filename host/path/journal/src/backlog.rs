//! Reads stored frames back while the writer appends: frames that are no longer in memory.
//!
//! Reads ahead in large pieces, checks each frame and skips outcomes by their heads. The writer shares the
//! end of its records. So the reader asks the disk nothing at the end, and never takes the rest of a failed
//! write for a record.

mod outcome_cursor;
mod walk;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::background::StreamShared;
use crate::error::ReadError;
use crate::format::RecordKind;
use crate::outcome::Outcome;
use crate::position::{FrameNo, Position};
use crate::record::RecordBody;
use crate::segment::{Payloads, RawRecord};
use outcome_cursor::OutcomeCursor;
use walk::{SegmentWalk, Start, WalkStep};

/// Frames of a stream in order, up to the last one written. Continues as more are written.
pub struct BacklogReader {
    shared: Arc<StreamShared>,
    walk: SegmentWalk,
    outcomes: Option<OutcomeCursor>,
    /// Number of the next frame.
    next: u64,
    /// Damage since the last frame.
    damage: Option<(PathBuf, u64)>,
}

/// Next item of a backlog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BacklogItem {
    /// A stored frame.
    Frame(BacklogFrame),
    /// A range of frames that were forwarded without being stored: first frame, and number of frames.
    Skipped(FrameNo, u64),
}

/// A frame that was read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BacklogFrame {
    /// Number of the frame.
    pub frame: FrameNo,
    /// Bytes as received.
    pub bytes: Bytes,
    /// Time of receipt, unix nanoseconds.
    pub received_unix_ns: u64,
    /// Outcome of the frame, if requested with `with_outcomes`. `None` also if no outcome is written or its
    /// record is damaged.
    pub outcome: Option<Box<Outcome<'static>>>,
}

impl BacklogReader {
    pub(crate) fn new(shared: Arc<StreamShared>, from: FrameNo, place: Option<Position>) -> BacklogReader {
        let walk = match place {
            Some(place) => SegmentWalk::new(shared.clone(), Start::Place(place), Payloads::Frames),
            None => SegmentWalk::new(shared.clone(), Start::Frame(from), Payloads::Skipped),
        };
        BacklogReader { shared, walk, outcomes: None, next: from.0.max(1), damage: None }
    }

    /// Also reads the outcome of each frame. Reads the journal twice, side by side.
    pub fn with_outcomes(mut self) -> BacklogReader {
        self.outcomes = Some(OutcomeCursor::new(self.shared.clone()));
        self
    }

    /// Skips to this frame, unless it is before the current one. Skips records by their heads, and whole
    /// segments without reading.
    pub fn pass_to(&mut self, frame: FrameNo) -> Result<(), ReadError> {
        if frame.0 <= self.next {
            return Ok(());
        }
        self.next = frame.0;
        if self.walk.is_in(frame)? {
            self.walk.read(Payloads::Skipped);
        } else {
            self.walk = SegmentWalk::new(self.shared.clone(), Start::Frame(frame), Payloads::Skipped);
            self.outcomes = self.outcomes.take().map(|_| OutcomeCursor::new(self.shared.clone()));
        }
        Ok(())
    }

    /// Number of the next frame.
    pub fn position(&self) -> FrameNo {
        FrameNo(self.next)
    }

    /// Returns the next item, or `None` at the end of what is written: call again later.
    ///
    /// Missing frames are an error that names them, and the next call continues after them. After an error of
    /// the disk, the next call retries.
    #[allow(clippy::should_implement_trait, reason = "None is not the end")]
    pub fn next(&mut self) -> Result<Option<BacklogItem>, ReadError> {
        loop {
            // Read before the end of the records: these frames end before it.
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

    /// Handles a record. Returns `None` unless the record is the next item.
    fn read(&mut self, record: &RawRecord) -> Result<Option<BacklogItem>, ReadError> {
        let Some(scan) = &mut self.walk.scan else { return Ok(None) };
        let number = record.head.number;
        let count = match record.head.kind {
            RecordKind::FRAME => 1,
            RecordKind::SKIPPED => match scan.body(record) {
                Some(RecordBody::Skipped { count, .. }) => count,
                _ => return Ok(None),
            },
            _ => return Ok(None),
        };
        if number.saturating_add(count) <= self.next {
            return Ok(None);
        }
        if number > self.next {
            // The next call returns this record.
            scan.offset = record.offset;
            return Err(self.missing(number - 1));
        }
        if record.head.kind == RecordKind::SKIPPED {
            let first = self.next;
            self.next = number.saturating_add(count);
            return Ok(Some(BacklogItem::Skipped(FrameNo(first), self.next - first)));
        }
        if scan.payloads != Payloads::Frames {
            // Found the first frame: read it again with its bytes, and all that follow.
            scan.offset = record.offset;
            self.walk.read(Payloads::Frames);
            return Ok(None);
        }
        let frame = FrameNo(number);
        let place = Position { frame, segment: scan.segment.id, offset: record.offset as u32 };
        let outcome = match self.outcomes.as_mut().map(|outcomes| outcomes.outcome_of(place)).transpose() {
            Ok(outcome) => outcome.flatten().map(Box::new),
            Err(error) => {
                scan.offset = record.offset;
                return Err(error);
            }
        };
        let bytes = Bytes::copy_from_slice(scan.payload(record));
        (self.next, self.damage) = (number + 1, None);
        let received_unix_ns = record.head.time;
        Ok(Some(BacklogItem::Frame(BacklogFrame { frame, bytes, received_unix_ns, outcome })))
    }

    fn missing(&mut self, through: u64) -> ReadError {
        let from = FrameNo(self.next);
        self.next = through + 1;
        ReadError::Missing { from, through: FrameNo(through), damage: self.damage.take() }
    }
}
