//! Recovers a stream at a start: cuts the torn end of the last run and lists what was in flight.
//!
//! The work is bounded: a start scans only the segments after the newest summary.

use std::io;
use std::path::Path;

use crate::bounds::REQUESTS_LEFT_OUT;
use crate::error::{IoError, OpenError, ReadError};
use crate::format::{HEAD_BYTES, HEADER_BYTES, RECORD_BYTES, RecordHead, RecordKind};
use crate::frame_set::FrameSet;
use crate::manifest::{self, Manifest, MissingSegments};
use crate::options::SyncPolicy;
use crate::position::{FrameNo, SegmentId};
use crate::request::{JournalRequest, RequestInfo};
use crate::segment::{Payloads, ScanStep, Segment, SegmentSummary};
use crate::segment_end::{SegmentEnd, write_end};
use crate::segment_files;
use crate::segment_files::SegmentFile;
use crate::sink_progress::SinkProgress;
use crate::storage::{PART, Storage, is_full, read_full};
use crate::stream_state::StreamState;

/// State of a stream that was opened for writing.
#[derive(Clone, Debug, Default)]
pub struct RecoveredStream {
    /// Segments in the directory.
    pub segments: usize,
    /// Bytes of the segments.
    pub bytes: u64,
    /// Last frame that is stored or was skipped; 0 in a new journal.
    pub last_frame: FrameNo,
    /// Torn ends that were cut, one for each segment that was being written when a process died.
    pub cut: Vec<TornEnd>,
    /// Damage inside scanned segments, and segments that lost everything. Left in place; readers skip it.
    pub corrupt: Vec<Corruption>,
    /// Segments that are missing although retention did not remove them.
    pub missing: Option<MissingSegments>,
    /// Whether frames may have been sent without a record. If so, it is unknown what a sink has of the frames
    /// past [`SinkProgress::through`], until [`JournalWriter::forget_unrecorded`](crate::JournalWriter::forget_unrecorded) is
    /// called.
    pub unrecorded: bool,
    /// Error of the disk that stopped the start from writing. Frames can be appended once there is room.
    pub refused: Option<String>,
    /// Open requests in order of number. `close` them when they end.
    pub live: Vec<LiveRequest>,
    /// Frames without an outcome. [`JournalWriter::backlog`](crate::JournalWriter::backlog) reads them back.
    pub unfinished: FrameSet,
    /// Progress of each sink. [`BacklogReader::with_outcomes`](crate::BacklogReader::with_outcomes) reads the
    /// frames past [`SinkProgress::through`], and [`SinkProgress::has_taken_row`] tells which rows need not
    /// be sent again. Call [`JournalWriter::resume`](crate::JournalWriter::resume) before sending anything to
    /// a sink.
    pub sinks: Vec<SinkProgress>,
}

/// Torn end of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TornEnd {
    /// Segment that was cut.
    pub segment: SegmentId,
    /// Offset of the cut.
    pub offset: u64,
    /// Bytes cut off.
    pub bytes: u64,
    /// Frame that was being written, if its number is readable.
    pub frame: Option<FrameNo>,
}

/// Invalid bytes inside a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corruption {
    /// Segment with the damage.
    pub segment: SegmentId,
    /// Offset of the first invalid byte.
    pub offset: u64,
    /// Bytes up to the next valid record.
    pub bytes: u64,
}

/// Request that was open when the last run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveRequest {
    /// Handle of the request in the new writer.
    pub request: JournalRequest,
    /// Totals of the request.
    pub info: RequestInfo,
}

/// State that a writer starts from.
pub(crate) struct WriterStart {
    pub state: StreamState,
    pub found: RecoveredStream,
    pub next_sequence: u32,
    pub previous_end: u64,
    pub previous_has_summary: bool,
    /// Manifest that the next start is to find.
    pub manifest: Manifest,
}

impl WriterStart {
    /// Start of a stream whose directory does not fit on the disk yet.
    pub fn refused(error: &io::Error) -> WriterStart {
        let found = RecoveredStream { refused: Some(error.to_string()), ..RecoveredStream::default() };
        WriterStart {
            state: StreamState::new(),
            found,
            next_sequence: 0,
            previous_end: 0,
            previous_has_summary: true,
            manifest: Manifest::default(),
        }
    }

