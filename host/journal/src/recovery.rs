//! What a stream finds when it starts: the last run's tail is cut, and what was under way is told.
//!
//! Bounded work: from the newest summary on, only segments without one are scanned, which is the last, or the last few.

use std::io;
use std::path::Path;

use crate::bounds::REQUESTS_LEFT_OUT;
use crate::error::{IoError, OpenError, ReadError};
use crate::format::{HEAD_BYTES, HEADER_BYTES, RECORD_BYTES, RecordHead, RecordKind, VERSION};
use crate::frame_set::FrameSet;
use crate::manifest::{self, Manifest, MissingSegments};
use crate::options::SyncPolicy;
use crate::position::{FrameNo, SegmentId};
use crate::request::{Request, RequestInfo};
use crate::seal::{SegmentEnd, write_end};
use crate::segment::{Payloads, ScanStep, Segment, SegmentSummary};
use crate::segment_files;
use crate::segment_files::SegmentFile;
use crate::sink_progress::Sink;
use crate::storage::{PART, Storage, is_full, read_full};
use crate::stream_state::StreamState;
use crate::text_file;

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// SegmentFiles in the directory.
    pub segments: usize,
    /// Their bytes.
    pub bytes: u64,
    /// The last frame that is kept or was given up; 0 in a new journal.
    pub last_frame: FrameNo,
    /// Torn ends that were cut (one for each segment that was being written when a process died).
    pub cut: Vec<Cut>,
    /// Damage in the middle of a segment that was scanned, and segments that have lost all they held: left in place, passed over
    /// by readers.
    pub corrupt: Vec<Corruption>,
    /// SegmentFiles that are not there, and were not removed by retention.
    pub missing: Option<MissingSegments>,
    /// Frames may have left of which no record says so: the last run let frames go on without being kept. What a sink has of
    /// the frames past [`Sink::through`] is not known, until [`Writer::settled`](crate::Writer::settled) is told that it is.
    pub unrecorded: bool,
    /// Why the disk did not take what a start writes; frames can be appended when it has room again.
    pub refused: Option<String>,
    /// Requests that were open, in order of number. Open in the writer: `close` them when they end.
    pub live: Vec<LiveRequest>,
    /// Frames without an outcome: they were kept, and what became of them is not known. However many they are, they
    /// are read back with [`Writer::backlog`](crate::Writer::backlog) from the first of them on.
    pub unfinished: FrameSet,
    /// How far each sink had taken the stream, and what it was sent after that. Of the frames past
    /// [`Sink::through`], which are read with [`Backlog::with_outcomes`](crate::Backlog::with_outcomes),
    /// [`Sink::has_taken_row`] tells the rows that need not be sent again. Before a sink is sent anything,
    /// [`Writer::resume`](crate::Writer::resume) must say what became of what it was sent last.
    pub sinks: Vec<Sink>,
    /// What [`Writer::set_shares`](crate::Writer::set_shares) was told last; empty: nothing.
    pub shares: String,
}

/// A torn end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The segment.
    pub segment: SegmentId,
    /// Where it was cut.
    pub offset: u64,
    /// How much.
    pub bytes: u64,
    /// The frame that was being written, where so much can be read.
    pub frame: Option<FrameNo>,
}

/// Bytes in the middle of a segment that are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corruption {
    /// The segment.
    pub segment: SegmentId,
    /// Where it begins.
    pub offset: u64,
    /// Bytes up to the next whole record.
    pub bytes: u64,
}

/// A request that was open when the last run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveRequest {
    /// Its handle in this writer.
    pub request: Request,
    /// Its rid and counts.
    pub info: RequestInfo,
}

impl LiveRequest {
    pub(crate) fn new(request: Request, info: RequestInfo) -> LiveRequest {
        LiveRequest { request, info }
    }
}

/// What a writer begins from.
pub(crate) struct WriterStart {
    pub state: StreamState,
    pub found: Recovered,
    pub next_sequence: u32,
    pub previous_end: u64,
    pub previous_sealed: bool,
    /// What the next start is to find.
    pub manifest: Manifest,
}

impl WriterStart {
    /// Nothing was found, since the disk has no room for a directory.
    pub fn refused(error: &io::Error) -> WriterStart {
        let found = Recovered { refused: Some(error.to_string()), ..Recovered::default() };
        WriterStart {
            state: StreamState::new(),
            found,
            next_sequence: 0,
            previous_end: 0,
            previous_sealed: true,
            manifest: Manifest::default(),
        }
    }

    pub fn last_frame(&self) -> FrameNo {
        FrameNo(self.state.next_frame - 1)
    }
}

