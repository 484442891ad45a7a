//! Reads a journal, also while another process writes it. Takes no lock. A torn end means that more is to
//! come, and a removed segment is no error.

mod coverage;
mod deliveries;
mod frames;
mod histories;
mod request_list;
mod segment_bytes;
mod segment_requests;
mod tail;
mod types;

use std::collections::{HashSet, VecDeque};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use crate::confirmed;
use crate::error::{IoError, ReadError};
use crate::format::RecordKind;
use crate::instance;
use crate::manifest::MANIFEST;
use crate::mutex::lock;
use crate::outcome::Outcome;
use crate::position::{FrameNo, Position, RequestNo, SegmentId};
use crate::record::RecordBody;
use crate::segment::{Payloads, RawRecord, ScanStep, Segment};
use crate::segment_files::{SegmentFile, SegmentFiles};
use crate::storage::{self, Disk, PART, Storage};
use crate::stream_state;
use crate::text_file;
use crate::verify::{self, VerifyReport};

pub use crate::record::Taken;
pub use crate::request::{ErasedBy, Erasure, OperatorAbort, RequestInfo, RequestState};
pub use coverage::StreamCoverage;
pub use frames::FramesWithOutcomes;
pub use request_list::RequestList;
pub use segment_bytes::SegmentBytes;
pub use segment_requests::{RequestChange, RequestRecord, SegmentRequests};
pub use tail::Tail;
pub use types::{
    JournalRecord, JournalRow, ReadFrom, RequestFilter, RequestHistory, RowDelivery, StoredFrame,
};

/// A journal directory, opened for reading.
pub struct JournalReader {
    storage: Arc<dyn Storage>,
    dir: PathBuf,
}

impl JournalReader {
    /// Opens a journal. Fails with [`ReadError::NoJournal`] if the directory is no journal.
    pub fn open(dir: &Path) -> Result<JournalReader, ReadError> {
        JournalReader::open_on(Arc::new(Disk), dir)
    }

    /// Opens a journal on the given storage.
    pub fn open_on(storage: Arc<dyn Storage>, dir: &Path) -> Result<JournalReader, ReadError> {
        let journal = JournalReader { storage, dir: dir.into() };
        let JournalFolders { locked, streams, others, has_segments } = journal.folders()?;
        if !locked && streams.is_empty() {
            return Err(ReadError::NoJournal { dir: dir.into(), folders: others, has_segments });
        }
        Ok(journal)
    }

    /// Journal directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The identity of the directory, `None` for a copy and an excerpt.
    pub fn instance(&self) -> Result<Option<String>, ReadError> {
        instance::read(&*self.storage, &self.dir)
    }

    /// Names of the followers that have ever read this journal, and may have copies of it.
    pub fn followers(&self) -> Result<Vec<String>, ReadError> {
        confirmed::names(&*self.storage, &self.dir)
    }

    /// Names of the streams, sorted.
    pub fn streams(&self) -> Result<Vec<String>, ReadError> {
        Ok(self.folders()?.streams)
    }

    /// Names of sub-directories that hold no stream or cannot be read, sorted.
    pub fn others(&self) -> Result<Vec<String>, ReadError> {
        Ok(self.folders()?.others)
    }

    /// Opens a stream.
    pub fn stream(&self, name: &str) -> Result<StreamReader, ReadError> {
        if !self.streams()?.iter().any(|known| known == name) {
            return Err(ReadError::NoStream { dir: self.dir.clone(), stream: name.into() });
        }
        let (storage, dir) = (self.storage.clone(), self.dir.join(name));
        Ok(StreamReader::new(SegmentFiles { storage, dir }, name))
    }
}

/// Contents of a directory.
struct JournalFolders {
    /// Whether a writer made the directory.
    locked: bool,
    streams: Vec<String>,
    others: Vec<String>,
    /// Whether the directory itself holds segments, as a stream's directory does.
    has_segments: bool,
}

