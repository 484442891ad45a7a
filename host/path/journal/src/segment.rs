//! Reads one segment: its records, past damage, and its summary.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use crate::error::{IoError, ReadError};
use crate::format::{
    CRC_BYTES, HEAD_BYTES, HEADER_BYTES, HeaderRead, RECORD_BYTES, RecordHead, RecordKind, SegmentHeader,
    VERSION, checksum, decoded,
};
use crate::position::{FrameNo, SegmentId};
use crate::record::{RecordBody, RequestEntry, RidIndex, SegmentTotals};
use crate::storage::{File, Storage, read_full};

/// Bytes that are read rather than searched for a frame.
const SEEK_BYTES: u64 = 1 << 20;

/// An open segment.
#[derive(Clone)]
pub(crate) struct Segment {
    pub file: Arc<dyn File>,
    pub path: PathBuf,
    pub id: SegmentId,
    pub header: SegmentHeader,
}

/// Summary of a segment that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentSummary {
    pub entries: Vec<RequestEntry>,
    pub totals: SegmentTotals,
    /// Offset of the summary, which is the end of the segment's records.
    pub begins: u64,
}

/// End of a segment as the header of the next segment records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordedEnd {
    /// End of the records.
    pub limit: u64,
    /// Whether the segment was to get a summary.
    pub has_summary: bool,
}

impl Default for RecordedEnd {
    fn default() -> RecordedEnd {
        RecordedEnd { limit: u64::MAX, has_summary: false }
    }
}

impl Segment {
    /// Opens a segment. Returns `Ok(None)` if no header can be read: the segment is torn or damaged.
    pub fn open(
        storage: &dyn Storage,
        dir: &Path,
        id: SegmentId,
        write: bool,
    ) -> Result<Option<Segment>, ReadError> {
        let path = dir.join(id.to_string());
        let file = storage.open(&path, write).map_err(|error| IoError::new("open", &path, error))?;
        let mut header = [0; HEADER_BYTES];
        let read = read_full(&*file, &mut header, 0).map_err(|error| IoError::new("read", &path, error))?;
        match SegmentHeader::decode(&header[..read]) {
            HeaderRead::Whole(header) => Ok(Some(Segment { file, path, id, header })),
            HeaderRead::Version(version) => Err(ReadError::Version { path, version, known: VERSION }),
            HeaderRead::Damaged => Ok(None),
        }
    }

    pub fn bytes(&self) -> Result<u64, ReadError> {
        self.file.bytes().map_err(|error| IoError::new("stat", &self.path, error).into())
    }

    /// Reads the summary. Returns `None` if there is none or any part of the summary is damaged.
    pub fn summary(&self) -> Result<Option<SegmentSummary>, ReadError> {
        let Some(RawRecord { head, offset: trailer }) = self.trailer()? else { return Ok(None) };
        let begins = head.number;
        if !(HEADER_BYTES as u64..=trailer).contains(&begins) {
            return Ok(None);
        }
        let mut scan = self.scan(begins, trailer, Payloads::All);
        let mut entries: Vec<RequestEntry> = Vec::new();
        loop {
            let ScanStep::Record(record) = scan.step()? else { return Ok(None) };
            let payload = scan.payload(&record);
            match record.head.kind {
                RecordKind::SUMMARY => match decoded::<Vec<RequestEntry>>(payload) {
                    Some(more) => entries.extend(more),
                    None => return Ok(None),
                },
                RecordKind::TOTALS => {
                    return Ok(decoded(payload).map(|totals| SegmentSummary { entries, totals, begins }));
                }
                _ => return Ok(None),
            }
        }
    }

    fn trailer(&self) -> Result<Option<RawRecord>, ReadError> {
        let bytes = self.bytes()?;
        let Some(at) = bytes.checked_sub(RECORD_BYTES as u64).filter(|&at| at >= HEADER_BYTES as u64) else {
            return Ok(None);
        };
        let found = self.scan(at, bytes, Payloads::All).next_here()?;
        Ok(found.filter(|record| record.head.kind == RecordKind::TRAILER))
    }

