//! Writes an excerpt of a stream: what the stream has about the requests with one rid, as a journal of its own.
//!
//! The excerpt has each frame with a row of these requests, under its own number and time, and the records about these frames.
//! All other frames are recorded as left out. The other requests in these frames keep their totals: a CARRY gives them before
//! their first row, and wherever rows of theirs were left out.

mod file;
mod sinks;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bytes::Bytes;

use crate::erase::{EraseRows, LeftFrame};
use crate::error::{IoError, ReadError};
use crate::format::RecordKind;
use crate::outcome::Outcome;
use crate::plugin_component::PluginComponent;
use crate::position::{FrameNo, RequestNo, SegmentId};
use crate::reader::{RequestHistory, StreamReader};
use crate::record::{ErasedEntry, RecordBody, RequestEntry, erase_outcome};
use crate::release_marker::is_release_marker;
use crate::request::{Erasure, RequestInfo};
use crate::rid::stored_rid;
use crate::segment::{Payloads, RawRecord, Scan, ScanStep, Segment};
use crate::storage::{Disk, Storage};
use crate::stream_state::StreamState;
use crate::text_file;
use file::ExcerptFile;
use sinks::ExcerptSinks;

/// Frames that an excerpt leaves out for a reason, and that the report names. Further ones are counted.
const LEFT_MAX: usize = 1000;

/// The rows of other requests in the frames of an excerpt.
pub enum OtherRows<'a> {
    /// The rows stay as they are.
    Kept,
    /// The rows are overwritten, and the excerpt says that these requests were erased. A frame in which they cannot be
    /// overwritten is left out.
    Erased(Erasure, &'a mut dyn EraseRows),
}

/// The content of an excerpt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Excerpt {
    /// The requests with the rid, by number.
    pub requests: Vec<RequestNo>,
    /// Rows of these requests.
    pub rows: u64,
    /// Stored frames.
    pub frames: u64,
    /// Other requests with rows in these frames.
    pub others: u64,
    /// The components of the plugins that saw these frames.
    pub plugins: BTreeSet<PluginComponent>,
    /// Frames with a row of the requests that are left out, because the rows of others could not be overwritten. At most 1000.
    pub left: Vec<LeftFrame>,
    /// Number of all such frames.
    pub left_count: u64,
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

/// Writes the excerpt of a stream for this rid into the directory of a journal, which must exist: one segment of at most
/// `bytes_max` bytes. Returns `None` if the stream has no row of such a request.
///
/// Keeps the rows of the requests and one frame in memory. A row whose outcome is not written yet is not in the excerpt.
///
/// # Errors
/// The disk, or the bound.
pub fn write_excerpt<'a>(
    stream: &'a StreamReader,
    rid: &'a str,
    to: &Path,
    others: OtherRows<'a>,
    bytes_max: u64,
) -> Result<Option<Excerpt>, ExcerptError> {
    let mut lives = stream.lives(rid)?;
    lives.retain(|life| !life.rows.is_empty());
    let Some(first) = lives.iter().map(|life| life.request.first_frame).min() else { return Ok(None) };
    let mut segments = stream.segments()?;
    // Two segments may begin at the same frame.
    let begins = segments.iter().rev().map(|id| id.first).find(|begins| *begins <= first);
    segments.retain(|id| begins.is_none_or(|begins| id.first >= begins));
    let dir = to.join(stream.name());
    Disk.make_dir(&dir).map_err(|error| IoError::new("make directory", &dir, error))?;
    let names: String = stream.after()?.iter().map(|name| format!("{name}\n")).collect();
    text_file::write(&Disk, &dir, text_file::AFTER, &names)?;
    let file = ExcerptFile::create(&dir, stream.name(), &lives, bytes_max)?;
    let mut writer = ExcerptWriter::new(stream, rid, &lives, others, file);
    for (at, id) in segments.iter().enumerate() {
        let Some(segment) = stream.segments.open(*id)? else { continue };
        if writer.segment(&segment, segments.get(at + 1).copied())? {
            break;
        }
    }
    writer.finish().map(Some)
}

struct ExcerptWriter<'a> {
    stream: &'a StreamReader,
    rid: &'a str,
    /// The requests with the rid.
    numbers: BTreeSet<u64>,
    /// Frames with a row of them.
    frames: BTreeSet<u64>,
    /// Frames whose outcome was not read yet.
    outcomes_left: BTreeSet<u64>,
    /// The requests of which the end was not read yet.
    live: BTreeSet<u64>,
    others: OtherRows<'a>,
    /// State of the stream at the record that is read.
    source: StreamState,
    file: ExcerptFile,
    sinks: ExcerptSinks,
    /// Rows and tokens in the outcomes of the excerpt, by request.
    sums: BTreeMap<u64, (u64, u64)>,
    /// Requests that were erased in the stream.
    erased: BTreeMap<u64, Erasure>,
    report: Excerpt,
}