    pub fn last_frame(&self) -> FrameNo {
        FrameNo(self.state.totals.next_frame - 1)
    }
}

/// Recovers a stream's directory.
pub(crate) fn recover(storage: &dyn Storage, dir: &Path, sync: SyncPolicy) -> Result<WriterStart, OpenError> {
    remove_leftovers(storage, dir)?;
    let listed = segment_files::list(storage, dir).map_err(|error| IoError::new("list", dir, error))?;
    let mut found = RecoveredStream::default();
    let known = manifest::read(storage, dir);
    if let Some(known) = &known {
        found.missing = known.missing(&listed);
        found.unrecorded = known.unrecorded;
        let emptied = known.emptied(&listed);
        found.corrupt.extend(emptied.map(|&SegmentFile { id, bytes, .. }| Corruption {
            segment: id,
            offset: 0,
            bytes,
        }));
    }
    let (newest, mut scanned) = newest_summary(storage, dir, &listed, &mut found)?;
    let clean = scanned.is_empty() && newest.as_ref().is_none_or(|newest| newest.totals.clean);
    let mut previous_end = newest.as_ref().map_or(0, |summary| summary.begins);
    let mut previous_has_summary = true;
    let mut state = newest.as_ref().map_or_else(StreamState::new, StreamState::at_end_of);
    scanned.reverse();
    for at in 0..scanned.len() {
        let limit = scanned.get(at + 1).map_or(u64::MAX, |next| next.recorded_end_of(scanned[at].id).limit);
        (previous_end, previous_has_summary) = repair(&scanned[at], limit, &mut state, &mut found)?;
    }
    if !clean {
        state.totals.next_request += REQUESTS_LEFT_OUT;
    }
    for SegmentFile { id, bytes, .. } in &listed {
        // A segment with an unreadable header may hold as many frames as fit.
        let unread = found.corrupt.iter().any(|corrupt| corrupt.segment == *id && corrupt.offset == 0);
        let frames = if unread { bytes / RECORD_BYTES as u64 } else { 0 };
        state.totals.next_frame = state.totals.next_frame.max(id.first.0 + frames);
    }
    let mut manifest = known.unwrap_or_default();
    state.totals.next_frame = state.totals.next_frame.max(manifest.newest.first.0);
    let remaining = segment_files::list(storage, dir).map_err(|error| IoError::new("list", dir, error))?;
    if sync != SyncPolicy::None {
        sync_all(storage, dir, &remaining)?;
    }
    found.segments = remaining.len();
    found.bytes = remaining.iter().map(|segment| segment.bytes).sum();
    found.last_frame = FrameNo(state.totals.next_frame - 1);
    found.unfinished = state.totals.unfinished.clone();
    found.sinks = state.totals.sinks.clone();
    let next_sequence = listed.last().map_or(0, |last| last.id.sequence + 1);
    let next_sequence =
        if manifest.segments > 0 { next_sequence.max(manifest.newest.sequence + 1) } else { next_sequence };
    manifest.set_segments(&remaining);
    manifest.lost += found.missing.map_or(0, |missing| missing.missing);
    Ok(WriterStart { state, found, next_sequence, previous_end, previous_has_summary, manifest })
}

/// Removes files that a dying process left incomplete.
fn remove_leftovers(storage: &dyn Storage, dir: &Path) -> Result<(), OpenError> {
    let names = storage.list(dir).map_err(|error| IoError::new("list", dir, error))?;
    for name in names.iter().filter(|entry| entry.name.ends_with(PART)) {
        let path = dir.join(&name.name);
        storage.remove(&path).map_err(|error| IoError::new("remove", &path, error))?;
    }
    Ok(())
}

/// Returns the newest summary, and the segments after it, newest first.
fn newest_summary(
    storage: &dyn Storage,
    dir: &Path,
    listed: &[SegmentFile],
    found: &mut RecoveredStream,
) -> Result<(Option<SegmentSummary>, Vec<Segment>), OpenError> {
    let mut without = Vec::new();
    for SegmentFile { id, bytes, .. } in listed.iter().rev() {
        let Some(segment) = Segment::open(storage, dir, *id, true)? else {
            unreadable(storage, dir, *id, *bytes, found)?;
            continue;
        };
        if let Some(summary) = segment.summary()? {
            return Ok((Some(summary), without));
        }
        without.push(segment);
    }
    Ok((None, without))
}

