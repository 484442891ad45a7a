//! Goes through the records of a stream that its own writer has written, segment by segment, up to where it stands.

use std::path::PathBuf;
use std::sync::Arc;

use crate::background::StreamShared;
use crate::error::ReadError;
use crate::position::{FrameNo, Position, SegmentId};
use crate::segment::{Payloads, RawRecord, Scan, ScanStep, Segment};
use crate::segment_files::{SegmentFile, SegmentFiles};

/// Where to begin.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start {
    /// In the segment that this frame must be in.
    Frame(FrameNo),
    /// Here.
    Place(Position),
}

/// What comes next.
pub(super) enum WalkStep {
    Record(RawRecord),
    /// Bytes that are no record: the file, and where.
    Damaged(PathBuf, u64),
    /// No more is written by now.
    End,
}

pub(super) struct SegmentWalk {
    shared: Arc<StreamShared>,
    segments: SegmentFiles,
    pub scan: Option<Scan>,
    /// The segment that is read, or was last.
    at: Option<SegmentId>,
    /// Where its records end, once no more are written to it.
    end: Option<u64>,
    start: Start,
    /// What is read of the segments to come.
    payloads: Payloads,
}

impl SegmentWalk {
    pub fn new(shared: Arc<StreamShared>, start: Start, payloads: Payloads) -> SegmentWalk {
        let segments = SegmentFiles { storage: shared.storage.clone(), dir: shared.dir.clone() };
        SegmentWalk { shared, segments, scan: None, at: None, end: None, start, payloads }
    }

    /// What is read from here on.
    pub fn read(&mut self, payloads: Payloads) {
        self.payloads = payloads;
        if let Some(scan) = &mut self.scan {
            scan.payloads = payloads;
        }
    }

    /// Whether the segment that this frame must be in is the one that is read, or was last.
    pub fn is_in(&self, frame: FrameNo) -> Result<bool, ReadError> {
        let listed = self.segments.list()?;
        Ok(listed.get(place_of(frame, &listed)).map(|segment| segment.id) == self.at)
    }

    pub fn step(&mut self) -> Result<WalkStep, ReadError> {
        loop {
            if self.scan.is_none() && !self.open_next()? {
                return Ok(WalkStep::End);
            }
            let end = self.end()?;
            let Some(scan) = &mut self.scan else { continue };
            match scan.step_within(end)? {
                None if self.end.is_some() => self.scan = None,
                None => return Ok(WalkStep::End),
                Some(ScanStep::Record(record)) => return Ok(WalkStep::Record(record)),
                Some(ScanStep::Corrupt { offset, .. } | ScanStep::End { offset, .. }) => {
                    if let Some(path) = self.damaged(offset)? {
                        return Ok(WalkStep::Damaged(path, offset));
                    }
                }
            }
        }
    }

    /// Opens the segment to begin with, or the one after that which was read; false where there is none.
    fn open_next(&mut self) -> Result<bool, ReadError> {
        let listed = self.segments.list()?;
        let at = match (self.at, self.start) {
            (Some(at), _) => listed.partition_point(|segment| segment.id <= at),
            (None, Start::Place(place)) => listed.partition_point(|segment| segment.id < place.segment),
            (None, Start::Frame(frame)) => place_of(frame, &listed),
        };
        for listed in &listed[at..] {
            let Some(segment) = self.segments.open(listed.id)? else { continue };
            let mut scan = segment.records(u64::MAX, self.payloads);
            if let Start::Place(place) = self.start
                && place.segment == listed.id
            {
                scan.offset = place.offset.into();
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

    /// A segment whose sync failed has been written again, and the old file may show anything: the new one is asked.
    /// The file that is damaged, if it is the one that counts.
    fn damaged(&mut self, offset: u64) -> Result<Option<PathBuf>, ReadError> {
        let Some(scan) = &mut self.scan else { return Ok(None) };
        let Segment { file, path, id, .. } = &scan.segment;
        if !file.is_at(path)
            && let Some(again) = self.segments.open(*id)?
        {
            scan.reopen(again, offset);
            return Ok(None);
        }
        Ok(Some(path.clone()))
    }
}

/// Which of these segments the frame must be in.
fn place_of(frame: FrameNo, listed: &[SegmentFile]) -> usize {
    listed.partition_point(|segment| segment.id.first <= frame).saturating_sub(1)
}
