//! Reads one segment: record by record, past damage, and its summary.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{IoError, ReadError};
use crate::format::{
    ByteReader, CRC_BYTES, HEAD_BYTES, HEADER_BYTES, HeaderRead, RECORD_BYTES, RecordHead, RecordKind,
    SegmentHeader, VERSION, checksum,
};
use crate::position::SegmentId;
use crate::record::{RecordBody, RequestEntry, SegmentTotals, apply_to_sinks, decode_entries, decode_totals};
use crate::storage::{File, Storage, read_full};

/// An open segment.
#[derive(Clone)]
pub(crate) struct Segment {
    pub file: Arc<dyn File>,
    pub path: PathBuf,
    pub id: SegmentId,
    pub header: SegmentHeader,
}

/// What a sealed segment says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentSummary {
    pub entries: Vec<RequestEntry>,
    pub totals: SegmentTotals,
    /// Where the summary begins, which is where the segment's records end.
    pub begins: u64,
}

/// What is known of a segment from the one after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordedEnd {
    /// Where its records end.
    pub limit: u64,
    /// It was to be given a summary.
    pub sealed: bool,
}

impl Default for RecordedEnd {
    fn default() -> RecordedEnd {
        RecordedEnd { limit: u64::MAX, sealed: false }
    }
}

impl Segment {
    /// `Ok(None)`: no header can be read (torn when it was begun, or damaged).
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

    /// The summary of a sealed segment; `None` where it is not sealed or any part of the summary is damaged.
    pub fn summary(&self) -> Result<Option<SegmentSummary>, ReadError> {
        let bytes = self.bytes()?;
        let Some(trailer) = bytes.checked_sub(RECORD_BYTES as u64).filter(|&at| at >= HEADER_BYTES as u64)
        else {
            return Ok(None);
        };
        let begins = match self.scan(trailer, bytes, Payloads::All).step()? {
            ScanStep::Record(record) if record.head.kind == RecordKind::TRAILER => record.head.number,
            _ => return Ok(None),
        };
        if begins < HEADER_BYTES as u64 || begins > trailer {
            return Ok(None);
        }
        let mut scan = self.scan(begins, trailer, Payloads::All);
        let (mut entries, mut of_sinks) = (Vec::new(), Vec::new());
        loop {
            let ScanStep::Record(record) = scan.step()? else { return Ok(None) };
            let (kind, number) = (record.head.kind, record.head.number);
            match kind {
                RecordKind::SUMMARY => match decode_entries(&mut ByteReader(scan.payload(&record)), number) {
                    Some(more) => entries.extend(more),
                    None => return Ok(None),
                },
                RecordKind::AHEAD | RecordKind::SENT | RecordKind::HANDED => match scan.body(&record) {
                    Some(body) => of_sinks.push((number, body)),
                    None => return Ok(None),
                },
                RecordKind::TOTALS => {
                    let totals = {
                        let version = self.header.version;
                        decode_totals(scan.payload(&record), number, record.head.time, version)
                    };
                    return Ok(totals.map(|mut totals| {
                        for (number, body) in of_sinks {
                            apply_to_sinks(&mut totals.sinks, number, &body);
                        }
                        SegmentSummary { entries, totals, begins }
                    }));
                }
                _ => return Ok(None),
            }
        }
    }

    /// What this segment says of one that it was begun after: nothing, unless that was the very one before it.
    pub fn of_previous(&self, id: SegmentId) -> RecordedEnd {
        if self.id.sequence.checked_sub(1) != Some(id.sequence) || self.header.previous_end == 0 {
            return RecordedEnd::default();
        }
        RecordedEnd { limit: self.header.previous_end, sealed: self.header.previous_sealed }
    }

    /// Reads the records that stand from `offset` up to `limit`.
    pub fn scan(&self, offset: u64, limit: u64, payloads: Payloads) -> Scan {
        Scan { segment: self.clone(), offset, limit, end: 0, payloads, window: ReadWindow::default() }
    }

    /// Reads all its records, up to `limit` (`u64::MAX`: to the end of the file, however it grows).
    pub fn records(&self, limit: u64, payloads: Payloads) -> Scan {
        self.scan(HEADER_BYTES as u64, limit, payloads)
    }
}

/// Of which records the payload is read and checked; the others are passed over by their heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payloads {
    All,
    /// What happened, without the bytes of frames that came or left.
    NotFrames,
    /// Frames, and those that were not kept.
    Frames,
    /// Only the frames that were not kept: to find a frame by its number.
    Skipped,
    /// What was done with frames, and the bytes that left.
    Outcomes,
}

impl Payloads {
    fn has(self, kind: RecordKind) -> bool {
        match self {
            Payloads::All => true,
            Payloads::NotFrames => kind != RecordKind::FRAME && kind != RecordKind::CHANGED,
            Payloads::Frames => kind == RecordKind::FRAME || kind == RecordKind::SKIPPED,
            Payloads::Skipped => kind == RecordKind::SKIPPED,
            Payloads::Outcomes => kind == RecordKind::OUTCOME || kind == RecordKind::CHANGED,
        }
    }
}