impl JournalReader {
    fn folders(&self) -> Result<JournalFolders, ReadError> {
        let list = |dir: &Path| self.storage.list(dir).map_err(|error| IoError::new("list", dir, error));
        let is_segment = |entry: &storage::DirEntry| !entry.is_dir && SegmentId::parse(&entry.name).is_some();
        let is_of_new_stream = |entry: &storage::DirEntry| {
            [text_file::AFTER, text_file::LAYOUT, instance::INSTANCE, MANIFEST].contains(&&*entry.name)
                || entry.name.ends_with(PART)
        };
        let entries = list(&self.dir)?;
        // The directories of other parts have a lock, too.
        let has = |name: &str| entries.iter().any(|entry| !entry.is_dir && entry.name == name);
        let locked = has(storage::LOCK) && has(instance::INSTANCE);
        let has_segments = entries.iter().any(is_segment);
        // `.plugins` has the stores of plugins.
        let is_named = |entry: &storage::DirEntry| entry.is_dir && !entry.name.starts_with('.');
        let mut names: Vec<String> = entries.into_iter().filter(is_named).map(|entry| entry.name).collect();
        names.sort();
        let (mut streams, mut others) = (Vec::new(), Vec::new());
        for name in names {
            let is_stream = match list(&self.dir.join(&name)) {
                // A stream has no segment before its first frame.
                Ok(inside) => inside.iter().any(is_segment) || locked && inside.iter().all(is_of_new_stream),
                // For example `lost+found` of a file system mounted here.
                Err(error) if error.source.kind() == ErrorKind::PermissionDenied => false,
                Err(error) if error.source.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error.into()),
            };
            if is_stream { &mut streams } else { &mut others }.push(name);
        }
        Ok(JournalFolders { locked, streams, others, has_segments })
    }
}

/// A stream of a journal, opened for reading.
pub struct StreamReader {
    pub(crate) segments: SegmentFiles,
    name: String,
    /// Segment of the last frame read: frames are mostly read in order.
    last_read: Mutex<Option<Segment>>,
}

impl StreamReader {
    pub(crate) fn new(segments: SegmentFiles, name: &str) -> StreamReader {
        StreamReader { segments, name: name.into(), last_read: Mutex::default() }
    }