/// Brings a stream's directory in order.
pub(crate) fn recover(storage: &dyn Storage, dir: &Path, sync: SyncPolicy) -> Result<WriterStart, OpenError> {
    remove_leftovers(storage, dir)?;
    let listed = segment_files::list(storage, dir).map_err(|error| IoError::new("list", dir, error))?;
    let mut found = Recovered::default();
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
    let mut previous_sealed = true;
    let mut state = newest.as_ref().map_or_else(StreamState::new, StreamState::at_end_of);
    scanned.reverse();
    for at in 0..scanned.len() {
        let limit = scanned.get(at + 1).map_or(u64::MAX, |next| next.of_previous(scanned[at].id).limit);
        (previous_end, previous_sealed) = repair(&scanned[at], limit, &mut state, &mut found)?;
    }
    if !clean {
        state.next_request += REQUESTS_LEFT_OUT;
    }
    for SegmentFile { id, bytes, .. } in &listed {
        // A segment whose header cannot be read may hold as many frames as fit.
        let unread = found.corrupt.iter().any(|corrupt| corrupt.segment == *id && corrupt.offset == 0);
        let frames = if unread { bytes / RECORD_BYTES as u64 } else { 0 };
        state.next_frame = state.next_frame.max(id.first.0 + frames);
    }
    let mut manifest = known.unwrap_or_default();
    state.next_frame = state.next_frame.max(manifest.newest.first.0);
    let remaining = segment_files::list(storage, dir).map_err(|error| IoError::new("list", dir, error))?;
    if sync != SyncPolicy::None {
        sync_all(storage, dir, &remaining)?;
    }
    found.segments = remaining.len();
    found.bytes = remaining.iter().map(|segment| segment.bytes).sum();
    found.last_frame = FrameNo(state.next_frame - 1);
    found.unfinished = state.unfinished.clone();
    found.sinks = state.sinks.clone();
    found.shares = text_file::read(storage, dir, text_file::SHARES)?;
    let next_sequence = listed.last().map_or(0, |last| last.id.sequence + 1);
    let next_sequence =
        if manifest.segments > 0 { next_sequence.max(manifest.newest.sequence + 1) } else { next_sequence };
    manifest.take_stock(&remaining);
    manifest.lost += found.missing.map_or(0, |missing| missing.missing);
    Ok(WriterStart { state, found, next_sequence, previous_end, previous_sealed, manifest })
}

/// Files that a dying process did not finish.
fn remove_leftovers(storage: &dyn Storage, dir: &Path) -> Result<(), OpenError> {
    let names = storage.list(dir).map_err(|error| IoError::new("list", dir, error))?;
    for name in names.iter().filter(|entry| entry.name.ends_with(PART)) {
        let path = dir.join(&name.name);
        storage.remove(&path).map_err(|error| IoError::new("remove", &path, error))?;
    }
    Ok(())
}

/// The newest summary, and the segments behind it, newest first.
fn newest_summary(
    storage: &dyn Storage,
    dir: &Path,
    listed: &[SegmentFile],
    found: &mut Recovered,
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

/// A segment without a header: torn when it was begun (then it holds nothing and goes), or damaged (then it stays).
fn unreadable(
    storage: &dyn Storage,
    dir: &Path,
    id: SegmentId,
    bytes: u64,
    found: &mut Recovered,
) -> Result<(), OpenError> {
    let path = dir.join(id.to_string());
    let mut start = [0; HEADER_BYTES];
    let file = storage.open(&path, false).map_err(|error| IoError::new("open", &path, error))?;
    let read = read_full(&*file, &mut start, 0).map_err(|error| IoError::new("read", &path, error))?;
    let is_emptied = found.corrupt.iter().any(|corrupt| corrupt.segment == id);
    if is_emptied {
        // It was told.
    } else if read < HEADER_BYTES || start == [0; HEADER_BYTES] {
        storage.remove(&path).map_err(|error| IoError::new("remove", &path, error))?;
        found.cut.push(Cut { segment: id, offset: 0, bytes, frame: None });
    } else {
        found.corrupt.push(Corruption { segment: id, offset: 0, bytes });
    }
    Ok(())
}

/// Scans a segment, cuts its torn end and gives it a summary; where its records end, and whether it has one.
fn repair(
    segment: &Segment,
    limit: u64,
    state: &mut StreamState,
    found: &mut Recovered,
) -> Result<(u64, bool), OpenError> {
    state.begin_segment(&segment.header);
    let bytes = segment.bytes()?;
    let mut scan = segment.records(limit, Payloads::All);
    let end = loop {
        match scan.step()? {
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
        found.cut.push(Cut { segment: segment.id, offset: end, bytes: bytes - end, frame });
    }
    let summary = || (state.requests.values().cloned().collect(), state.totals());
    let summary = can_be_sealed(segment).then(summary);
    let is_sealed = summary.is_some();
    let ended = SegmentEnd { bytes: end, through: FrameNo(0), summary };
    match write_end(&*segment.file, &segment.header, &ended) {
        Ok(()) => Ok((end, is_sealed)),
        // It is scanned again at the next start.
        Err(error) if is_full(&error) => {
            found.refused = Some(IoError::new("sum up", &segment.path, error).to_string());
            Ok((end, false))
        }
        Err(error) => Err(IoError::new("repair", &segment.path, error).into()),
    }
}

/// What an earlier version has begun is only cut: a summary of this version has no place in it. It is scanned again
/// until a segment behind it has one.
fn can_be_sealed(segment: &Segment) -> bool {
    segment.header.version == VERSION
}

/// The frame whose record was torn at `offset`, where its head is whole.
fn torn_frame(segment: &Segment, offset: u64) -> Result<Option<FrameNo>, ReadError> {
    let mut head = [0; HEAD_BYTES];
    read_full(&*segment.file, &mut head, offset)
        .map_err(|error| IoError::new("read", &segment.path, error))?;
    let head = RecordHead::decode(&head, segment.header.salt, offset);
    Ok(head.filter(|(head, _)| head.kind == RecordKind::FRAME).map(|(head, _)| FrameNo(head.number)))
}

/// What is read here counts as durable from now on.
fn sync_all(storage: &dyn Storage, dir: &Path, listed: &[SegmentFile]) -> Result<(), OpenError> {
    for SegmentFile { id, .. } in listed {
        let path = dir.join(id.to_string());
        let file = storage.open(&path, true).map_err(|error| IoError::new("open", &path, error))?;
        file.sync().map_err(|error| IoError::new("sync", &path, error))?;
    }
    storage.sync_dir(dir).map_err(|error| IoError::new("sync", dir, error))?;
    Ok(())
}
