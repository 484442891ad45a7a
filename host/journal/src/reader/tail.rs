//! Goes through records in order, across segments, and waits at the end for more.

use std::collections::HashMap;

use bytes::Bytes;

use super::{Frame, From, Record, SegmentFiles};
use crate::error::ReadError;
use crate::format::RecordKind;
use crate::position::{FrameNo, Position, RequestNo, SegmentId};
use crate::record::RecordBody;
use crate::segment::{Payloads, RawRecord, Scan, ScanStep};

/// Follows a stream.
pub struct Tail {
    segments: SegmentFiles,
    scan: Option<Scan>,
    /// The segment that is read, or was last.
    at: Option<SegmentId>,
    /// Nothing came after it at the last look.
    is_last: bool,
    /// Records before this are passed over.
    from: From,
    /// The bytes that the outcome to come is about.
    changed: Option<(u64, Bytes)>,
    /// By number, as far as the segments read named them.
    rids: HashMap<u64, String>,
    /// Those that ended in this segment and the one before: forgotten one segment later.
    ended: [Vec<u64>; 2],
}

impl Tail {
    pub(super) fn new(segments: SegmentFiles, from: From) -> Result<Tail, ReadError> {
        let listed = segments.list()?;
        let before = match from {
            From::Start => 0,
            From::Frame(frame) => {
                listed.partition_point(|segment| segment.id.first <= frame).saturating_sub(1)
            }
            From::Time(time) => {
                let mut at = listed.len().saturating_sub(1);
                while at > 0
                    && segments.open(listed[at].id)?.is_none_or(|segment| segment.header.begun_unix_ns > time)
                {
                    at -= 1;
                }
                at
            }
            From::End => listed.len().saturating_sub(1),
        };
        let at = before.checked_sub(1).map(|before| listed[before].id);
        let mut tail = Tail {
            segments,
            scan: None,
            at,
            is_last: true,
            from,
            changed: None,
            rids: HashMap::new(),
            ended: Default::default(),
        };
        if from == From::End {
            // Goes through what there is for the names in it.
            while tail.step()?.is_some() {}
            tail.from = From::Start;
            if let Some(scan) = &mut tail.scan {
                scan.read_frames_from(scan.offset);
            }
        }
        Ok(tail)
    }

    /// The next record; `None`: nothing new yet, ask again.
    #[allow(clippy::should_implement_trait, reason = "None is not the end")]
    pub fn next(&mut self) -> Result<Option<Record>, ReadError> {
        loop {
            let Some(read) = self.step()? else { return Ok(None) };
            if let Some(record) = read {
                return Ok(Some(record));
            }
        }
    }

    /// The rid of a request that a record named.
    pub fn rid(&self, request: RequestNo) -> Option<&str> {
        self.rids.get(&request.0).map(String::as_str)
    }

    /// One step: `None` at the end, `Some(None)` where it was nothing to tell.
    fn step(&mut self) -> Result<Option<Option<Record>>, ReadError> {
        let Some(scan) = &mut self.scan else {
            return Ok(self.next_segment()?.then_some(None));
        };
        match scan.step()? {
            ScanStep::Record(record) => Ok(Some(self.read(&record)?)),
            ScanStep::Corrupt { offset, bytes } => {
                let id = scan.segment.id;
                Ok(Some(Some(Record::Corrupt(id, offset, bytes)).filter(|_| self.from == From::Start)))
            }
            ScanStep::End { .. } => {
                if self.is_last {
                    let newest = self.segments.list()?.last().map(|last| last.id);
                    self.is_last = newest <= self.at;
                    if self.is_last {
                        return Ok(None);
                    }
                    // Now that there is another, this one is whole: it is asked once more, for what came between.
                } else {
                    self.scan = None;
                }
                Ok(Some(None))
            }
        }
    }

    /// Opens the next segment; false where there is none.
    fn next_segment(&mut self) -> Result<bool, ReadError> {
        let listed: Vec<SegmentId> = self.segments.list()?.into_iter().map(|segment| segment.id).collect();
        let next = listed.partition_point(|id| Some(*id) <= self.at);
        for at in next..listed.len() {
            let id = listed[at];
            // One without a header is damaged, or just being begun where it is the last.
            let Some(segment) = self.segments.open(id)? else { continue };
            let limit = self.segments.seen_from(listed.get(at + 1).copied(), id)?.limit;
            let payloads = if self.from == From::Start { Payloads::All } else { Payloads::NotFrames };
            (self.at, self.is_last) = (Some(id), true);
            self.scan = Some(segment.records(limit, payloads));
            for ended in std::mem::take(&mut self.ended[0]) {
                self.rids.remove(&ended);
            }
            self.ended.swap(0, 1);
            return Ok(true);
        }
        Ok(false)
    }

    fn read(&mut self, record: &RawRecord) -> Result<Option<Record>, ReadError> {
        let Some(scan) = &mut self.scan else { return Ok(None) };
        let (segment, number) = (scan.segment.id, record.head.number);
        if record.head.kind == RecordKind::FRAME {
            if self.from != From::Start {
                if !self.from.is_reached_by(number, record.head.time) {
                    return Ok(None);
                }
                // Read it once more, with its bytes, and all that follow.
                self.from = From::Start;
                scan.read_frames_from(record.offset);
                return Ok(None);
            }
            let position = Position { frame: FrameNo(number), segment, offset: record.offset as u32 };
            let bytes = scan.payload(record).to_vec();
            return Ok(Some(Record::Frame(Frame { position, received_unix_ns: record.head.time, bytes })));
        }
        if record.head.kind == RecordKind::CHANGED {
            let bytes = if self.from == From::Start { scan.payload(record) } else { &[] };
            self.changed = Some((number, Bytes::copy_from_slice(bytes)));
            return Ok(None);
        }
        let Some(body) = scan.body(record) else {
            return Ok(Some(Record::Corrupt(segment, record.offset, record.head.record_bytes())));
        };
        let told = match body {
            RecordBody::Outcome(mut outcome) => {
                let changed = self.changed.take().filter(|(frame, _)| *frame == number);
                outcome.changed = changed.map(|(_, bytes)| bytes);
                Record::Outcome(outcome)
            }
            RecordBody::Open { rid } => {
                self.rids.insert(number, rid.clone());
                Record::Opened(RequestNo(number), rid)
            }
            RecordBody::Close { state } => {
                self.ended[1].push(number);
                Record::Closed(RequestNo(number), state)
            }
            RecordBody::Taken(taken) => Record::Taken(taken.sink, taken.through, taken.credit),
            RecordBody::Skipped { count } => Record::Skipped(FrameNo(number), count),
            RecordBody::Lost => Record::Lost(number),
            RecordBody::Carry(entries) => {
                self.rids.extend(entries.into_iter().map(|entry| (entry.info.number.0, entry.info.rid)));
                return Ok(None);
            }
            RecordBody::Sent { .. }
            | RecordBody::Handed { .. }
            | RecordBody::Ahead { .. }
            | RecordBody::Frame
            | RecordBody::Aside
            | RecordBody::Ending(_)
            | RecordBody::Routed(_) => {
                return Ok(None);
            }
        };
        Ok(Some(told).filter(|_| self.from == From::Start))
    }
}

impl From {
    fn is_reached_by(self, frame: u64, time: u64) -> bool {
        match self {
            From::Start => true,
            From::Frame(from) => frame >= from.0,
            From::Time(from) => time >= from,
            From::End => false,
        }
    }
}