impl<'a> ExcerptWriter<'a> {
    fn new(
        stream: &'a StreamReader,
        rid: &'a str,
        lives: &[RequestHistory],
        others: OtherRows<'a>,
        file: ExcerptFile,
    ) -> ExcerptWriter<'a> {
        let numbers: BTreeSet<u64> = lives.iter().map(|life| life.request.number.0).collect();
        let rows = lives.iter().flat_map(|life| &life.rows);
        let frames: BTreeSet<u64> = rows.map(|row| row.frame.0).collect();
        let report = Excerpt {
            requests: numbers.iter().copied().map(RequestNo).collect(),
            rows: lives.iter().map(|life| life.rows.len() as u64).sum(),
            ..Excerpt::default()
        };
        ExcerptWriter {
            stream,
            rid,
            outcomes_left: frames.clone(),
            live: numbers.clone(),
            others,
            source: StreamState::new(),
            file,
            sinks: ExcerptSinks::up_to(frames.last().copied().unwrap_or_default()),
            sums: BTreeMap::new(),
            erased: BTreeMap::new(),
            report,
            numbers,
            frames,
        }
    }

    /// Copies from a segment. Returns whether nothing is left to copy from later ones.
    fn segment(&mut self, segment: &Segment, next: Option<SegmentId>) -> Result<bool, ExcerptError> {
        self.source.begin_segment(&segment.header);
        let erased = segment.summary()?.into_iter().flat_map(|summary| summary.erased);
        self.erased.extend(erased.map(|entry| (entry.number.0, entry.erasure)));
        let limit = self.stream.segments.recorded_end(next, segment.id)?.limit;
        let mut scan = segment.records(limit, Payloads::NotFrames);
        // Its outcome follows directly.
        let mut changed = None;
        loop {
            let record = match scan.step()? {
                ScanStep::Record(record) if record.begins_summary() => break,
                ScanStep::Record(record) => record,
                ScanStep::Corrupt { .. } => continue,
                ScanStep::End { .. } => break,
            };
            if record.head.kind == RecordKind::CHANGED {
                changed = Some(record);
                continue;
            }
            let Some(body) = scan.body(&record) else { continue };
            self.record(segment, &scan, &record, &body, changed.take())?;
            self.source.apply(&record, &body);
            if self.outcomes_left.is_empty() && self.live.is_empty() && self.sinks.is_settled() {
                return Ok(true);
            }
        }
        // The next segment does not list requests that have ended.
        self.carry(self.file.requests())?;
        Ok(false)
    }

    /// Copies a record, if it belongs to the excerpt.
    fn record(
        &mut self,
        segment: &Segment,
        scan: &Scan,
        record: &RawRecord,
        body: &RecordBody,
        changed: Option<RawRecord>,
    ) -> Result<(), ExcerptError> {
        let number = record.head.number;
        let is_copied = match body {
            RecordBody::Frame => return self.frame(segment, record),
            RecordBody::Outcome(outcome) => {
                return match self.outcomes_left.remove(&number) {
                    true => self.outcome(segment, scan, (record, body), outcome, changed),
                    false => Ok(()),
                };
            }
            RecordBody::Routed(_) => self.frames.contains(&number),
            RecordBody::Sent { sink, frame } => self.sinks.has_sent(sink, frame, &self.frames, &self.numbers),
            RecordBody::Taken(taken) => self.sinks.has_taken(taken, &self.frames),
            RecordBody::Open { .. } | RecordBody::Attributes(_) => self.numbers.contains(&number),
            RecordBody::Close { .. } => {
                self.live.remove(&number);
                self.file.has_request(number)
            }
            RecordBody::OperatorAbort(_) => self.file.has_request(number),
            RecordBody::Plugin(component) => !self.file.has_plugin(component),
            RecordBody::Skipped { count, left_out: false } => {
                let has_frame = self.frames.range(number..number.saturating_add(*count)).next().is_some();
                if has_frame {
                    self.file.leave_out_up_to(number)?;
                }
                has_frame && number >= self.file.next_frame()
            }
            _ => false,
        };
        if is_copied {
            self.file.put(record, scan.payload(record), body)?;
        }
        Ok(())
    }

    fn frame(&mut self, segment: &Segment, record: &RawRecord) -> Result<(), ExcerptError> {
        let number = record.head.number;
        if !self.frames.contains(&number) || number < self.file.next_frame() {
            return Ok(());
        }
        let Some(bytes) = segment.payload(record)? else { return Ok(()) };
        if let Some(bytes) = self.without_others(number, bytes) {
            self.file.leave_out_up_to(number)?;
            self.report.frames += 1;
            self.file.put(record, &bytes, &RecordBody::Frame)?;
        }
        Ok(())
    }

    fn outcome(
        &mut self,
        segment: &Segment,
        scan: &Scan,
        (record, body): (&RawRecord, &RecordBody),
        outcome: &Outcome<'_>,
        changed: Option<RawRecord>,
    ) -> Result<(), ExcerptError> {
        self.carry(outcome.requests.iter().map(|request| request.0).collect())?;
        for component in self.source.plugins.values() {
            if !self.report.plugins.contains(component) {
                self.report.plugins.insert(component.clone());
            }
        }
        let changed = changed.filter(|changed| changed.head.number == record.head.number);
        if let Some(changed) = changed
            && let Some(bytes) = segment.payload(&changed)?
            && let Some(bytes) = self.without_others(record.head.number, bytes)
        {
            self.file.put(&changed, &bytes, &RecordBody::Aside)?;
        }
        let mut payload = scan.payload(record).to_vec();
        if matches!(self.others, OtherRows::Erased(..)) {
            let is_other = |row: u32| {
                let request = outcome.requests.get(row as usize);
                request.is_none_or(|request| !self.numbers.contains(&request.0))
            };
            // It was decoded before, so it is an outcome.
            let _ = erase_outcome(&mut payload, is_other);
        }
        for (request, tokens) in outcome.requests.iter().zip(outcome.tokens.iter()) {
            let (rows, sum) = self.sums.entry(request.0).or_default();
            (*rows, *sum) = (*rows + 1, *sum + u64::from(*tokens));
        }
        self.file.put(record, &payload, body)
    }

    /// The frame without the content of other requests. `None` if the content cannot be overwritten: the frame is left out.
    fn without_others(&mut self, frame: u64, bytes: Bytes) -> Option<Bytes> {
        let OtherRows::Erased(_, rows) = &mut self.others else { return Some(bytes) };
        if is_release_marker(&bytes) {
            return Some(bytes);
        }
        let rid = self.rid;
        let why = match rows.erase(self.stream.name(), &bytes, &|row| stored_rid(row) != rid) {
            Ok(rewritten) if rewritten.bytes.len() != bytes.len() => "its length would change".to_owned(),
            Ok(rewritten) => match rewritten.left.first() {
                None => return Some(rewritten.bytes),
                Some(left) => format!("column {left:?} has no entry per row"),
            },
            Err(why) => why,
        };
        self.report.left_count += 1;
        if self.report.left.len() < LEFT_MAX {
            self.report.left.push(LeftFrame { frame: FrameNo(frame), why });
        }
        None
    }

    /// Gives these requests the totals that they have in the stream, where they have others in the excerpt.
    fn carry(&mut self, requests: BTreeSet<u64>) -> Result<(), ExcerptError> {
        let mut carried = Vec::new();
        for number in requests {
            let Some(RequestEntry { info, closed, .. }) = self.source.requests.get(number) else { continue };
            // The excerpt is erased by nobody, and says itself what is erased. Attributes may name the tenant.
            let mut info = RequestInfo { erase_after_s: None, erased: None, ..info.clone() };
            if !self.numbers.contains(&number) {
                info.attributes.clear();
            }
            if !self.file.has(&info, *closed) {
                carried.push(RequestEntry { info, closed: *closed, here: false });
            }
        }
        self.file.carry(carried)
    }

    fn finish(mut self) -> Result<Excerpt, ExcerptError> {
        self.carry(self.file.requests())?;
        let last = self.frames.last().copied().unwrap_or_default();
        self.file.leave_out_up_to(last + 1)?;
        let mut erased = Vec::new();
        for number in self.file.requests() {
            let before = self.erased.get(&number).copied();
            let now = match &self.others {
                OtherRows::Erased(erasure, _) if !self.numbers.contains(&number) => Some(*erasure),
                _ => None,
            };
            let Some(erasure) = before.or(now) else { continue };
            let (rows, tokens) = self.sums.get(&number).copied().unwrap_or_default();
            let rid = self.file.rid(number);
            erased.push(ErasedEntry { number: RequestNo(number), rid, erasure, rows, tokens });
        }
        self.report.others = (self.file.requests().len() - self.numbers.len()) as u64;
        self.report.bytes = self.file.finish(&erased)?;
        Ok(self.report)
    }
}
