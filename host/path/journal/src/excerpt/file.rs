//! The segment of an excerpt, and the state that its records give.

use std::collections::BTreeSet;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::ExcerptError;
use crate::error::IoError;
use crate::format::{self, HEADER_BYTES, RecordHead, RecordKind, SegmentHeader, checksum, record};
use crate::plugin_component::PluginComponent;
use crate::position::{FrameNo, SegmentId};
use crate::reader::{RequestHistory, RequestInfo};
use crate::record::{ErasedEntry, RecordBody, RequestEntry, put_entries, put_kept_attributes, put_left_out};
use crate::seal;
use crate::segment::RawRecord;
use crate::storage::{Disk, File, Storage, write_all};
use crate::stream_state::StreamState;

/// Bytes of records that wait for a write.
const PENDING_BYTES: usize = 1 << 20;

/// The segment of an excerpt.
pub(super) struct ExcerptFile {
    stream: String,
    path: PathBuf,
    file: Arc<dyn File>,
    header: SegmentHeader,
    bytes_max: u64,
    /// State as a reader of the excerpt will have it.
    state: StreamState,
    pending: Vec<u8>,
    /// Bytes in the file.
    written: u64,
}

impl ExcerptFile {
    /// Begins the segment for these requests.
    pub(super) fn create(
        dir: &Path,
        stream: &str,
        lives: &[RequestHistory],
        bytes_max: u64,
    ) -> Result<ExcerptFile, ExcerptError> {
        let infos = || lives.iter().map(|life| &life.request);
        let rid = infos().next().map_or("", |info| &info.rid);
        let header = SegmentHeader {
            // The same request gives the same bytes.
            salt: checksum(0, rid.as_bytes()),
            // Begins with the stream, so that all frames before count as left out and none as removed.
            segment: SegmentId { first: FrameNo(1), sequence: 0 },
            next_request: infos().map(|info| info.number.0 + 1).max().unwrap_or(1),
            begun_unix_ns: infos().map(|info| info.first_unix_ns).min().unwrap_or_default(),
            previous_end: 0,
            previous_sealed: false,
        };
        let path = dir.join(header.segment.to_string());
        let file = Disk.create(&path).map_err(|error| IoError::new("create", &path, error))?;
        let mut state = StreamState::new();
        state.begin_segment(&header);
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        let mut excerpt = ExcerptFile {
            stream: stream.to_owned(),
            path,
            file,
            header,
            bytes_max,
            state,
            pending: Vec::new(),
            written: 0,
        };
        excerpt.write(&bytes)?;
        Ok(excerpt)
    }

    /// The number after the last frame.
    pub(super) fn next_frame(&self) -> u64 {
        self.state.next_frame
    }

    /// The requests so far.
    pub(super) fn requests(&self) -> BTreeSet<u64> {
        self.state.requests.iter().map(|entry| entry.info.number.0).collect()
    }

    pub(super) fn has_request(&self, number: u64) -> bool {
        self.state.requests.get(number).is_some()
    }

    /// Whether this is the last component of its plugin.
    pub(super) fn has_plugin(&self, component: &PluginComponent) -> bool {
        self.state.plugins.get(&component.plugin) == Some(component)
    }

    /// Whether a request has these totals.
    pub(super) fn has(&self, info: &RequestInfo, closed: bool) -> bool {
        let known = self.state.requests.get(info.number.0);
        known.is_some_and(|known| known.info == *info && known.closed == closed)
    }

    pub(super) fn rid(&self, number: u64) -> String {
        self.state.requests.get(number).map(|known| known.info.rid.clone()).unwrap_or_default()
    }

    /// Adds a record of the stream, with this payload.
    pub(super) fn put(
        &mut self,
        of: &RawRecord,
        payload: &[u8],
        body: &RecordBody,
    ) -> Result<(), ExcerptError> {
        let RecordHead { kind, number, time, .. } = of.head;
        record(&mut self.pending, kind, number, time, |out| out.extend_from_slice(payload));
        let head = RecordHead { payload: payload.len() as u32, ..of.head };
        self.state.apply(&RawRecord { head, offset: 0 }, body);
        self.write_if_full()
    }

    /// Records that the frames from the last one up to this one are left out.
    pub(super) fn leave_out_up_to(&mut self, frame: u64) -> Result<(), ExcerptError> {
        let first = self.state.next_frame;
        let Some(count) = frame.checked_sub(first).filter(|count| *count > 0) else { return Ok(()) };
        put_left_out(&mut self.pending, first, count);
        self.state.next_frame = frame;
        self.write_if_full()
    }

    /// Gives requests their totals.
    pub(super) fn carry(&mut self, entries: Vec<RequestEntry>) -> Result<(), ExcerptError> {
        if entries.is_empty() {
            return Ok(());
        }
        put_entries(&mut self.pending, RecordKind::CARRY, entries.iter().map(RequestEntry::by_ref));
        entries.iter().for_each(|entry| put_kept_attributes(&mut self.pending, &entry.info));
        let head = RecordHead { payload: 0, kind: RecordKind::CARRY, number: entries.len() as u64, time: 0 };
        self.state.apply(&RawRecord { head, offset: 0 }, &RecordBody::Carry(entries));
        self.write_if_full()
    }

    /// Writes the summary. Returns the bytes of the segment.
    pub(super) fn finish(mut self, erased: &[ErasedEntry]) -> Result<u64, ExcerptError> {
        self.write_pending()?;
        let entries: Vec<RequestEntry> = self.state.requests.iter().cloned().collect();
        let totals = self.state.totals();
        let mut end = seal::end_records(&entries, &totals, erased, self.written);
        format::seal(&mut end, self.header.salt, self.written);
        self.write(&end)?;
        Ok(self.written)
    }

    fn write_if_full(&mut self) -> Result<(), ExcerptError> {
        if self.pending.len() < PENDING_BYTES { Ok(()) } else { self.write_pending() }
    }

    fn write_pending(&mut self) -> Result<(), ExcerptError> {
        let mut records = std::mem::take(&mut self.pending);
        format::seal(&mut records, self.header.salt, self.written);
        self.write(&records)?;
        records.clear();
        self.pending = records;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ExcerptError> {
        debug_assert!(self.written > 0 || bytes.len() == HEADER_BYTES);
        if self.written + bytes.len() as u64 > self.bytes_max {
            return Err(ExcerptError::TooLarge { stream: self.stream.clone(), bytes_max: self.bytes_max });
        }
        write_all(&*self.file, &mut [IoSlice::new(bytes)], self.written)
            .map_err(|error| IoError::new("write", &self.path, error))?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}