    /// Reads the index of the rids that the summary lists. Returns `None` if there is none or the index is damaged.
    pub fn rids(&self) -> Result<Option<RidIndex>, ReadError> {
        let Some(RawRecord { head, offset: trailer }) = self.trailer()? else { return Ok(None) };
        if !(HEADER_BYTES as u64..trailer).contains(&head.time) {
            return Ok(None);
        }
        let mut scan = self.scan(head.time, trailer, Payloads::All);
        let found = scan.next_here()?.filter(|record| record.head.kind == RecordKind::RIDS);
        Ok(found.and_then(|record| decoded(scan.payload(&record))))
    }

    /// Returns an offset before which no frame from `first` on stands. Searches the segment by halves: about
    /// [`SEEK_BYTES`] before the frame, or more where frames are larger.
    pub fn offset_before(&self, first: FrameNo) -> Result<u64, ReadError> {
        let (mut low, mut high) = (HEADER_BYTES as u64, self.bytes()?);
        while high.saturating_sub(low) > SEEK_BYTES {
            let middle = low + (high - low) / 2;
            let mut scan = self.scan(middle, high.min(middle + SEEK_BYTES), Payloads::NotFrames);
            let mut found = scan.record()?;
            while found.is_some_and(|record| record.head.kind != RecordKind::FRAME) {
                found = scan.record()?;
            }
            match found {
                Some(record) if record.head.number < first.0 => low = record.offset,
                _ => high = middle,
            }
        }
        Ok(low)
    }

    /// Returns the end of segment `id` if this segment directly follows it.
    pub fn recorded_end_of(&self, id: SegmentId) -> RecordedEnd {
        if self.id.sequence.checked_sub(1) != Some(id.sequence) || self.header.previous_end == 0 {
            return RecordedEnd::default();
        }
        RecordedEnd { limit: self.header.previous_end.into(), has_summary: self.header.previous_has_summary }
    }

    /// Reads the payload of a record that a scan skipped. Returns `None` if it is damaged.
    pub fn payload(&self, record: &RawRecord) -> Result<Option<Bytes>, ReadError> {
        let mut scan = self.scan(record.offset, u64::MAX, Payloads::All);
        let found = scan.next_here()?;
        Ok(found.map(|found| Bytes::copy_from_slice(scan.payload(&found))))
    }

    /// Scans the records from `offset` up to `limit`.
    pub fn scan(&self, offset: u64, limit: u64, payloads: Payloads) -> Scan {
        Scan { segment: self.clone(), offset, limit, end: 0, payloads, window: ReadWindow::default() }
    }

    /// Scans all records up to `limit`. With `u64::MAX`, scans to the end of the file as it grows.
    pub fn records(&self, limit: u64, payloads: Payloads) -> Scan {
        self.scan(HEADER_BYTES as u64, limit, payloads)
    }
}

/// Selects the records whose payload is read and checked. The scan skips other payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payloads {
    All,
    /// Everything but the bytes of frames received and sent.
    NotFrames,
    /// Everything but the bytes of frames received.
    NotReceived,
    /// Received frames, and ranges of skipped frames.
    Frames,
    /// Ranges of skipped frames, to find a frame by its number.
    Skipped,
}

impl Payloads {
    fn has(self, kind: RecordKind) -> bool {
        match self {
            Payloads::All => true,
            Payloads::NotFrames => kind != RecordKind::FRAME && kind != RecordKind::CHANGED,
            Payloads::NotReceived => kind != RecordKind::FRAME,
            Payloads::Frames => kind == RecordKind::FRAME || kind == RecordKind::SKIPPED,
            Payloads::Skipped => kind == RecordKind::SKIPPED,
        }
    }
}

/// Head and offset of a valid record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawRecord {
    pub head: RecordHead,
    pub offset: u64,
}

impl RawRecord {
    /// Whether a segment's summary begins with this record.
    pub fn begins_summary(&self) -> bool {
        matches!(self.head.kind, RecordKind::SUMMARY | RecordKind::TOTALS)
    }
}

