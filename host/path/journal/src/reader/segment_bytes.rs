//! Reads a segment's bytes for a copy of it elsewhere, also while the segment is written.

use super::SegmentFiles;
use crate::error::{IoError, ReadError};
use crate::format::{HEADER_BYTES, RecordKind};
use crate::position::SegmentId;
use crate::segment::{Payloads, Scan, ScanStep, Segment};
use crate::storage::read_full;

/// Bytes of one segment in the order of the file, as they become final: whole records, and the summary once it is complete. A
/// start cuts off anything else. Keeps the file open, so that an erasure, which replaces the file, changes nothing here.
pub struct SegmentBytes {
    segments: SegmentFiles,
    scan: Scan,
    /// The bytes before this offset were given.
    offset: u64,
    /// End of the bytes that are final.
    settled: u64,
    /// Size of the segment, once nothing follows.
    size: Option<u64>,
}

impl SegmentBytes {
    pub(super) fn new(segments: SegmentFiles, segment: Segment) -> SegmentBytes {
        let scan = segment.records(u64::MAX, Payloads::All);
        SegmentBytes { segments, scan, offset: 0, settled: HEADER_BYTES as u64, size: None }
    }

    /// The segment.
    pub fn id(&self) -> SegmentId {
        self.scan.segment.id
    }

    /// Time when the segment was begun, Unix nanoseconds.
    pub fn begun_unix_ns(&self) -> u64 {
        self.scan.segment.header.begun_unix_ns
    }

    /// Offset of the next bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Size of the segment if nothing follows any more, else `None`.
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// Continues at this offset.
    pub fn continue_at(&mut self, offset: u64) {
        self.offset = offset;
    }

    /// Whether the file has these bytes at this offset.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn has(&self, offset: u64, bytes: &[u8]) -> Result<bool, ReadError> {
        Ok(self.read(offset, bytes.len())? == bytes)
    }

    /// Returns the next bytes, at most `most`: whole records, or a part of a record that is longer. `None` if no further bytes
    /// are final yet.
    ///
    /// # Errors
    /// The file cannot be read.
    #[allow(clippy::should_implement_trait, reason = "None is not the end")]
    pub fn next(&mut self, most: usize) -> Result<Option<Vec<u8>>, ReadError> {
        let until = self.offset + most as u64;
        let mut cut = self.settled.min(until);
        while self.size.is_none() && self.settled <= until && self.settle()? {
            if self.settled <= until || cut <= self.offset {
                cut = self.settled.min(until);
            }
        }
        if cut <= self.offset {
            return Ok(None);
        }
        let bytes = self.read(self.offset, (cut - self.offset) as usize)?;
        self.offset += bytes.len() as u64;
        Ok(Some(bytes))
    }

    /// Ends a segment that no process writes any more: all bytes of its file are final, also without a summary.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn finish(&mut self) -> Result<(), ReadError> {
        while self.size.is_none() && self.settle()? {}
        let Segment { file, path, .. } = &self.scan.segment;
        if self.size.is_none()
            && !file.is_at(path)
            && let Some(rewritten) = self.segments.open(self.id())?
        {
            // Rewritten after a failed sync: the same records, and a summary.
            self.scan.reopen(rewritten, self.settled);
            while self.size.is_none() && self.settle()? {}
        }
        if self.size.is_none() {
            self.settled = self.scan.segment.bytes()?;
            self.size = Some(self.settled);
        }
        Ok(())
    }

    /// Checks the next record, or the whole summary. Returns false if it is not complete yet.
    fn settle(&mut self) -> Result<bool, ReadError> {
        let summary = match self.scan.step()? {
            ScanStep::Record(record) if record.begins_summary() => record.offset,
            // A valid record follows invalid bytes: the writer went on.
            ScanStep::Record(_) | ScanStep::Corrupt { .. } => {
                self.settled = self.scan.offset;
                return Ok(true);
            }
            ScanStep::End { .. } => return Ok(false),
        };
        // A start cuts off a part of a summary, and writes another one.
        loop {
            match self.scan.step()? {
                ScanStep::Record(record) if record.head.kind == RecordKind::TRAILER => {
                    self.settled = self.scan.offset;
                    self.size = Some(self.settled);
                    return Ok(true);
                }
                ScanStep::Record(_) | ScanStep::Corrupt { .. } => {}
                ScanStep::End { .. } => {
                    self.scan.offset = summary;
                    return Ok(false);
                }
            }
        }
    }

    fn read(&self, offset: u64, bytes: usize) -> Result<Vec<u8>, ReadError> {
        let Segment { file, path, .. } = &self.scan.segment;
        let mut read = vec![0; bytes];
        let length =
            read_full(&**file, &mut read, offset).map_err(|error| IoError::new("read", path, error))?;
        read.truncate(length);
        Ok(read)
    }
}