/// A record that is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawRecord {
    pub head: RecordHead,
    pub offset: u64,
}

/// What comes next in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScanStep {
    Record(RawRecord),
    /// ByteReader that are no record, with a record behind them.
    Corrupt {
        offset: u64,
        bytes: u64,
    },
    /// No whole record from here on. With `torn` 0 the file ends here; otherwise so many bytes follow.
    End {
        offset: u64,
        torn: u64,
    },
}

/// Goes through a segment's records. After `End` it may be asked again: the segment may have grown.
pub(crate) struct Scan {
    pub segment: Segment,
    /// Where the next record should begin.
    pub offset: u64,
    limit: u64,
    /// Where the file ended at the last look, or the limit.
    end: u64,
    pub payloads: Payloads,
    window: ReadWindow,
}

impl Scan {
    pub fn step(&mut self) -> Result<ScanStep, ReadError> {
        if let Some(record) = self.next_record()? {
            return Ok(ScanStep::Record(record));
        }
        // The file may have grown since the last look.
        self.look_again()?;
        if let Some(record) = self.next_record()? {
            return Ok(ScanStep::Record(record));
        }
        let Some(next) = self.resync()? else {
            return Ok(ScanStep::End { offset: self.offset, torn: self.end.saturating_sub(self.offset) });
        };
        // A writer at work may have completed this record between the two looks.
        self.look_again()?;
        if let Some(record) = self.next_record()? {
            return Ok(ScanStep::Record(record));
        }
        let corrupt = ScanStep::Corrupt { offset: self.offset, bytes: next - self.offset };
        self.offset = next;
        Ok(corrupt)
    }

    /// The same up to an end that is known, without asking for the file's size; `None` at it. Every byte before the end
    /// is taken to have been written, so that nothing is torn.
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

    /// Goes on from here, with another file of the same bytes.
    pub fn reopen(&mut self, segment: Segment, offset: u64) {
        (self.segment, self.offset) = (segment, offset);
        self.window.buffer.clear();
    }

    /// The record that should begin right here, if it is whole.
    pub fn next_here(&mut self) -> Result<Option<RawRecord>, ReadError> {
        self.look_again()?;
        self.next_record()
    }

    /// From here on with the frames' bytes.
    pub fn read_frames_from(&mut self, offset: u64) {
        (self.offset, self.payloads) = (offset, Payloads::All);
    }

    fn next_record(&mut self) -> Result<Option<RawRecord>, ReadError> {
        let Some(head) = self.record_at(self.offset, self.payloads)? else { return Ok(None) };
        let record = RawRecord { head, offset: self.offset };
        self.offset += head.record_bytes();
        Ok(Some(record))
    }

    fn look_again(&mut self) -> Result<(), ReadError> {
        self.window.buffer.clear();
        self.end = self.segment.bytes()?.min(self.limit);
        Ok(())
    }

    /// The payload of the record that the last step gave; empty where it was passed over.
    pub fn payload(&self, record: &RawRecord) -> &[u8] {
        if !self.payloads.has(record.head.kind) {
            return &[];
        }
        self.window.get(record.offset + HEAD_BYTES as u64, record.head.payload as usize).unwrap_or_default()
    }

    /// What the record that the last step gave says; `None` where its payload is not what its kind says.
    pub fn body(&self, record: &RawRecord) -> Option<RecordBody> {
        let RecordHead { kind, number, .. } = record.head;
        RecordBody::decode(kind, number, self.payload(record), self.segment.header.next_request)
    }

    /// The head of a record that begins at `offset` and is whole.
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

    /// Where the next whole record after the broken one begins.
    fn resync(&mut self) -> Result<Option<u64>, ReadError> {
        // Where only a payload is damaged its head still says where the next record stands.
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

/// The part of the file that is in memory.
#[derive(Default)]
struct ReadWindow {
    buffer: Vec<u8>,
    begins: u64,
}

impl ReadWindow {
    /// Read at once where reading goes straight on, and after a jump (over a frame's bytes).
    const AHEAD: usize = 256 << 10;
    const AFTER_JUMP: usize = 4 << 10;

    fn get(&self, offset: u64, bytes: usize) -> Option<&[u8]> {
        let start = usize::try_from(offset.checked_sub(self.begins)?).ok()?;
        self.buffer.get(start..start.checked_add(bytes)?)
    }

    /// Sees to it that so many bytes from `offset` are there, or as many as the file has. Nothing from `end` on is
    /// taken in: it may be written yet.
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
            // What one very large frame took is given back.
            self.buffer.shrink_to(Self::AHEAD);
        }
        self.buffer.resize(bytes.max(ahead).max(have), 0);
        let read = read_full(file, &mut self.buffer[have..], offset + have as u64);
        self.buffer.truncate(have + read.as_ref().unwrap_or(&0));
        read.map(|_| ())
    }
}
