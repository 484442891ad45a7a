//! Reads records in order across segments, and waits for more at the end.

use std::collections::HashMap;

use bytes::Bytes;

use super::{JournalRecord, ReadFrom, SegmentFiles, StoredFrame};
use crate::error::ReadError;
use crate::format::RecordKind;
use crate::position::{FrameNo, Position, RequestNo, SegmentId};
use crate::record::RecordBody;
use crate::segment::{Payloads, RawRecord, Scan, ScanStep};

/// Records of a stream as they are written.
pub struct Tail {
    segments: SegmentFiles,
    scan: Option<Scan>,
    /// Segment read last.
    at: Option<SegmentId>,
    /// Whether the segment was the last one when checked.
    is_last: bool,
    /// Records before this point are skipped.
    from: ReadFrom,
    /// Bytes of the CHANGED that precedes the next outcome.
    changed: Option<(u64, Bytes)>,
    /// Rids by request number, from the segments read.
    rids: HashMap<u64, String>,
    /// Requests that ended in this segment and the one before. Forgotten one segment later.
    ended: [Vec<u64>; 2],
}

impl Tail {
    pub(super) fn new(segments: SegmentFiles, from: ReadFrom) -> Result<Tail, ReadError> {
        let listed = segments.list()?;
        let before = match from {
            ReadFrom::Start => 0,
            ReadFrom::Frame(frame) => {
                listed.partition_point(|segment| segment.id.first <= frame).saturating_sub(1)
            }
            ReadFrom::Time(time) => {
                let mut at = listed.len().saturating_sub(1);
                while at > 0
                    && segments
                        .open(listed[at].id)?
                        .is_none_or(|segment| segment.header.begun_unix_ns >= time)
                {
                    at -= 1;
                }
                at
            }
        };
        let at = before.checked_sub(1).map(|before| listed[before].id);
        let (rids, ended) = (HashMap::new(), Default::default());
        Ok(Tail { segments, scan: None, at, is_last: true, from, changed: None, rids, ended })
    }

    /// Returns the next record, or `None` if there is none yet: call again later.
    #[allow(clippy::should_implement_trait, reason = "None is not the end")]
    pub fn next(&mut self) -> Result<Option<JournalRecord>, ReadError> {
        loop {
            let Some(read) = self.step()? else { return Ok(None) };
            if let Some(record) = read {
                return Ok(Some(record));
            }
        }
    }

    /// Rid of a request that a record named.
    pub fn rid(&self, request: RequestNo) -> Option<&str> {
        self.rids.get(&request.0).map(String::as_str)
    }

    /// Reads one step. Returns `None` at the end and `Some(None)` if the step gives no record.
    fn step(&mut self) -> Result<Option<Option<JournalRecord>>, ReadError> {
        let Some(scan) = &mut self.scan else {
            return Ok(self.next_segment()?.then_some(None));
        };
        match scan.step()? {
            ScanStep::Record(record) => Ok(Some(self.read(&record)?)),
            ScanStep::Corrupt { offset, bytes } => {
                let id = scan.segment.id;
                Ok(Some(
                    Some(JournalRecord::Corrupt(id, offset, bytes)).filter(|_| self.from == ReadFrom::Start),
                ))
            }
            ScanStep::End { .. } => {
                if self.is_last {
                    let newest = self.segments.list()?.last().map(|last| last.id);
                    self.is_last = newest <= self.at;
                    if self.is_last {
                        return Ok(None);
                    }
                    // The writer has left this segment: read it once more for records written meanwhile.
                } else {
                    self.scan = None;
                }
                Ok(Some(None))
            }
        }
    }

    /// Opens the next segment. Returns false if there is none.
    fn next_segment(&mut self) -> Result<bool, ReadError> {
        let listed: Vec<SegmentId> = self.segments.list()?.into_iter().map(|segment| segment.id).collect();
        let next = listed.partition_point(|id| Some(*id) <= self.at);
        for at in next..listed.len() {
            let id = listed[at];
            // A segment without a header is damaged or just being begun.
            let Some(segment) = self.segments.open(id)? else { continue };
            let limit = self.segments.recorded_end(listed.get(at + 1).copied(), id)?.limit;
            let payloads = if self.from == ReadFrom::Start { Payloads::All } else { Payloads::NotFrames };
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

    fn read(&mut self, record: &RawRecord) -> Result<Option<JournalRecord>, ReadError> {
        let Some(scan) = &mut self.scan else { return Ok(None) };
        let (segment, number) = (scan.segment.id, record.head.number);
        let has_time = record.head.kind == RecordKind::FRAME || record.head.kind == RecordKind::OUTCOME;
        // A frame that was not stored has only an outcome.
        if has_time && self.from != ReadFrom::Start {
            if self.from.is_reached_by(number, record.head.time) {
                // Read this record again, and all that follow with the bytes of frames.
                (self.from, self.changed) = (ReadFrom::Start, None);
                scan.read_frames_from(record.offset);
                return Ok(None);
            }
            if record.head.kind == RecordKind::FRAME {
                return Ok(None);
            }
        }
        if record.head.kind == RecordKind::FRAME {
            let position = Position { frame: FrameNo(number), segment, offset: record.offset as u32 };
            let bytes = scan.payload(record).to_vec();
            return Ok(Some(JournalRecord::Frame(StoredFrame {
                position,
                received_unix_ns: record.head.time,
                bytes,
            })));
        }
        if record.head.kind == RecordKind::CHANGED {
            let bytes = if self.from == ReadFrom::Start { scan.payload(record) } else { &[] };
            self.changed = Some((number, Bytes::copy_from_slice(bytes)));
            return Ok(None);
        }
        let Some(body) = scan.body(record) else {
            return Ok(Some(JournalRecord::Corrupt(segment, record.offset, record.head.record_bytes())));
        };
        let record = match body {
            RecordBody::Outcome(mut outcome) => {
                let changed = self.changed.take().filter(|(frame, _)| *frame == number);
                outcome.changed = changed.map(|(_, bytes)| bytes);
                JournalRecord::Outcome(outcome)
            }
            RecordBody::Open { rid } => {
                self.rids.insert(number, rid);
                return Ok(None);
            }
            RecordBody::Close { .. } => {
                self.ended[1].push(number);
                return Ok(None);
            }
            RecordBody::Carry(entries) => {
                self.rids.extend(entries.into_iter().map(|entry| (entry.info.number.0, entry.info.rid)));
                return Ok(None);
            }
            RecordBody::Skipped { count, left_out: false } => JournalRecord::Skipped(FrameNo(number), count),
            RecordBody::Lost => JournalRecord::Lost(number),
            _ => return Ok(None),
        };
        Ok(Some(record).filter(|_| self.from == ReadFrom::Start))
    }
}

impl ReadFrom {
    fn is_reached_by(self, frame: u64, time: u64) -> bool {
        match self {
            ReadFrom::Start => true,
            ReadFrom::Frame(from) => frame >= from.0,
            ReadFrom::Time(from) => time >= from,
        }
    }
}