/// Handles a segment without a valid header. A torn segment holds nothing and is removed; a damaged one
/// stays.
fn unreadable(
    storage: &dyn Storage,
    dir: &Path,
    id: SegmentId,
    bytes: u64,
    found: &mut RecoveredStream,
) -> Result<(), OpenError> {
    let path = dir.join(id.to_string());
    let mut start = [0; HEADER_BYTES];
    let file = storage.open(&path, false).map_err(|error| IoError::new("open", &path, error))?;
    let read = read_full(&*file, &mut start, 0).map_err(|error| IoError::new("read", &path, error))?;
    let is_emptied = found.corrupt.iter().any(|corrupt| corrupt.segment == id);
    if is_emptied {
        // Already listed.
    } else if read < HEADER_BYTES || start == [0; HEADER_BYTES] {
        storage.remove(&path).map_err(|error| IoError::new("remove", &path, error))?;
        found.cut.push(TornEnd { segment: id, offset: 0, bytes, frame: None });
    } else {
        found.corrupt.push(Corruption { segment: id, offset: 0, bytes });
    }
    Ok(())
}

/// Scans a segment, cuts its torn end and writes its summary. Returns the end of its records, and whether it
/// has a summary.
fn repair(
    segment: &Segment,
    limit: u64,
    state: &mut StreamState,
    found: &mut RecoveredStream,
) -> Result<(u64, bool), OpenError> {
    state.begin_segment(&segment.header);
    let bytes = segment.bytes()?;
    let mut scan = segment.records(limit, Payloads::All);
    let end = loop {
        match scan.step()? {
            // A dying process left a part of its summary.
            ScanStep::Record(record) if record.begins_summary() => break record.offset,
            ScanStep::Record(record) => {
                let Some(body) = scan.body(&record) else { continue };
                state.apply(&record, &body);
            }
            ScanStep::Corrupt { offset, bytes } => {
                found.corrupt.push(Corruption { segment: segment.id, offset, bytes });
            }
            ScanStep::End { offset, .. } => break offset,
        }
    };
    if end < bytes {
        let frame = torn_frame(segment, end)?;
        found.cut.push(TornEnd { segment: segment.id, offset: end, bytes: bytes - end, frame });
    }
    let summary = (state.requests.iter().cloned().collect(), state.totals.clone());
    let ended = SegmentEnd { bytes: end, through: FrameNo(0), summary: Some(summary) };
    match write_end(&*segment.file, &segment.header, &ended) {
        Ok(()) => Ok((end, true)),
        // The next start scans the segment again.
        Err(error) if is_full(&error) => {
            found.refused = Some(IoError::new("write summary of", &segment.path, error).to_string());
            Ok((end, false))
        }
        Err(error) => Err(IoError::new("repair", &segment.path, error).into()),
    }
}

/// Frame whose record is torn at `offset`, if its head is valid.
fn torn_frame(segment: &Segment, offset: u64) -> Result<Option<FrameNo>, ReadError> {
    let mut head = [0; HEAD_BYTES];
    read_full(&*segment.file, &mut head, offset)
        .map_err(|error| IoError::new("read", &segment.path, error))?;
    let head = RecordHead::decode(&head, segment.header.salt, offset);
    Ok(head.filter(|(head, _)| head.kind == RecordKind::FRAME).map(|(head, _)| FrameNo(head.number)))
}

/// Syncs what recovery read, so that it counts as durable.
fn sync_all(storage: &dyn Storage, dir: &Path, listed: &[SegmentFile]) -> Result<(), OpenError> {
    for SegmentFile { id, .. } in listed {
        let path = dir.join(id.to_string());
        let file = storage.open(&path, true).map_err(|error| IoError::new("open", &path, error))?;
        file.sync().map_err(|error| IoError::new("sync", &path, error))?;
    }
    storage.sync_dir(dir).map_err(|error| IoError::new("sync", dir, error))?;
    Ok(())
}