    /// Name of the stream.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Names of the preceding streams, which hold the earlier legs of the requests. Empty for a stream where
    /// requests begin.
    pub fn after(&self) -> Result<Vec<String>, ReadError> {
        let text = text_file::read(&*self.segments.storage, &self.segments.dir, text_file::AFTER)?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// The layout of the stream's frames, as [`JournalDirectory::set_layout`](crate::JournalDirectory::set_layout) recorded it
    /// last. Empty: nobody did.
    pub fn layout(&self) -> Result<String, ReadError> {
        text_file::read(&*self.segments.storage, &self.segments.dir, text_file::LAYOUT)
    }

    /// The instance that wrote the stream, in a copy of several journals; `None` in a journal that an instance writes.
    pub fn instance(&self) -> Result<Option<String>, ReadError> {
        instance::read(&*self.segments.storage, &self.segments.dir)
    }

    /// Requests that match, in order of the segment they ended in; open requests come last. Reads summaries,
    /// not frames.
    pub fn requests(&self, filter: RequestFilter) -> Result<RequestList, ReadError> {
        RequestList::new(self.segments.clone(), filter)
    }

    /// Segments now, oldest first.
    pub fn segments(&self) -> Result<Vec<SegmentId>, ReadError> {
        Ok(self.segments.list()?.into_iter().map(|segment| segment.id).collect())
    }

    /// Segments now, oldest first, each with its bytes and the time of its last write, Unix nanoseconds.
    pub fn segment_files(&self) -> Result<Vec<(SegmentId, u64, u64)>, ReadError> {
        let listed = self.segments.list()?.into_iter();
        Ok(listed.map(|segment| (segment.id, segment.bytes, segment.modified_unix_ns)).collect())
    }

    /// Segments to which nothing is added any more, oldest first: all but the last one, which has ended only if it has a summary.
    pub fn ended_segments(&self) -> Result<Vec<SegmentId>, ReadError> {
        let mut segments = self.segments()?;
        let has_summary = match segments.last() {
            Some(last) => match self.segments.open(*last)? {
                Some(last) => last.summary()?.is_some(),
                None => false,
            },
            None => false,
        };
        if !has_summary {
            segments.pop();
        }
        Ok(segments)
    }

    /// Time when a segment was begun, unix nanoseconds; 0 if its first records were written before any frame. `None` if the
    /// segment was removed or its header cannot be read.
    pub fn begun_unix_ns(&self, id: SegmentId) -> Result<Option<u64>, ReadError> {
        Ok(self.segments.open(id)?.map(|segment| segment.header.begun_unix_ns))
    }

    /// Opens a segment for the totals of its requests and the records about them. Returns `None` if the segment was removed or its
    /// header cannot be read.
    pub fn segment_requests(&self, id: SegmentId) -> Result<Option<SegmentRequests>, ReadError> {
        self.open_segment(id, Payloads::NotFrames)
    }

    /// As [`StreamReader::segment_requests`], and its outcomes have the bytes that were sent in place of frames.
    pub fn segment_changes(&self, id: SegmentId) -> Result<Option<SegmentRequests>, ReadError> {
        self.open_segment(id, Payloads::NotReceived)
    }

    /// Opens a segment for a copy of its bytes. Returns `None` if the segment was removed or its header cannot be read.
    pub fn segment_bytes(&self, id: SegmentId) -> Result<Option<SegmentBytes>, ReadError> {
        let opened = self.segments.open(id)?;
        Ok(opened.map(|segment| SegmentBytes::new(self.segments.clone(), segment)))
    }

    fn open_segment(&self, id: SegmentId, payloads: Payloads) -> Result<Option<SegmentRequests>, ReadError> {
        let Some(segment) = self.segments.open(id)? else { return Ok(None) };
        let next = self.segments()?.into_iter().find(|next| *next > id);
        let limit = self.segments.recorded_end(next, id)?.limit;
        SegmentRequests::new(segment, limit, payloads).map(Some)
    }

    /// Completes a rid of which the beginning is given. Returns `None` if no request has such a rid.
    ///
    /// # Errors
    /// [`ReadError::AmbiguousRid`] if several rids begin with `rid` and none equals it.
    pub fn whole_rid(&self, rid: &str) -> Result<Option<String>, ReadError> {
        request_list::whole_rid(self, rid)
    }

    /// Returns how far back the segments reach, and which frames they lack.
    pub fn coverage(&self) -> Result<StreamCoverage, ReadError> {
        coverage::coverage(&self.segments)
    }

    /// Histories of all requests with this rid, oldest first.
    pub fn lives(&self, rid: &str) -> Result<Vec<RequestHistory>, ReadError> {
        histories::lives(self, rid)
    }

    /// Frames in order with their outcomes, up to the last frame now.
    pub fn frames(&self, from: ReadFrom) -> Result<FramesWithOutcomes, ReadError> {
        FramesWithOutcomes::new(self.tail(from)?)
    }

    /// All records in order. Continues as more are written.
    pub fn tail(&self, from: ReadFrom) -> Result<Tail, ReadError> {
        Tail::new(self.segments.clone(), from)
    }

    /// Reads and checks one frame.
    pub fn frame(&self, position: &Position) -> Result<StoredFrame, ReadError> {
        let (received_unix_ns, bytes) = self.payload(position, RecordKind::FRAME)?;
        Ok(StoredFrame { position: *position, received_unix_ns, bytes })
    }

    /// Reads and checks the bytes that were sent in place of a frame.
    pub fn changed(&self, position: &Position) -> Result<Vec<u8>, ReadError> {
        Ok(self.payload(position, RecordKind::CHANGED)?.1)
    }

    /// Reads the outcome at this offset of a segment, with the bytes that were sent in place of its frame. `None`: the segment was
    /// removed, or the outcome is damaged.
    pub fn outcome(&self, segment: SegmentId, offset: u32) -> Result<Option<Outcome<'static>>, ReadError> {
        let read = self.in_segment(segment, |segment| {
            let mut scan = segment.scan(offset.into(), u64::MAX, Payloads::NotReceived);
            let (mut record, mut changed) = (scan.next_here()?, None);
            if let Some(before) = record.filter(|record| record.head.kind == RecordKind::CHANGED) {
                changed = Some(Bytes::copy_from_slice(scan.payload(&before)));
                record = scan.next_here()?;
            }
            Ok(match record.and_then(|record| scan.body(&record)) {
                Some(RecordBody::Outcome(outcome)) => Some(Outcome { changed, ..outcome }),
                _ => None,
            })
        });
        Ok(read?.flatten())
    }

