//! Disk space is reserved in advance, so that a full disk refuses frames and not the records about them.
//!
//! A segment's file gets room for its frames when it is begun, and a spare that frames may not use. Records
//! of what was sent and taken go to the spare while the disk is full. A file system that cannot reserve space
//! gives no such promise; a notice reports this.

use std::io;
use std::sync::Arc;

use super::JournalWriter;
use crate::bounds::{SPARE_BYTES_MAX, SPARE_PARTS};
use crate::error::{IoError, WriteError};
use crate::format::{HEADER_BYTES, RECORD_BYTES};
use crate::notice::BackgroundNotice;
use crate::position::{FrameNo, SegmentId};
use crate::storage::{File, PART, is_full};

impl JournalWriter {
    /// Whether the last refused frame would fit now. Returns false on a file system that cannot reserve
    /// space, where only the next frame shows it. Writes the waiting records, but begins no segment for them
    /// alone.
    pub fn probe(&mut self) -> Result<bool, WriteError> {
        if self.active.is_some() {
            self.flush()?;
        }
        let frame = self.refused.unwrap_or(0);
        if self.active.is_some() && !self.must_begin(frame) {
            self.make_room_for_frame(frame)?;
            return Ok(self.reserves);
        }
        let made = self.make_part(frame, false);
        self.refused = made.as_ref().is_err_and(WriteError::is_full).then_some(frame);
        made?;
        // Beginning a segment overwrites a file that cannot be removed.
        let _ = self.root.storage.remove(&self.part());
        Ok(self.reserves)
    }

    /// Records in the manifest that frames are about to be sent without a record, so that the next start does
    /// not trust the records alone. Returns false if even the manifest cannot be written.
    pub fn unrecorded(&mut self) -> bool {
        if !self.unrecorded {
            self.unrecorded = self.shared.change_manifest(|manifest| manifest.unrecorded = true).is_ok();
        }
        self.unrecorded
    }

    /// Forgets that an earlier run sent frames without a record: it is known what each sink has of them.
    /// Writes the waiting records.
    pub fn forget_unrecorded(&mut self) -> Result<(), WriteError> {
        self.unsettled = false;
        self.flush()?;
        self.recorded();
        Ok(())
    }

    /// Clears the flag in the manifest once everything sent is recorded.
    pub(super) fn recorded(&mut self) {
        if self.unrecorded && !self.unsettled && self.lost == 0 && self.pending.is_empty() {
            self.unrecorded = self.shared.change_manifest(|manifest| manifest.unrecorded = false).is_err();
        }
    }

    /// Makes room for a frame of this size and the spare. On an error the segment is unchanged.
    pub(super) fn make_room_for_frame(&mut self, frame: usize) -> Result<(), WriteError> {
        let Some(active) = self.active.as_ref().filter(|_| self.reserves) else { return Ok(()) };
        let end = active.end + (self.pending.len() + frame + RECORD_BYTES) as u64 + self.spare();
        let made = if end <= active.reserved { Ok(()) } else { self.make_room(end) };
        self.refused = made.is_err().then_some(frame);
        made
    }

    /// Makes room for the segment to grow to this size.
    pub(super) fn make_room(&mut self, end: u64) -> Result<(), WriteError> {
        let Some(active) = &mut self.active else { return Ok(()) };
        match active.segment.file.reserve(end) {
            Ok(()) => active.reserved = end,
            Err(error) if is_full(&error) => {
                return Err(IoError::new("write", &active.segment.path, error).into());
            }
            Err(error) => self.cannot_reserve(&error),
        }
        Ok(())
    }

    /// Creates the file of the next segment. Reserves a whole segment if wanted and possible, else what must
    /// fit at once: a frame of this size and the spare. Returns the file and its reserved size.
    pub(super) fn make_part(
        &mut self,
        frame: usize,
        wants_whole: bool,
    ) -> Result<(Arc<dyn File>, u64), WriteError> {
        let part = self.part();
        let storage = self.root.storage.clone();
        let made = match storage.create(&part) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.root.restore(&self.shared.dir).and_then(|()| storage.create(&part))
            }
            made => made,
        };
        let file = made.map_err(|error| IoError::new("create", &part, error))?;
        let whole = self.root.options.segment_bytes + self.spare();
        // At 100 KB per frame, writes into reserved space also cost a fifth less.
        let mut reserved = Err(io::ErrorKind::StorageFull.into());
        if wants_whole {
            reserved = file.reserve(whole).map(|()| whole);
        }
        if reserved.as_ref().is_err_and(is_full) {
            let least = self.first_bytes() + (frame + RECORD_BYTES) as u64 + self.spare();
            reserved = file.reserve(least).map(|()| least);
        }
        match reserved {
            Ok(reserved) => Ok((file, reserved)),
            Err(error) if is_full(&error) => {
                let _ = storage.remove(&part);
                Err(IoError::new("begin", &part, error).into())
            }
            Err(error) => {
                self.cannot_reserve(&error);
                Ok((file, 0))
            }
        }
    }

    /// Path of the file that becomes the next segment.
    fn part(&self) -> std::path::PathBuf {
        let id = SegmentId { first: FrameNo(self.totals.next_frame), sequence: self.next_sequence };
        self.shared.dir.join(id.to_string()).with_extension(PART)
    }

    /// Bytes that a segment begun now begins with, including the waiting records.
    fn first_bytes(&mut self) -> u64 {
        let mut bytes = Vec::new();
        self.put_state(&mut bytes);
        // The last term is for LOST and SKIPPED.
        (HEADER_BYTES + bytes.len() + self.pending.len() + 4 * RECORD_BYTES) as u64
    }

    /// Room of a segment that frames may not use.
    fn spare(&self) -> u64 {
        (self.root.options.segment_bytes / SPARE_PARTS).min(SPARE_BYTES_MAX)
    }

    fn cannot_reserve(&mut self, error: &io::Error) {
        if std::mem::take(&mut self.reserves) {
            self.shared.push_notice(BackgroundNotice::NotReserved { error: error.to_string() });
        }
    }
}
