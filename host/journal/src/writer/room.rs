//! Room on the disk: it is set aside before it is needed, so that a full disk refuses frames and not the records about them.
//!
//! The file of a segment is given the room for its frames when it is begun, and beside that a spare that frames may not use: the
//! records of what left, and who took it, go there while the disk is full. On a file system that cannot set room aside none of
//! this is promised, and a notice says so.

use std::io;
use std::sync::Arc;

use super::Writer;
use crate::bounds::{SPARE_BYTES_MAX, SPARE_PARTS};
use crate::error::{IoError, WriteError};
use crate::format::{HEADER_BYTES, RECORD_BYTES, RecordKind};
use crate::notice::Notice;
use crate::position::{FrameNo, SegmentId};
use crate::record::{put_ahead, put_entries, put_taken};
use crate::storage::{File, PART, is_full};

impl Writer {
    /// Whether the frame that was refused last would be taken now, or any, as far as that can be known without one: false on a file system that cannot set
    /// room aside, where only the next frame tells. Writes what waits, but begins no segment for that alone.
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
        // What cannot be removed is written over when a segment is begun.
        let _ = self.root.storage.remove(&self.part());
        Ok(self.reserves)
    }

    /// Frames are about to leave of which no record can be written. The manifest says so from now on, so that the next start does
    /// not take the records for the whole truth. False: not even that can be written.
    pub fn unrecorded(&mut self) -> bool {
        if !self.unrecorded {
            self.unrecorded = self.shared.change_manifest(|manifest| manifest.unrecorded = true).is_ok();
        }
        self.unrecorded
    }

    /// What each sink has of an earlier run's frames is settled, where that run had let some leave unrecorded, and the writer
    /// was told. Writes what waits.
    pub fn settled(&mut self) -> Result<(), WriteError> {
        self.unsettled = false;
        self.flush()?;
        self.recorded();
        Ok(())
    }

    /// All that left is on record (again).
    pub(super) fn recorded(&mut self) {
        if self.unrecorded && !self.unsettled && self.lost == 0 && self.pending.is_empty() {
            self.unrecorded = self.shared.change_manifest(|manifest| manifest.unrecorded = false).is_err();
        }
    }

    /// Sees to it that a frame of this size fits, and the spare behind it. On an error the segment is as it was.
    pub(super) fn make_room_for_frame(&mut self, frame: usize) -> Result<(), WriteError> {
        let Some(active) = self.active.as_ref().filter(|_| self.reserves) else { return Ok(()) };
        let end = active.end + (self.pending.len() + frame + RECORD_BYTES) as u64 + self.spare();
        let made = if end <= active.reserved { Ok(()) } else { self.make_room(end) };
        self.refused = made.is_err().then_some(frame);
        made
    }

    /// Sees to it that the segment can grow to this size.
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

    /// A file for the next segment, and the room it has: for a whole segment, if wanted and the disk has so much, or for what
    /// must go in at once, a frame of this size and the spare.
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
        // Writes into room set aside also cost a fifth less at 100 KB.
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

    /// The file that becomes the next segment.
    fn part(&self) -> std::path::PathBuf {
        let id = SegmentId { first: FrameNo(self.next_frame), sequence: self.next_sequence };
        self.shared.dir.join(id.to_string()).with_extension(PART)
    }

    /// The bytes that a segment begun now begins with, and those that wait.
    fn first_bytes(&mut self) -> u64 {
        let mut bytes = Vec::new();
        for sink in &self.sinks {
            put_taken(&mut bytes, sink, 0);
            put_ahead(&mut bytes, sink);
        }
        put_entries(&mut bytes, RecordKind::CARRY, self.requests.carried());
        // The last is for a record of what was lost, and one of what was skipped.
        (HEADER_BYTES + bytes.len() + self.pending.len() + 4 * RECORD_BYTES) as u64
    }

    /// What frames leave of a segment's room.
    fn spare(&self) -> u64 {
        (self.root.options.segment_bytes / SPARE_PARTS).min(SPARE_BYTES_MAX)
    }

    fn cannot_reserve(&mut self, error: &io::Error) {
        if std::mem::take(&mut self.reserves) {
            self.shared.tell(Notice::NotReserved { error: error.to_string() });
        }
    }
}
