//! Writes an excerpt of a stream: the segments with the requests of one rid, without the other requests' content.
//!
//! The excerpt has every record of these segments, but for the frames without a row of the requests, which SKIPPED stands for, and
//! the attributes of other requests. So it is a journal like any other, with the numbers, times and totals of the stream.

use std::collections::BTreeSet;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use crate::erase::{EraseRows, LeftFrames};
use crate::error::{IoError, ReadError};
use crate::format::{self, RecordHead, RecordKind, SegmentHeader, encoded};
use crate::outcome::Outcome;
use crate::position::{RequestNo, SegmentId};
use crate::reader::{RequestHistory, StreamReader};
use crate::record::{RecordBody, RequestEntry, erase_outcome};
use crate::release_marker::is_release_marker;
use crate::request::{Erasure, RequestInfo};
use crate::rid::stored_rid;
use crate::segment::{Payloads, RawRecord, Segment, SegmentSummary};
use crate::segment_end;
use crate::storage::{Disk, File, Storage, write_all};
use crate::stream_state::StreamState;
use crate::text_file;

/// Bytes of records that wait for a write.
const PENDING_BYTES: usize = 1 << 20;

/// The content of an excerpt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Excerpt {
    /// The requests with the rid, by number.
    pub requests: Vec<RequestNo>,
    /// Rows of these requests.
    pub rows: u64,
    /// Stored frames.
    pub frames: u64,
    /// Frames with a row of the requests that are left out, because the rows of others could not be overwritten.
    pub left: LeftFrames,
    /// Bytes of the excerpt.
    pub bytes: u64,
}

/// The reason why there is no excerpt.
#[derive(Debug, thiserror::Error)]
pub enum ExcerptError {
    /// The journal cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The excerpt cannot be written.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The excerpt would have more bytes than it may.
    #[error("the excerpt of stream {stream:?} would have more than {bytes_max} bytes")]
    TooLarge {
        /// Name of the stream.
        stream: String,
        /// The bound.
        bytes_max: u64,
    },
}

/// Writes the excerpt of a stream for this rid into the directory of a journal, which must exist: segments of at most `bytes_max`
/// bytes together. The other requests count as erased in it. Returns `None` if the stream has no row of such a request.
///
/// Keeps the rows of the requests and one frame in memory. A row whose outcome is not written yet is not in the excerpt.
///
/// # Errors
/// The disk, or the bound.
pub fn write_excerpt(
    stream: &StreamReader,
    rid: &str,
    to: &Path,
    erasure: Erasure,
    rows: &mut dyn EraseRows,
    bytes_max: u64,
) -> Result<Option<Excerpt>, ExcerptError> {
    let mut lives = stream.lives(rid)?;
    lives.retain(|life| !life.rows.is_empty() || life.record.is_some());
    let Some(first) = lives.iter().map(|life| life.request.begins()).min() else { return Ok(None) };
    let mut segments = stream.segments()?;
    // Two segments may begin at the same frame.
    let begins = segments.iter().rev().map(|id| id.first).find(|begins| *begins <= first);
    segments.retain(|id| begins.is_none_or(|begins| id.first >= begins));
    let dir = to.join(stream.name());
    Disk.make_dir(&dir).map_err(|error| IoError::new("make directory", &dir, error))?;
    let names: String = stream.after()?.iter().map(|name| format!("{name}\n")).collect();
    text_file::write(&Disk, &dir, text_file::AFTER, &names)?;
    let all_rows = || lives.iter().flat_map(|life| &life.rows);
    let mut writer = ExcerptWriter {
        stream,
        rid,
        numbers: lives.iter().map(|life| life.request.number.0).collect(),
        live: lives.iter().map(|life| life.request.number.0).collect(),
        frames: all_rows()
            .map(|row| row.frame.0)
            .chain(lives.iter().filter_map(|life| Some(life.record?.frame.0)))
            .collect(),
        erasure,
        rows,
        dir,
        bytes_max,
        state: StreamState::new(),
        previous: None,
        report: Excerpt {
            requests: lives.iter().map(|life| life.request.number).collect(),
            rows: all_rows().count() as u64,
            ..Excerpt::default()
        },
    };
    let mut have_ended = false;
    for (at, id) in segments.iter().enumerate() {
        let Some(segment) = stream.segments.open(*id)? else { continue };
        writer.segment(&segment, segments.get(at + 1).copied())?;
        let had_ended = std::mem::replace(&mut have_ended, writer.live.is_empty());
        let has_taken = |life: &RequestHistory| {
            let (frame, number) = (life.request.last_frame, life.request.number);
            writer.state.totals.sinks.iter().all(|sink| sink.has_taken_row(frame, number))
        };
        // A reader may take the last rows after the next segment was begun. An absent reader never does.
        if had_ended || have_ended && lives.iter().all(has_taken) {
            break;
        }
    }
    Ok(Some(writer.report))
}

