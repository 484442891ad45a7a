//! One stream of the journal: the ranges of its segments that NATS does not have yet, in order.

use afterbay_journal::reader::{SegmentBytes, StreamReader};
use afterbay_journal::{ReadError, SegmentId};

use crate::following::Telemetry;
use crate::replicate::NAME;
use crate::replicate::range::Range;

/// Time after the last write to a segment that a later one follows: then nobody adds a summary any more. The writer adds it at once,
/// unless the disk refuses.
const SEALED_WITHIN_NS: u64 = 30_000_000_000;

/// A stream that is followed.
pub struct FollowedStream {
    reader: StreamReader,
    /// Segments of the stream when the directory was read last, each with its bytes and the time of its last write.
    listed: Vec<(SegmentId, u64, u64)>,
    /// The segment whose bytes come next.
    current: Option<SegmentBytes>,
    /// The segment before the current one, which was given whole.
    last: Option<SegmentId>,
    /// Time for the ranges of a segment whose header has none, because its first records are older than its first frame.
    begun: Option<(SegmentId, u64)>,
    /// Segment and end of what NATS has acknowledged in this process.
    acknowledged: Option<(SegmentId, u64)>,
    /// The number of the connection that knows what NATS has; 0: none.
    pub connection: u64,
}

/// The difference between what NATS has and what it had acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LostAtServer {
    pub segment: SegmentId,
    pub offset: u64,
}

impl FollowedStream {
    pub(crate) fn new(reader: StreamReader) -> FollowedStream {
        FollowedStream {
            reader,
            listed: Vec::new(),
            current: None,
            last: None,
            begun: None,
            acknowledged: None,
            connection: 0,
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.reader.name()
    }

    /// The oldest segment that NATS may not have whole; `None` before that is known.
    pub fn oldest_needed(&self) -> Option<SegmentId> {
        Some(self.acknowledged?.0)
    }

    /// Lists the segments.
    pub fn list(&mut self) -> Result<(), ReadError> {
        self.listed = self.reader.segment_files()?;
        Ok(())
    }

    /// Bytes that NATS has not acknowledged.
    pub fn behind_bytes(&self) -> u64 {
        let left = |(id, bytes, _): &(SegmentId, u64, u64)| match self.acknowledged {
            Some((segment, _)) if *id < segment => 0,
            Some((segment, end)) if *id == segment => bytes.saturating_sub(end),
            _ => *bytes,
        };
        self.listed.iter().map(left).sum()
    }

    /// Records that NATS has everything up to the end of a range.
    pub fn acknowledge(&mut self, segment: SegmentId, end: u64) {
        self.acknowledged = Some((segment, end));
    }

    /// Continues behind the last range that NATS has: `None` if it has none. Returns the position from which on NATS has lost
    /// what it had acknowledged to this process.
    ///
    /// # Errors
    /// The segment cannot be read.
    pub(crate) fn continue_behind(
        &mut self,
        held: Option<&Range>,
    ) -> Result<Option<LostAtServer>, ReadError> {
        (self.current, self.last) = (None, None);
        let place = held.map_or((SegmentId::default(), 0), |held| (held.segment, held.end()));
        let lost = self.acknowledged.filter(|acknowledged| *acknowledged > place);
        self.acknowledged = held.map(|_| place);
        if let Some(held) = held {
            self.begun = Some((held.segment, held.begun_unix_ns));
            self.place(held)?;
        }
        Ok(lost.map(|_| LostAtServer { segment: place.0, offset: place.1 }))
    }

    fn place(&mut self, held: &Range) -> Result<(), ReadError> {
        let before: Vec<SegmentId> =
            self.listed.iter().map(|(id, ..)| *id).take_while(|id| *id < held.segment).collect();
        let Some(mut bytes) = self.reader.segment_bytes(held.segment)? else {
            // Retention removes the oldest segments. If older ones are there, the disk lost this one in a loss of power, and
            // perhaps a part of the one before, which is published again.
            self.last = match before[..] {
                [] => Some(held.segment),
                [_] => None,
                [.., last, _] => Some(last),
            };
            return Ok(());
        };
        let has_held = bytes.has(held.offset, &held.bytes)?;
        if has_held && held.size.is_some() {
            self.last = Some(held.segment);
            return Ok(());
        }
        if has_held {
            bytes.continue_at(held.end());
        } else {
            // The disk lost records in a loss of power, and others are in their place: the whole segment is published again.
            self.acknowledged = Some((held.segment, 0));
        }
        self.last = before.last().copied();
        self.current = Some(bytes);
        Ok(())
    }

    /// Returns the next range, at most `most` bytes. `None` if there is none yet.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub(crate) fn next(
        &mut self,
        most: usize,
        now_unix_ns: u64,
        telemetry: &Telemetry,
    ) -> Result<Option<Range>, ReadError> {
        loop {
            let Some(current) = &mut self.current else {
                let Some(id) = self.next_segment() else { return Ok(None) };
                if let Some(missed) = self.last.and_then(|last| id.sequence.checked_sub(last.sequence + 1))
                    && missed > 0
                {
                    telemetry.missed(NAME, self.reader.name(), missed, id);
                }
                match self.reader.segment_bytes(id)? {
                    Some(opened) => self.current = Some(opened),
                    // Removed meanwhile, or without a header: a reader of the copy finds the hole.
                    None => self.last = Some(id),
                }
                continue;
            };
            let (id, offset) = (current.id(), current.offset());
            let read = current.next(most)?;
            let size = current.size();
            let is_whole = size.is_some_and(|size| current.offset() >= size);
            if read.is_none() && !is_whole {
                let has_later = self.listed.last().is_some_and(|(newest, ..)| *newest > id);
                let written = self.listed.iter().find(|(listed, ..)| *listed == id);
                let idle_ns = written.map_or(u64::MAX, |(.., written)| now_unix_ns.saturating_sub(*written));
                if !has_later || idle_ns < SEALED_WITHIN_NS {
                    return Ok(None);
                }
                current.finish()?;
                continue;
            }
            let begun_unix_ns = match (current.begun_unix_ns(), self.begun) {
                (0, Some((segment, begun))) if segment == id => begun,
                (0, _) => now_unix_ns,
                (begun, _) => begun,
            };
            self.begun = Some((id, begun_unix_ns));
            // A segment that lost the records of a failed write is shorter than what was published.
            let offset = if read.is_none() { size.unwrap_or(offset).min(offset) } else { offset };
            let is_first = offset == 0;
            let range = Range {
                segment: id,
                offset,
                begun_unix_ns,
                size: size.filter(|_| is_whole),
                previous: if is_first { self.previous(id) } else { None },
                after: if is_first { self.reader.after()? } else { Vec::new() },
                bytes: read.unwrap_or_default().into(),
            };
            if is_whole {
                (self.current, self.last) = (None, Some(id));
            }
            return Ok(Some(range));
        }
    }

    fn next_segment(&self) -> Option<SegmentId> {
        self.listed.iter().map(|(id, ..)| *id).find(|id| Some(*id) > self.last)
    }

    /// The segment before this one, if the journal had one.
    fn previous(&self, id: SegmentId) -> Option<SegmentId> {
        let listed = self.listed.iter().map(|(id, ..)| *id).take_while(|listed| *listed < id).last();
        // The one before may have been removed after NATS had it.
        listed.or(self.last.filter(|last| last.sequence.checked_add(1) == Some(id.sequence)))
    }
}

impl Range {
    /// Whether more is likely to follow at once.
    pub fn is_full(&self, most: usize) -> bool {
        self.size.is_some() || self.bytes.len() * 2 >= most
    }
}
