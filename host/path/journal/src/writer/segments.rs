//! Begins and ends segments.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::IoSlice;
use std::path::Path;
use std::sync::atomic::Ordering;

use super::{ActiveSegment, JournalWriter, REQUESTS_BEHIND_MAX};
use crate::bounds::{SEGMENT_FRAMES_MAX, SEGMENT_REQUESTS_MAX};
use crate::error::{IoError, WriteError};
use crate::format::{self, HEADER_BYTES, RECORD_BYTES, RecordKind, SegmentHeader, put, record};
use crate::mutex::lock;
use crate::notice::BackgroundNotice;
use crate::position::{FrameNo, SegmentId};
use crate::record::{SegmentTotals, put_entries};
use crate::segment::Segment;
use crate::segment_end::SegmentEnd;
use crate::storage::{File, PART, write_all};

impl JournalWriter {
    /// Whether the segment has grown by its full size, even without frames.
    pub(super) fn is_grown(&self) -> bool {
        let bytes = |active: &ActiveSegment| active.end - active.begins + self.pending.len() as u64;
        self.active.as_ref().is_some_and(|active| bytes(active) > self.root.options.segment_bytes)
    }

    pub(super) fn must_begin(&self, frame: usize) -> bool {
        let Some(active) = &self.active else { return true };
        let bytes = active.end + (self.pending.len() + frame + RECORD_BYTES) as u64;
        let age = self.totals.last_unix_ns.saturating_sub(active.segment.header.begun_unix_ns);
        let limit = self.root.options.retain_age;
        let old = limit.is_some_and(|limit| u128::from(age) * 8 > limit.as_nanos());
        let many = active.opened >= SEGMENT_REQUESTS_MAX || self.totals.frames >= SEGMENT_FRAMES_MAX;
        let full = bytes > self.root.options.segment_bytes || old || many;
        let is_asked =
            self.shared.renew.load(Ordering::Relaxed) || self.shared.must_end.load(Ordering::Relaxed);
        full && self.totals.frames > 0 || self.lost > 0 || is_asked
    }

    /// Ends the current segment, if any, and begins the next. Reserves space for the segment and a frame of
    /// this size first: without space the current segment continues to take records. The waiting records go
    /// to either segment.
    pub(super) fn begin_segment(&mut self, frame: usize) -> Result<(), WriteError> {
        let made = self.make_part(frame, true);
        self.refused = made.as_ref().is_err_and(WriteError::is_full).then_some(frame);
        let (file, reserved) = made?;
        let id = SegmentId { first: FrameNo(self.totals.next_frame), sequence: self.next_sequence };
        let path = self.shared.dir.join(id.to_string());
        if let Err(error) = self.end_segment() {
            let _ = self.root.storage.remove(&path.with_extension(PART));
            return Err(error);
        }
        // Frames skipped before the segment's first frame are recorded in the segment.
        self.stage();
        self.requests.abandon(
            self.idle_before(self.totals.last_unix_ns),
            self.totals.next_request.saturating_sub(REQUESTS_BEHIND_MAX),
        );
        let header = SegmentHeader {
            salt: RandomState::new().build_hasher().finish() as u32,
            segment: id,
            next_request: self.totals.next_request,
            begun_unix_ns: self.totals.last_unix_ns,
            previous_end: self.previous_end as u32,
            previous_has_summary: self.previous_has_summary,
        };
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        bytes.extend_from_slice(&self.pending);
        if self.lost > 0 {
            record(&mut bytes, RecordKind::LOST, self.lost, self.totals.last_unix_ns, |_| {});
        }
        self.put_state(&mut bytes);
        format::add_checksums(&mut bytes[HEADER_BYTES..], header.salt, HEADER_BYTES as u64);

        let begun = self.fill_part(&*file, &path, &bytes);
        self.healthy = begun.is_ok();
        begun?;
        let segment = Segment { file, path, id, header };
        self.shared.begun(segment.clone(), bytes.len() as u64);
        let clock = *lock(&self.root.clock);
        // If this fails, the next start finds one more segment than it expects.
        let _ = self.shared.change_manifest(|manifest| {
            manifest.begin(id);
            manifest.clock = clock;
        });
        let end = bytes.len() as u64;
        self.active =
            Some(ActiveSegment { segment, end, begins: end, opened: 0, reserved: reserved.max(end) });
        self.totals.begin_segment();
        self.next_sequence += 1;
        self.pending.clear();
        self.taken_recorded.fill(true);
        if self.lost > 0 {
            self.shared.push_notice(BackgroundNotice::OutcomesLost { count: std::mem::take(&mut self.lost) });
        }
        self.publish_floor();
        self.wrote(FrameNo(self.totals.next_frame - 1));
        Ok(())
    }

    /// Adds the records that a segment begins with, behind those that wait: these may have verdicts of earlier components, and CARRY
    /// counts them.
    pub(super) fn put_state(&mut self, out: &mut Vec<u8>) {
        self.totals.sinks.iter().for_each(|sink| put(out, RecordKind::SINK, 0, 0, sink));
        self.plugins.iter().for_each(|component| put(out, RecordKind::PLUGIN, 0, 0, component));
        put_entries(out, RecordKind::CARRY, self.requests.carried());
    }

    /// Writes the first bytes of a segment and renames the file: it appears with all of them or not at all.
    fn fill_part(&self, file: &dyn File, path: &Path, bytes: &[u8]) -> Result<(), WriteError> {
        let (storage, part) = (&*self.root.storage, path.with_extension(PART));
        let written =
            write_all(file, &mut [IoSlice::new(bytes)], 0).and_then(|()| storage.rename(&part, path));
        written.map_err(|error| {
            // The next attempt or the next start removes the file.
            let _ = storage.remove(&part);
            IoError::new("begin", path, error).into()
        })
    }

    fn end_segment(&mut self) -> Result<(), WriteError> {
        if self.active.is_none() {
            return Ok(());
        }
        self.stage();
        let flushed = self.write_pending();
        // Leave a damaged segment in any case. Otherwise wait for the disk to recover.
        if flushed.is_err() && !self.shared.renew.load(Ordering::SeqCst) {
            return flushed;
        }
        self.leave(flushed.is_ok() && self.lost == 0, false);
        Ok(())
    }

    /// Hands the segment over to get its summary. `exact` says that the writer's totals match its records.
    pub(super) fn leave(&mut self, exact: bool, clean: bool) {
        let Some(active) = self.active.take() else { return };
        (self.previous_end, self.previous_has_summary) = (active.end, exact);
        let through = FrameNo(self.totals.next_frame - 1);
        let summary = exact.then(|| {
            let totals = SegmentTotals { clean, ..self.totals.clone() };
            (self.requests.summarize(), totals)
        });
        self.shared.ended(SegmentEnd { bytes: active.end, through, summary });
        self.shared.renew.store(false, Ordering::SeqCst);
        self.shared.must_end.store(false, Ordering::SeqCst);
    }
}