/// Next step of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScanStep {
    Record(RawRecord),
    /// Invalid bytes before a valid record.
    Corrupt {
        offset: u64,
        bytes: u64,
    },
    /// No valid record follows. `torn` bytes remain; 0 means the end of the file.
    End {
        offset: u64,
        torn: u64,
    },
}

/// Scans the records of a segment. Can continue after `End` if the segment has grown.
pub(crate) struct Scan {
    pub segment: Segment,
    /// Offset of the next record.
    pub offset: u64,
    limit: u64,
    /// End of the file when last checked, or the limit.
    end: u64,
    pub payloads: Payloads,
    window: ReadWindow,
}

impl Scan {
    pub fn step(&mut self) -> Result<ScanStep, ReadError> {
        if let Some(record) = self.next_record()? {
            return Ok(ScanStep::Record(record));
        }
        // The file may have grown.
        self.refresh_end()?;
        if let Some(record) = self.next_record()? {
            return Ok(ScanStep::Record(record));
        }
        let Some(next) = self.resync()? else {
            return Ok(ScanStep::End { offset: self.offset, torn: self.end.saturating_sub(self.offset) });
        };
        // A writer may have completed this record in the meantime.
        self.refresh_end()?;
        if let Some(record) = self.next_record()? {
            return Ok(ScanStep::Record(record));
        }
        let corrupt = ScanStep::Corrupt { offset: self.offset, bytes: next - self.offset };
        self.offset = next;
        Ok(corrupt)
    }

    /// The next record, past damage. `None` at the end.
    pub fn record(&mut self) -> Result<Option<RawRecord>, ReadError> {
        loop {
            match self.step()? {
                ScanStep::Record(record) => return Ok(Some(record)),
                ScanStep::Corrupt { .. } => {}
                ScanStep::End { .. } => return Ok(None),
            }
        }
    }

    /// As `step`, up to a known end without asking for the file's size. Returns `None` at the end. Every byte
    /// before the end counts as written, so nothing is torn.
    pub fn step_within(&mut self, end: u64) -> Result<Option<ScanStep>, ReadError> {
        self.end = end;
        if self.offset >= end {
            return Ok(None);
        }
        if let Some(record) = self.next_record()? {
            return Ok(Some(ScanStep::Record(record)));
        }
        let next = self.resync()?.unwrap_or(end);
        let corrupt = ScanStep::Corrupt { offset: self.offset, bytes: next - self.offset };
        self.offset = next;
        Ok(Some(corrupt))
    }

    /// Continues at `offset` in another file with the same bytes.
    pub fn reopen(&mut self, segment: Segment, offset: u64) {
        (self.segment, self.offset) = (segment, offset);
        self.window.buffer.clear();
    }

    /// Reads the record at the current offset, if it is valid.
    pub fn next_here(&mut self) -> Result<Option<RawRecord>, ReadError> {
        self.refresh_end()?;
        self.next_record()
    }

    /// Continues at `offset` and reads the bytes of frames from there on.
    pub fn read_frames_from(&mut self, offset: u64) {
        (self.offset, self.payloads) = (offset, Payloads::All);
    }

    fn next_record(&mut self) -> Result<Option<RawRecord>, ReadError> {
        let Some(head) = self.record_at(self.offset, self.payloads)? else { return Ok(None) };
        let record = RawRecord { head, offset: self.offset };
        self.offset += head.record_bytes();
        Ok(Some(record))
    }

    fn refresh_end(&mut self) -> Result<(), ReadError> {
        self.window.buffer.clear();
        self.end = self.segment.bytes()?.min(self.limit);
        Ok(())
    }

    /// Payload of the last record; empty if the scan skipped it.
    pub fn payload(&self, record: &RawRecord) -> &[u8] {
        if !self.payloads.has(record.head.kind) {
            return &[];
        }
        self.window.get(record.offset + HEAD_BYTES as u64, record.head.payload as usize).unwrap_or_default()
    }

    /// Decodes the last record. Returns `None` if the payload does not match its kind.
    pub fn body(&self, record: &RawRecord) -> Option<RecordBody> {
        RecordBody::decode(&record.head, self.payload(record), self.segment.header.next_request)
    }