struct ExcerptWriter<'a> {
    stream: &'a StreamReader,
    rid: &'a str,
    /// The requests with the rid.
    numbers: BTreeSet<u64>,
    /// Those of which the end was not read yet.
    live: BTreeSet<u64>,
    /// Frames with a row of the requests.
    frames: BTreeSet<u64>,
    erasure: Erasure,
    rows: &'a mut dyn EraseRows,
    dir: PathBuf,
    bytes_max: u64,
    /// State as a reader of the excerpt has it.
    state: StreamState,
    /// The last segment, and the end of its records.
    previous: Option<(SegmentId, u64)>,
    report: Excerpt,
}

impl ExcerptWriter<'_> {
    /// Copies a segment.
    fn segment(&mut self, segment: &Segment, next: Option<SegmentId>) -> Result<(), ExcerptError> {
        let summary = segment.summary()?;
        let limit = match &summary {
            Some(summary) => summary.begins,
            None => self.stream.segments.recorded_end(next, segment.id)?.limit,
        };
        let follows = |(id, _): &(SegmentId, u64)| segment.id.sequence.checked_sub(1) == Some(id.sequence);
        let previous_end = self.previous.filter(follows).map_or(0, |(_, end)| end);
        let header = SegmentHeader {
            previous_end: previous_end as u32,
            previous_has_summary: previous_end > 0,
            ..segment.header
        };
        let mut file = ExcerptFile::create(&self.dir, header)?;
        self.state.begin_segment(&header);
        let mut scan = segment.records(limit, Payloads::NotFrames);
        while let Some(record) = scan.record()?.filter(|record| !record.begins_summary()) {
            let Some(mut body) = scan.body(&record) else { continue };
            let RecordHead { mut kind, number, time, .. } = record.head;
            let mut payload = scan.payload(&record).to_vec();
            match &mut body {
                RecordBody::Attributes(_) if !self.numbers.contains(&number) => continue,
                RecordBody::Carry(entries) => {
                    entries.iter_mut().for_each(|entry| self.make_anonymous(&mut entry.info));
                    payload = encoded(entries);
                }
                RecordBody::Outcome(outcome) => self.remove_notes(outcome, &mut payload),
                _ if kind == RecordKind::FRAME || kind == RecordKind::CHANGED => {
                    match self.frame(segment, &record)? {
                        Some(bytes) => payload = bytes.into(),
                        None if kind == RecordKind::CHANGED => continue,
                        None => {
                            body = RecordBody::Skipped { count: 1, left_out: true };
                            (kind, payload) = (RecordKind::SKIPPED, encoded(&(1_u64, true)));
                        }
                    }
                }
                _ => {}
            }
            format::record(&mut file.pending, kind, number, time, |out| out.extend_from_slice(&payload));
            if let RecordBody::Frame = body {
                self.report.frames += 1;
            }
            if let RecordBody::Close { .. } = body {
                self.live.remove(&number);
            }
            let head = RecordHead { payload: payload.len() as u32, ..record.head };
            self.state.apply(&RawRecord { head, ..record }, &body);
            if file.pending.len() >= PENDING_BYTES {
                self.write(&mut file)?;
            }
        }
        self.write(&mut file)?;
        self.finish(file, segment.id, summary)
    }

    /// Adds the summary.
    fn finish(
        &mut self,
        mut file: ExcerptFile,
        id: SegmentId,
        summary: Option<SegmentSummary>,
    ) -> Result<(), ExcerptError> {
        self.state.totals.clean = false;
        if let Some(summary) = summary {
            // The records do not give the totals past damage.
            self.state.requests = summary.entries.into_iter().collect();
            self.state.totals.clean = summary.totals.clean;
        }
        let mut entries: Vec<RequestEntry> = self.state.requests.iter().cloned().collect();
        for RequestEntry { info, .. } in &mut entries {
            self.make_anonymous(info);
            if !self.numbers.contains(&info.number.0) {
                info.erased.get_or_insert(self.erasure);
            }
        }
        let begins = file.written;
        file.pending = segment_end::end_records(&entries, &self.state.totals, begins);
        self.previous = Some((id, begins));
        self.write(&mut file)
    }

    fn write(&mut self, file: &mut ExcerptFile) -> Result<(), ExcerptError> {
        self.report.bytes += file.pending.len() as u64;
        if self.report.bytes > self.bytes_max {
            let stream = self.stream.name().to_owned();
            return Err(ExcerptError::TooLarge { stream, bytes_max: self.bytes_max });
        }
        Ok(file.write()?)
    }

    /// Removes the attributes of others, which may name a tenant.
    fn make_anonymous(&self, info: &mut RequestInfo) {
        if !self.numbers.contains(&info.number.0) {
            info.attributes.clear();
        }
    }

    /// Overwrites what plugins said of rows of others, in the payload of an OUTCOME.
    fn remove_notes(&self, outcome: &Outcome<'_>, payload: &mut [u8]) {
        let is_other = |row: u32| {
            outcome.requests.get(row as usize).is_none_or(|request| !self.numbers.contains(&request.0))
        };
        // It was decoded before, so it is an outcome.
        let _ = erase_outcome(payload, is_other);
    }

    /// The bytes of a frame without the content of others. `None` if the frame is left out: it has no row of the requests, or the
    /// content cannot be overwritten.
    fn frame(&mut self, segment: &Segment, record: &RawRecord) -> Result<Option<Bytes>, ReadError> {
        if !self.frames.contains(&record.head.number) {
            return Ok(None);
        }
        let Some(bytes) = segment.payload(record)? else { return Ok(None) };
        if is_release_marker(&bytes) {
            return Ok(Some(bytes));
        }
        let rid = self.rid;
        let why = match self.rows.erase(self.stream.name(), &bytes, &|row| stored_rid(row) != rid) {
            Ok(rewritten) => match rewritten.left.first() {
                None => return Ok(Some(rewritten.bytes)),
                Some(left) => format!("column {left:?} has no entry per row"),
            },
            Err(why) => why,
        };
        self.report.left.push(record.head.number, why);
        Ok(None)
    }
}

/// A segment of an excerpt.
struct ExcerptFile {
    path: PathBuf,
    file: Arc<dyn File>,
    salt: u32,
    /// Records that wait for a write, without checksums.
    pending: Vec<u8>,
    written: u64,
}

impl ExcerptFile {
    fn create(dir: &Path, header: SegmentHeader) -> Result<ExcerptFile, IoError> {
        let path = dir.join(header.segment.to_string());
        let file = Disk.create(&path).map_err(|error| IoError::new("create", &path, error))?;
        let mut excerpt = ExcerptFile { path, file, salt: header.salt, pending: Vec::new(), written: 0 };
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        excerpt.append(&bytes)?;
        Ok(excerpt)
    }

    fn write(&mut self) -> Result<(), IoError> {
        let mut records = std::mem::take(&mut self.pending);
        format::add_checksums(&mut records, self.salt, self.written);
        self.append(&records)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), IoError> {
        write_all(&*self.file, &mut [IoSlice::new(bytes)], self.written)
            .map_err(|error| IoError::new("write", &self.path, error))?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}