    /// Whether a segment's summary says that a request was erased.
    pub fn is_erased(&self, segment: SegmentId, request: RequestNo) -> Result<bool, ReadError> {
        let read = self.in_segment(segment, |segment| {
            let infos = segment.summary()?.into_iter().flat_map(|summary| summary.entries);
            Ok(infos.map(|entry| entry.info).any(|info| info.number == request && info.erased.is_some()))
        });
        Ok(read?.unwrap_or_default())
    }

    /// Another reader of the stream. It opens the segments again, so that it finds what an erasure or retention changed.
    #[must_use]
    pub fn another(&self) -> StreamReader {
        StreamReader::new(self.segments.clone(), &self.name)
    }

    /// The time and the payload of a record of this kind about a frame.
    fn payload(&self, position: &Position, kind: RecordKind) -> Result<(u64, Vec<u8>), ReadError> {
        let read = self.in_segment(position.segment, |segment| {
            let mut scan = segment.scan(u64::from(position.offset), u64::MAX, Payloads::All);
            let corrupt =
                || ReadError::Corrupt { path: segment.path.clone(), offset: position.offset.into() };
            let record = scan.next_here()?.ok_or_else(corrupt)?;
            if (record.head.kind, record.head.number) != (kind, position.frame.0) {
                return Err(corrupt());
            }
            Ok((record.head.time, scan.payload(&record).to_vec()))
        });
        read?.ok_or(ReadError::NoFrame { frame: position.frame.0 })
    }

    /// Reads in a segment, which stays open until another one is read. `None`: the segment was removed.
    fn in_segment<T>(
        &self,
        id: SegmentId,
        read: impl FnOnce(&Segment) -> Result<T, ReadError>,
    ) -> Result<Option<T>, ReadError> {
        let mut last_read = lock(&self.last_read);
        let segment = match last_read.as_ref().filter(|segment| segment.id == id) {
            Some(segment) => segment,
            None => match self.segments.open(id)? {
                Some(opened) => last_read.insert(opened),
                None => return Ok(None),
            },
        };
        read(segment).map(Some)
    }

    /// Finds the position of a frame by the record heads of its segment. `None`: the journal does not have the frame.
    pub fn position(&self, frame: FrameNo) -> Result<Option<Position>, ReadError> {
        let listed = self.segments.list()?;
        let at = listed.partition_point(|segment| segment.id.first <= frame);
        let candidates = listed[..at].iter().rev();
        for SegmentFile { id, .. } in candidates {
            let Some(segment) = self.segments.open(*id)? else { continue };
            let mut scan = segment.scan(segment.offset_before(frame)?, u64::MAX, Payloads::NotFrames);
            while let Some(RawRecord { head, offset }) = scan.record()? {
                if (head.kind, head.number) == (RecordKind::FRAME, frame.0) {
                    return Ok(Some(Position { frame, segment: *id, offset: offset as u32 }));
                }
            }
            // Two segments may begin at the same frame.
            if id.first < frame {
                break;
            }
        }
        Ok(None)
    }

    /// Last frame now; 0 if there is none. Reads the record heads of the last segment with a frame.
    pub fn last_frame(&self) -> Result<FrameNo, ReadError> {
        for SegmentFile { id, .. } in self.segments.list()?.iter().rev() {
            let Some(segment) = self.segments.open(*id)? else { continue };
            let mut scan = segment.records(u64::MAX, Payloads::NotFrames);
            let mut last = None;
            while let Some(RawRecord { head, .. }) = scan.record()? {
                last = (head.kind == RecordKind::FRAME).then_some(head.number).or(last);
            }
            if let Some(frame) = last {
                return Ok(FrameNo(frame));
            }
        }
        Ok(FrameNo::default())
    }

    /// Reads and checks everything.
    pub fn verify(&self) -> Result<VerifyReport, ReadError> {
        verify::verify(&self.segments)
    }
}

/// Reads segments in order and keeps their state, from summaries where there are any.
pub(crate) struct SegmentFold {
    pub segments: SegmentFiles,
    listed: VecDeque<SegmentId>,
    /// Segments are left out whose index has none of these rids.
    rids: Option<HashSet<String>>,
    /// Segments from this one on are left out.
    before: Option<SegmentId>,
    pub state: stream_state::StreamState,
    /// Whether the segment read last has a summary.
    pub has_summary: bool,
    /// Corrupt bytes in the segment read last, if it has no summary: offset, and number.
    pub corrupt: Vec<(u64, u64)>,
}