    /// Reads the head of the record at `offset` if the record is valid.
    fn record_at(&mut self, offset: u64, payloads: Payloads) -> Result<Option<RecordHead>, ReadError> {
        let Some((head, crc)) = self.head_at(offset)? else { return Ok(None) };
        if offset + head.record_bytes() > self.end {
            return Ok(None);
        }
        if !payloads.has(head.kind) {
            return Ok(Some(head));
        }
        let payload = head.payload as usize;
        let Some(body) = self.read(offset + HEAD_BYTES as u64, payload + CRC_BYTES)? else { return Ok(None) };
        let (payload, stored) = body.split_at(payload);
        Ok((checksum(crc, payload).to_le_bytes() == stored).then_some(head))
    }

    fn head_at(&mut self, offset: u64) -> Result<Option<(RecordHead, u32)>, ReadError> {
        if offset + RECORD_BYTES as u64 > self.end {
            return Ok(None);
        }
        let salt = self.segment.header.salt;
        let Some(bytes) = self.read(offset, HEAD_BYTES)? else { return Ok(None) };
        let head = bytes.first_chunk().and_then(|head| RecordHead::decode(head, salt, offset));
        Ok(head)
    }

    /// Finds the next valid record after a broken one.
    fn resync(&mut self) -> Result<Option<u64>, ReadError> {
        // If only the payload is damaged, the head still gives the offset of the next record.
        if let Some((head, _)) = self.head_at(self.offset)? {
            let next = self.offset + head.record_bytes();
            if self.record_at(next, Payloads::All)?.is_some() {
                return Ok(Some(next));
            }
        }
        for offset in self.offset + 1..self.end.saturating_sub(RECORD_BYTES as u64 - 1) {
            if self.record_at(offset, Payloads::All)?.is_some() {
                return Ok(Some(offset));
            }
        }
        Ok(None)
    }

    fn read(&mut self, offset: u64, bytes: usize) -> Result<Option<&[u8]>, ReadError> {
        let Segment { file, path, .. } = &self.segment;
        self.window
            .fill(&**file, offset, bytes, self.end)
            .map_err(|error| IoError::new("read", path, error))?;
        Ok(self.window.get(offset, bytes))
    }
}

/// Part of the file that is in memory.
#[derive(Default)]
struct ReadWindow {
    buffer: Vec<u8>,
    begins: u64,
}

impl ReadWindow {
    /// Bytes to read ahead in sequence, and after a jump over a frame's bytes.
    const AHEAD: usize = 256 << 10;
    const AFTER_JUMP: usize = 4 << 10;

    fn get(&self, offset: u64, bytes: usize) -> Option<&[u8]> {
        let start = usize::try_from(offset.checked_sub(self.begins)?).ok()?;
        self.buffer.get(start..start.checked_add(bytes)?)
    }

    /// Loads at least `bytes` bytes from `offset`, or up to the end of the file. Loads nothing past `end`,
    /// which may still be written.
    fn fill(&mut self, file: &dyn File, offset: u64, bytes: usize, end: u64) -> io::Result<()> {
        if self.get(offset, bytes).is_some() {
            return Ok(());
        }
        let jump = offset < self.begins || offset > self.begins + self.buffer.len() as u64;
        if jump {
            self.buffer.clear();
        } else {
            self.buffer.drain(..(offset - self.begins) as usize);
        }
        self.begins = offset;
        let have = self.buffer.len();
        let ahead = if jump { Self::AFTER_JUMP } else { Self::AHEAD };
        let ahead = usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX).min(ahead);
        if self.buffer.capacity() > 8 * Self::AHEAD && bytes <= Self::AHEAD {
            // Frees the memory that one very large frame took.
            self.buffer.shrink_to(Self::AHEAD);
        }
        self.buffer.resize(bytes.max(ahead).max(have), 0);
        let read = read_full(file, &mut self.buffer[have..], offset + have as u64);
        self.buffer.truncate(have + read.as_ref().unwrap_or(&0));
        read.map(|_| ())
    }
}
