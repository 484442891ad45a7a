//! Walks through the records of a stream in this process, segment by segment, up to the writer's last record.

use std::path::PathBuf;
use std::sync::Arc;

use crate::background::StreamShared;
use crate::error::ReadError;
use crate::position::{FrameNo, Position, SegmentId};
use crate::segment::{Payloads, RawRecord, Scan, ScanStep, Segment};
use crate::segment_files::{SegmentFile, SegmentFiles};

/// Start of a walk.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start {
    /// At the segment that must hold this frame.
    Frame(FrameNo),
    /// At this position.
    Place(Position),
}

/// Next step of a walk.
pub(super) enum WalkStep {
    Record(RawRecord),
    /// Invalid bytes: file and offset.
    Damaged(PathBuf, u64),
    /// No more records are written yet.
    End,
}

pub(super) struct SegmentWalk {
    shared: Arc<StreamShared>,
    segments: SegmentFiles,
    pub scan: Option<Scan>,
    /// Segment read last.
    at: Option<SegmentId>,
    /// End of the segment's records, once the writer has left it.
    end: Option<u64>,
    start: Start,
    /// Payloads to read in further segments.
    payloads: Payloads,
}

impl SegmentWalk {
    pub fn new(shared: Arc<StreamShared>, start: Start, payloads: Payloads) -> SegmentWalk {
        let segments = SegmentFiles { storage: shared.storage.clone(), dir: shared.dir.clone() };
        SegmentWalk { shared, segments, scan: None, at: None, end: None, start, payloads }
    }

    /// Sets the payloads to read from here on.
    pub fn read(&mut self, payloads: Payloads) {
        self.payloads = payloads;
        if let Some(scan) = &mut self.scan {
            scan.payloads = payloads;
        }
    }

    /// Whether the current segment is the one that must hold this frame.
    pub fn is_in(&self, frame: FrameNo) -> Result<bool, ReadError> {
        let listed = self.segments.list()?;
        Ok(listed.get(index_of_frame(frame, &listed)).map(|segment| segment.id) == self.at)
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

    /// Opens the first or the next segment. Returns false if there is none.
    fn open_next(&mut self) -> Result<bool, ReadError> {
        let listed = self.segments.list()?;
        let at = match (self.at, self.start) {
            (Some(at), _) => listed.partition_point(|segment| segment.id <= at),
            (None, Start::Place(place)) => listed.partition_point(|segment| segment.id < place.segment),
            (None, Start::Frame(frame)) => index_of_frame(frame, &listed),
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

    /// End of the records of the current segment.
    fn end(&mut self) -> Result<u64, ReadError> {
        if let Some(end) = self.end {
            return Ok(end);
        }
        let (Some(scan), Some(at)) = (&self.scan, self.at) else { return Ok(0) };
        if let Some(end) = self.shared.end_of_current_segment(at) {
            return Ok(end);
        }
        let end = match self.shared.end_of_left_segment(at) {
            Some(end) => end,
            None => {
                let next = self.segments.list()?.into_iter().map(|segment| segment.id).find(|id| *id > at);
                self.segments.recorded_end(next, at)?.limit.min(scan.segment.bytes()?)
            }
        };
        self.end = Some(end);
        Ok(end)
    }

    /// Returns the damaged file, unless the segment was rewritten after a failed sync: the walk then
    /// continues in the new file.
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

/// Index of the segment that must hold the frame.
fn index_of_frame(frame: FrameNo, listed: &[SegmentFile]) -> usize {
    listed.partition_point(|segment| segment.id.first <= frame).saturating_sub(1)
}