impl SegmentFold {
    pub fn new(segments: SegmentFiles) -> Result<SegmentFold, ReadError> {
        let listed = segments.list()?.into_iter().map(|segment| segment.id).collect();
        let state = stream_state::StreamState::new();
        Ok(SegmentFold {
            segments,
            listed,
            rids: None,
            before: None,
            state,
            has_summary: false,
            corrupt: Vec::new(),
        })
    }

    /// Leaves out segments without these frames, except the last. A segment needs no other.
    pub fn only(&mut self, first: u64, last: u64) {
        let ends = self.listed.iter().skip(1).map(|next| next.first.0).chain([u64::MAX]).collect::<Vec<_>>();
        let mut ends = ends.into_iter();
        self.listed.retain(|id| {
            let end = ends.next().unwrap_or(u64::MAX);
            // A segment may also have the outcomes of frames before it.
            end == u64::MAX || id.first.0 <= last && end > first
        });
    }

    /// Leaves out segments with a summary that lists no request with one of these rids, except the last.
    pub fn only_rids(&mut self, rids: HashSet<String>) {
        self.rids = Some(rids);
    }

    /// Leaves out this segment and later ones. Then the last one that is left is as any other.
    pub fn only_before(&mut self, before: SegmentId) {
        self.listed.retain(|id| *id < before);
        self.before = Some(before);
    }

    /// Leaves out the segments that had their last row before this time, unix nanoseconds, except the last.
    pub fn only_since(&mut self, unix_ns: u64) -> Result<(), ReadError> {
        for at in (1..self.listed.len()).rev() {
            let segment = self.segments.open(self.listed[at])?;
            if segment.is_some_and(|segment| segment.header.begun_unix_ns < unix_ns) {
                self.listed.drain(..at);
                break;
            }
        }
        Ok(())
    }

    /// The segments that are not read yet, oldest first.
    pub fn remaining(&self) -> Vec<SegmentId> {
        self.listed.iter().copied().collect()
    }

    /// Whether there is another segment.
    pub fn has_next(&self) -> bool {
        !self.listed.is_empty()
    }

    /// Reads the next segment; `state` is then the state at its end. Returns `None` after the last.
    pub fn next_segment(&mut self) -> Result<Option<Segment>, ReadError> {
        loop {
            let Some(id) = self.listed.pop_front() else { return Ok(None) };
            let Some(segment) = self.segments.open(id)? else { continue };
            if (self.has_next() || self.before.is_some()) && self.is_without_rids(&segment)? {
                // A segment needs no other.
                self.state = stream_state::StreamState::new();
                continue;
            }
            let summary = segment.summary()?;
            self.has_summary = summary.is_some();
            self.corrupt.clear();
            match summary {
                Some(summary) => self.state = stream_state::StreamState::at_end_of(&summary),
                None => self.scan(&segment)?,
            }
            return Ok(Some(segment));
        }
    }

    fn is_without_rids(&self, segment: &Segment) -> Result<bool, ReadError> {
        let Some(rids) = &self.rids else { return Ok(false) };
        let index = segment.rids()?;
        Ok(index.is_some_and(|index| !rids.iter().any(|rid| index.may_have(rid))))
    }

    fn scan(&mut self, segment: &Segment) -> Result<(), ReadError> {
        self.state.begin_segment(&segment.header);
        let next = self.listed.front().copied().or(self.before);
        let limit = self.segments.recorded_end(next, segment.id)?.limit;
        let mut scan = segment.records(limit, Payloads::NotFrames);
        loop {
            match scan.step()? {
                ScanStep::Record(record) => {
                    if let Some(body) = scan.body(&record) {
                        self.state.apply(&record, &body);
                    }
                }
                ScanStep::Corrupt { offset, bytes } => self.corrupt.push((offset, bytes)),
                ScanStep::End { offset, torn } => {
                    // A writer may still complete the end of the last segment.
                    if torn > 0 && self.has_next() {
                        self.corrupt.push((offset, torn));
                    }
                    return Ok(());
                }
            }
        }
    }
}
