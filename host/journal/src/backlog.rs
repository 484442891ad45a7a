//! Reads frames back while the writer goes on: for those that wait in the journal and nowhere else.
//!
//! Reads straight ahead and in large pieces, checks each frame, and passes over what was done with frames by the heads
//! of those records. Knows from the writer where the whole records end, so it asks the disk nothing where there is
//! nothing to read, and never takes for a record what a failed write has left.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::error::ReadError;
use crate::format::Kind;
use crate::position::{FrameNo, Position, SegmentId};
use crate::reader::Segments;
use crate::record::Body;
use crate::segment::{Payloads, RawRecord, Scan, Segment, Step};
use crate::sync::Shared;

/// Frames of a stream, in order, as far as they are written; then on from there.
pub struct Backlog {
    shared: Arc<Shared>,
    segments: Segments,
    scan: Option<Scan>,
    /// The segment that is read, or was last.
    at: Option<SegmentId>,
    /// Where its records end, once no more are written to it.
    end: Option<u64>,
    /// Where the first frame stands, if it is known and not yet read.
    from: Option<Position>,
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
}

impl Backlog {
    pub(crate) fn new(shared: Arc<Shared>, from: FrameNo, place: Option<Position>) -> Backlog {
        let segments = Segments { storage: shared.storage.clone(), dir: shared.dir.clone() };
        Backlog {
            shared,
            segments,
            scan: None,
            at: None,
            end: None,
            from: place,
            next: from.0.max(1),
            damage: None,
        }
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
            let end = match self.scan.is_some() || self.open_next()? {
                true => self.end()?,
                false => return Err(self.missing(last)),
            };
            let Some(scan) = &mut self.scan else { continue };
            match scan.step_within(end)? {
                None if self.end.is_some() => self.scan = None,
                None => return Err(self.missing(last)),
                Some(Step::Record(record)) => {
                    if let Some(read) = self.read(&record)? {
                        return Ok(Some(read));
                    }
                }
                Some(Step::Corrupt { offset, .. } | Step::End { offset, .. }) => self.damaged(offset)?,
            }
        }
    }

    /// Opens the segment that the next frame must be in, or the one after that which was read; false where there is none.
    fn open_next(&mut self) -> Result<bool, ReadError> {
        let listed = self.segments.list()?;
        let at = match (self.at, self.from) {
            (Some(at), _) => listed.partition_point(|segment| segment.id <= at),
            (None, Some(from)) => listed.partition_point(|segment| segment.id < from.segment),
            (None, None) => {
                listed.partition_point(|segment| segment.id.first.0 <= self.next).saturating_sub(1)
            }
        };
        for listed in &listed[at..] {
            let Some(segment) = self.segments.open(listed.id)? else { continue };
            let place = self.from.take().filter(|from| from.segment == listed.id);
            let mut scan = match self.at {
                None => segment.records(u64::MAX, Payloads::Skipped),
                Some(_) => segment.records(u64::MAX, Payloads::Frames),
            };
            if let Some(place) = place {
                (scan.offset, scan.payloads) = (u64::from(place.offset), Payloads::Frames);
            }
            (self.at, self.end, self.scan) = (Some(listed.id), None, Some(scan));
            return Ok(true);
        }
        Ok(false)
    }

    /// Where the records of the segment end that is being read.
    fn end(&mut self) -> Result<u64, ReadError> {
        if let Some(end) = self.end {
            return Ok(end);
        }
        let (Some(scan), Some(at)) = (&self.scan, self.at) else { return Ok(0) };
        if let Some(end) = self.shared.end_of(at) {
            return Ok(end);
        }
        let end = match self.shared.left_at(at) {
            Some(end) => end,
            None => {
                let next = self.segments.list()?.into_iter().map(|segment| segment.id).find(|id| *id > at);
                self.segments.seen_from(next, at)?.limit.min(scan.segment.bytes()?)
            }
        };
        self.end = Some(end);
        Ok(end)
    }

    /// Takes in a record; `None` where it is not what comes next.
    fn read(&mut self, record: &RawRecord) -> Result<Option<Backlogged>, ReadError> {
        let Some(scan) = &mut self.scan else { return Ok(None) };
        let number = record.head.number;
        let count = match record.head.kind {
            Kind::FRAME => 1,
            Kind::SKIPPED => match scan.body(record) {
                Some(Body::Skipped { count }) => count,
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
        if record.head.kind == Kind::SKIPPED {
            let first = self.next;
            self.next = number.saturating_add(count);
            return Ok(Some(Backlogged::Skipped(FrameNo(first), self.next - first)));
        }
        if scan.payloads != Payloads::Frames {
            // Found: it is read once more, with its bytes, and all that follow.
            (scan.offset, scan.payloads) = (record.offset, Payloads::Frames);
            return Ok(None);
        }
        let bytes = Bytes::copy_from_slice(scan.payload(record));
        (self.next, self.damage) = (number + 1, None);
        let received_unix_ns = record.head.time;
        Ok(Some(Backlogged::Frame(BacklogFrame { frame: FrameNo(number), bytes, received_unix_ns })))
    }

    /// A segment whose sync failed has been written again, and the old file may show anything: the new one is asked.
    fn damaged(&mut self, offset: u64) -> Result<(), ReadError> {
        let Some(scan) = &mut self.scan else { return Ok(()) };
        let Segment { file, path, id, .. } = &scan.segment;
        if !file.is_at(path)
            && let Some(again) = self.segments.open(*id)?
        {
            scan.reopen(again, offset);
            return Ok(());
        }
        let path = path.clone();
        self.damage.get_or_insert((path, offset));
        Ok(())
    }

    fn missing(&mut self, through: u64) -> ReadError {
        let from = FrameNo(self.next);
        self.next = through + 1;
        ReadError::Missing { from, through: FrameNo(through), damage: self.damage.take() }
    }
}
