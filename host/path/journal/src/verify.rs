//! Verifies a stream: checksums, frame numbers, an outcome for every frame, token counts against the
//! scheduler's, and summaries against the records of their segments.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::{Discriminant, discriminant};

use crate::bounds::RUNS_MAX;
use crate::error::ReadError;
use crate::manifest::{self, Manifest, MissingSegments};
use crate::outcome::Outcome;
use crate::position::{FrameNo, RequestNo, SegmentId};
use crate::record::{RecordBody, RidIndex};
use crate::request::RequestInfo;
use crate::segment::{Payloads, RawRecord, RecordedEnd, Scan, ScanStep, Segment, SegmentSummary};
use crate::segment_files::{SegmentFile, SegmentFiles};
use crate::stream_state::StreamState;

/// Newest frames that may still wait for an outcome.
const AWAITED_FRAMES: u64 = 1024;

/// Attempts to read the segments and the manifest in one consistent state while a process writes.
const CONSISTENT_READ_TRIES: usize = 16;

/// Result of a verification. The stream is clean if `problems` is empty.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// Segments read.
    pub segments: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Frames with a correct checksum.
    pub frames: u64,
    /// Outcomes read.
    pub outcomes: u64,
    /// Requests seen.
    pub requests: u64,
    /// Rows seen.
    pub rows: u64,
    /// Tokens received.
    pub tokens: u64,
    /// Problems in order of segments. [`VerifyReport::kinds`] sums them up.
    pub problems: Vec<JournalProblem>,
    /// Facts that are recorded as expected and still worth knowing.
    pub notes: Vec<VerifyNote>,
}

/// A problem and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalProblem {
    /// Segment of the problem.
    pub segment: SegmentId,
    /// Offset in the segment.
    pub offset: u64,
    /// Kind of problem.
    pub what: ProblemKind,
}

/// Kind of a problem. Displays as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProblemKind {
    /// Neither copy of the segment's header is valid.
    #[error("segment header is corrupt")]
    Header,
    /// Segments are missing that retention did not remove.
    #[error(
        "{} of {} segments are missing: {} is the first there should be, {} the last",
        .0.missing, .0.segments, .0.oldest, .0.newest
    )]
    MissingSegments(MissingSegments),
    /// A segment lost its header and everything after it.
    #[error("segment lost its header: {bytes} bytes are left")]
    Emptied {
        /// Bytes left of the segment.
        bytes: u64,
    },
    /// The segment ends before its records ended.
    #[error("segment is cut short: {bytes} bytes are missing at its end")]
    Cut {
        /// Bytes missing.
        bytes: u64,
    },
    /// Bytes do not form a record.
    #[error("{bytes} bytes are corrupt")]
    Corrupt {
        /// Bytes that are corrupt.
        bytes: u64,
    },
    /// Frames are neither stored nor recorded as skipped.
    #[error("frames {from} to {through} are missing")]
    MissingFrames {
        /// First missing frame.
        from: FrameNo,
        /// Last missing frame.
        through: FrameNo,
    },
    /// Two frames have the same number.
    #[error("frame {frame} is stored twice")]
    RepeatedFrame {
        /// Number of the frames.
        frame: FrameNo,
    },
    /// Frames have no recorded outcome.
    #[error("{}", no_outcome(*.from, *.through))]
    NoOutcome {
        /// First frame without an outcome.
        from: FrameNo,
        /// Last frame without an outcome.
        through: FrameNo,
    },
    /// The tokens received differ from the scheduler's count.
    #[error("request {request} {rid:?}: received {received} tokens, the scheduler counted {counted}")]
    Tokens {
        /// Number of the request.
        request: RequestNo,
        /// Rid of the request.
        rid: String,
        /// Tokens received.
        received: u64,
        /// `completion_tokens` of the last row.
        counted: u64,
    },
    /// The stream recorded a gap in the token count.
    #[error("request {request} {rid:?}: frame {frame} row {row} has {got} tokens, expected {expected}")]
    Gap {
        /// Number of the request.
        request: RequestNo,
        /// Rid of the request.
        rid: String,
        /// Frame with the gap.
        frame: FrameNo,
        /// Row of the frame.
        row: u32,
        /// Tokens received so far.
        expected: u64,
        /// Count of the scheduler.
        got: u64,
    },
    /// The summary differs from the records.
    #[error("summary differs from the segment's records: {detail}")]
    Summary {
        /// First difference.
        detail: String,
    },
}

/// A fact worth knowing that is not a problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyNote {
    /// Frames were forwarded without being stored, as the journal records.
    #[error("{count} frames from {from} on were forwarded without being stored, as on_error says")]
    Skipped {
        /// First skipped frame.
        from: FrameNo,
        /// Number of skipped frames.
        count: u64,
    },
    /// The journal is an excerpt, and says which frames it left out.
    #[error("{count} frames have no row of the packed request, or were left out otherwise")]
    LeftOut {
        /// Number of frames.
        count: u64,
    },
    /// Outcomes were dropped while the disk refused writes, as the journal records.
    #[error("{count} outcomes were lost while the disk failed, as recorded")]
    OutcomesLost {
        /// Number of records dropped.
        count: u64,
    },
    /// The last segment ends in bytes that are not a complete record: a writer is at work, or the next start
    /// cuts them off.
    #[error("{segment}: the last {bytes} bytes are being written, or torn")]
    TornTail {
        /// Last segment.
        segment: SegmentId,
        /// Number of bytes.
        bytes: u64,
    },
    /// An earlier start found segments missing and reported them.
    #[error("{count} segments were missing at an earlier start")]
    SegmentsLost {
        /// Number of segments.
        count: u64,
    },
    /// Frames were forwarded while the disk refused records, so it is unknown which of the newest frames the
    /// readers have.
    #[error("the last forwarded frames are not recorded, because the disk failed")]
    Unrecorded,
    /// Requests were erased, as the journal records.
    #[error("{requests} {} erased", if *.requests == 1 { "request was" } else { "requests were" })]
    Erased {
        /// Number of requests.
        requests: u64,
        /// Time of the last erasure, unix nanoseconds.
        last_unix_ns: u64,
    },
    /// The outcomes of the last frames may still be written.
    #[error("{frames} frames at the end are still in flight")]
    Unfinished {
        /// Number of frames.
        frames: u64,
    },
}

impl VerifyReport {
    /// A sentence for each kind of problem: the first problem of the kind, and the number of all.
    pub fn kinds(&self) -> Vec<String> {
        let mut kinds: Vec<(Discriminant<ProblemKind>, &JournalProblem, usize)> = Vec::new();
        for problem in &self.problems {
            let kind = discriminant(&problem.what);
            match kinds.iter_mut().find(|(known, ..)| *known == kind) {
                Some((.., count)) => *count += 1,
                None => kinds.push((kind, problem, 1)),
            }
        }
        let sentence = |(_, first, count): (_, &JournalProblem, usize)| match count {
            1 => first.to_string(),
            count => format!("{first}, and {} more of this kind", count - 1),
        };
        kinds.into_iter().map(sentence).collect()
    }
}

pub(crate) fn verify(segments: &SegmentFiles) -> Result<VerifyReport, ReadError> {
    let mut check = Verifier {
        report: VerifyReport::default(),
        state: StreamState::new(),
        first: None,
        last: SegmentId::default(),
        places: BTreeMap::new(),
        clean: false,
        erased: BTreeMap::new(),
        left_out: 0,
    };
    let (manifest, found) = segments_and_manifest(segments)?;
    let listed: Vec<SegmentId> = found.iter().map(|segment| segment.id).collect();
    check.segments_and_manifest(&manifest, &found);
    for (at, &id) in listed.iter().enumerate() {
        let next = listed.get(at + 1).copied();
        match segments.open(id)? {
            Some(segment) => check.segment(&segment, segments.recorded_end(next, id)?, next.is_none())?,
            // The segment was removed meanwhile, or it is torn, or it is damaged.
            None => match segments.list()?.iter().find(|known| known.id == id) {
                // Retention removed it with everything before it. The next segment is the first.
                None => (check.first, check.state) = (None, StreamState::new()),
                // Already reported.
                Some(_) if manifest.emptied(&found).any(|emptied| emptied.id == id) => {}
                Some(known) if next.is_none() && known.bytes < crate::format::HEADER_BYTES as u64 => {
                    check.report.notes.push(VerifyNote::TornTail { segment: id, bytes: known.bytes });
                }
                Some(_) => check.problem(id, 0, ProblemKind::Header),
            },
        }
    }
    check.end();
    Ok(check.report)
}

/// Reads the segments and the manifest in one consistent state.
pub(crate) fn segments_and_manifest(
    segments: &SegmentFiles,
) -> Result<(Manifest, Vec<SegmentFile>), ReadError> {
    let read = || manifest::read(&*segments.storage, &segments.dir).unwrap_or_default();
    let mut manifest = read();
    for _ in 0..CONSISTENT_READ_TRIES {
        let listed = segments.list()?;
        let now = read();
        if now.has_same_segments(&manifest) {
            return Ok((manifest, listed));
        }
        manifest = now;
    }
    // The manifest changes all the time: compare with nothing.
    Ok((Manifest::default(), segments.list()?))
}

/// Problems that the manifest shows: segments that are missing, or have lost their header.
pub(crate) fn manifest_problems(
    manifest: &Manifest,
    listed: &[SegmentFile],
) -> impl Iterator<Item = JournalProblem> {
    let missing = manifest.missing(listed).map(|missing| JournalProblem {
        segment: missing.newest,
        offset: 0,
        what: ProblemKind::MissingSegments(missing),
    });
    missing.into_iter().chain(manifest.emptied(listed).map(|emptied| JournalProblem {
        segment: emptied.id,
        offset: 0,
        what: ProblemKind::Emptied { bytes: emptied.bytes },
    }))
}

struct Verifier {
    report: VerifyReport,
    state: StreamState,
    /// First segment found.
    first: Option<SegmentId>,
    /// Segment read last.
    last: SegmentId,
    /// Positions of the newest frames without an outcome, at most `RUNS_MAX`.
    places: BTreeMap<u64, (SegmentId, u64)>,
    /// Whether the last segment was ended cleanly.
    clean: bool,
    /// Erased requests, each with the time of its last erasure.
    erased: BTreeMap<RequestNo, u64>,
    /// Number of frames that an excerpt left out.
    left_out: u64,
}

impl Verifier {
    /// Compares the segments with the manifest.
    fn segments_and_manifest(&mut self, manifest: &Manifest, listed: &[SegmentFile]) {
        self.report.problems.extend(manifest_problems(manifest, listed));
        if manifest.lost > 0 {
            self.report.notes.push(VerifyNote::SegmentsLost { count: manifest.lost });
        }
        if manifest.unrecorded {
            self.report.notes.push(VerifyNote::Unrecorded);
        }
    }

    fn segment(&mut self, segment: &Segment, previous: RecordedEnd, last: bool) -> Result<(), ReadError> {
        let id = segment.id;
        if self.first.is_none() {
            // Retention removed the frames before.
            self.state.totals.next_frame = id.first.0;
            self.first = Some(id);
        }
        self.last = id;
        self.report.segments += 1;
        self.report.bytes += segment.bytes()?;
        self.state.begin_segment(&segment.header);
        let summary = segment.summary()?;
        let limit = summary.as_ref().map_or(previous.limit, |summary| summary.begins);
        let mut exact = true;
        let mut summary_begins = None;
        let mut scan = segment.records(limit, Payloads::All);
        loop {
            match scan.step()? {
                ScanStep::Record(record) if record.begins_summary() => {
                    summary_begins = summary_begins.or(Some(record.offset));
                }
                ScanStep::Record(record) => exact &= self.record(&scan, &record),
                ScanStep::Corrupt { offset, bytes } => {
                    exact = false;
                    self.problem(id, offset, ProblemKind::Corrupt { bytes });
                }
                ScanStep::End { torn: 0, offset }
                    if offset < previous.limit && previous.limit != u64::MAX && summary.is_none() =>
                {
                    exact = false;
                    self.problem(id, offset, ProblemKind::Cut { bytes: previous.limit - offset });
                    break;
                }
                ScanStep::End { torn: 0, .. } => break,
                ScanStep::End { torn: bytes, .. } if last && summary.is_none() => {
                    self.report.notes.push(VerifyNote::TornTail { segment: id, bytes });
                    break;
                }
                ScanStep::End { offset, torn: bytes } => {
                    exact = false;
                    self.problem(id, offset, ProblemKind::Corrupt { bytes });
                    break;
                }
            }
        }
        match &summary {
            Some(summary) => {
                let infos = summary.entries.iter().map(|entry| &entry.info);
                self.erased.extend(infos.filter_map(|info| Some((info.number, info.erased?.unix_ns))));
                self.summary(id, summary, exact);
                let listed = RidIndex::of(summary.entries.iter().map(|entry| &*entry.info.rid));
                if segment.rids()?.is_none_or(|rids| rids != listed) {
                    let detail = "its index has other rids".into();
                    self.problem(id, summary.begins, ProblemKind::Summary { detail });
                }
            }
            None => self.without_summary(segment, previous, summary_begins)?,
        }
        self.clean = summary.is_some_and(|summary| summary.totals.clean);
        Ok(())
    }

    /// Checks one record. Returns false if the totals of the segment cannot be followed from here.
    fn record(&mut self, scan: &Scan, record: &RawRecord) -> bool {
        let (id, number) = (scan.segment.id, record.head.number);
        let Some(body) = scan.body(record) else {
            self.problem(id, record.offset, ProblemKind::Corrupt { bytes: record.head.record_bytes() });
            return false;
        };
        let expected = self.state.totals.next_frame;
        let numbered = matches!(body, RecordBody::Frame | RecordBody::Skipped { .. });
        if numbered && number > expected {
            let (from, through) = (FrameNo(expected), FrameNo(number - 1));
            self.problem(id, record.offset, ProblemKind::MissingFrames { from, through });
        }
        match &body {
            RecordBody::Frame => {
                self.report.frames += 1;
                if number < expected {
                    self.problem(id, record.offset, ProblemKind::RepeatedFrame { frame: FrameNo(number) });
                }
                self.places.insert(number, (id, record.offset));
                if self.places.len() > RUNS_MAX {
                    self.places.pop_first();
                }
            }
            RecordBody::Outcome(_) => drop(self.places.remove(&number)),
            RecordBody::Open { .. } => self.report.requests += 1,
            RecordBody::Carry(entries) if self.first == Some(id) => {
                let known = &self.state.requests;
                let more = entries.iter().filter(|entry| known.get(entry.info.number.0).is_none());
                self.report.requests += more.count() as u64;
            }
            RecordBody::Skipped { count, left_out: true } => self.left_out += count,
            RecordBody::Skipped { count, left_out: false } => self.skipped(number, *count),
            RecordBody::Lost => self.report.notes.push(VerifyNote::OutcomesLost { count: number }),
            _ => {}
        }
        self.state.apply(record, &body);
        if let Some((first, count)) = self.state.dropped_run.take() {
            self.no_outcome(first, count);
        }
        if let RecordBody::Outcome(outcome) = &body {
            self.report.outcomes += 1;
            self.report.rows += outcome.requests.len() as u64;
            self.report.tokens += outcome.tokens.iter().map(|&tokens| u64::from(tokens)).sum::<u64>();
            self.tokens(id, record.offset, outcome);
        }
        if let RecordBody::Carry(entries) = &body
            && self.first == Some(id)
        {
            for entry in entries {
                self.finished(id, record.offset, entry.info.number);
            }
        }
        !matches!(body, RecordBody::Lost)
    }

    /// Merges consecutive skipped ranges into one note.
    fn skipped(&mut self, from: u64, count: u64) {
        match self.report.notes.last_mut() {
            Some(VerifyNote::Skipped { from: first, count: so_far }) if first.0 + *so_far == from => {
                *so_far += count
            }
            _ => self.report.notes.push(VerifyNote::Skipped { from: FrameNo(from), count }),
        }
    }

    /// Checks gaps as the stream recorded them, and the token counts of finished requests.
    fn tokens(&mut self, id: SegmentId, offset: u64, outcome: &Outcome<'_>) {
        let request = |row: u32| outcome.requests.get(row as usize).copied().unwrap_or_default();
        for gap in outcome.gaps.iter() {
            let (request, frame) = (request(gap.row), outcome.frame);
            let rid = self.rid(request);
            let what =
                ProblemKind::Gap { request, rid, frame, row: gap.row, expected: gap.expected, got: gap.got };
            self.problem(id, offset, what);
        }
        for finish in outcome.finished.iter() {
            self.finished(id, offset, request(finish.row));
        }
    }

    /// Compares the token count of a finished request with the scheduler's. Ignores a request whose OPEN is
    /// not known yet: on a failing disk a segment may list carried requests after the records that waited.
    fn finished(&mut self, id: SegmentId, offset: u64, request: RequestNo) {
        let Some(entry) = self.state.requests.get(request.0).filter(|entry| !entry.info.rid.is_empty())
        else {
            return;
        };
        let received = entry.info.received;
        if let Some(counted) = entry.info.completion_tokens.filter(|&counted| counted != received) {
            let rid = entry.info.rid.clone();
            self.problem(id, offset, ProblemKind::Tokens { request, rid, received, counted });
        }
    }

    fn rid(&self, request: RequestNo) -> String {
        self.state.requests.get(request.0).map_or_else(String::new, |entry| entry.info.rid.clone())
    }

    fn summary(&mut self, id: SegmentId, summary: &SegmentSummary, exact: bool) {
        let summarized = StreamState::at_end_of(summary);
        // Only the summary knows the unfinished frames of segments that retention removed.
        let removed = self.first.map_or(0, |first| first.first.0);
        for (first, count) in summarized.totals.unfinished.runs() {
            for frame in first.0..removed.min(first.0.saturating_add(count)) {
                self.state.totals.unfinished.insert(frame);
            }
        }
        if exact && let Some(detail) = difference(&self.state, &summarized) {
            self.problem(id, summary.begins, ProblemKind::Summary { detail });
        }
        self.state = summarized;
    }

    /// Reports half a summary. A segment without any summary is fine.
    fn without_summary(
        &mut self,
        segment: &Segment,
        previous: RecordedEnd,
        begins: Option<u64>,
    ) -> Result<(), ReadError> {
        let half = previous.has_summary && segment.bytes()? > previous.limit;
        let begins = begins.or(half.then_some(previous.limit));
        // The segment may have got its summary meanwhile.
        if let Some(begins) = begins
            && segment.summary()?.is_none()
        {
            self.problem(segment.id, begins, ProblemKind::Summary { detail: "it is damaged".into() });
        }
        Ok(())
    }

    fn end(&mut self) {
        let mut awaited = 0;
        for (first, count) in std::mem::take(&mut self.state.totals.unfinished).runs() {
            // A backlog in the journal is a run at its end, however long.
            let behind = self.state.totals.next_frame.saturating_sub(first.0 + count);
            if behind > if self.clean { 0 } else { AWAITED_FRAMES } {
                self.no_outcome(first, count);
            } else {
                awaited += count;
            }
        }
        if let Some(&last_unix_ns) = self.erased.values().max() {
            let requests = self.erased.len() as u64;
            self.report.notes.push(VerifyNote::Erased { requests, last_unix_ns });
        }
        if self.left_out > 0 {
            self.report.notes.push(VerifyNote::LeftOut { count: self.left_out });
        }
        if awaited > 0 {
            self.report.notes.push(VerifyNote::Unfinished { frames: awaited });
        }
    }

    fn no_outcome(&mut self, from: FrameNo, count: u64) {
        let through = FrameNo(from.0 + count - 1);
        let (segment, offset) = self.places.get(&from.0).copied().unwrap_or((self.last, 0));
        self.problem(segment, offset, ProblemKind::NoOutcome { from, through });
    }

    fn problem(&mut self, segment: SegmentId, offset: u64, what: ProblemKind) {
        self.report.problems.push(JournalProblem { segment, offset, what });
    }
}

/// First difference between a summary and the records.
fn difference(records: &StreamState, summarized: &StreamState) -> Option<String> {
    let numbers = |state: &StreamState| -> BTreeSet<u64> {
        state.requests.iter().map(|entry| entry.info.number.0).collect()
    };
    let of = |state: &StreamState, number: u64| {
        // Only the summary knows of an erasure.
        let entry = state.requests.get(number)?;
        Some((RequestInfo { erased: None, ..entry.info.clone() }, entry.closed))
    };
    let is_lost = |number: u64| {
        let is_here = |state: &StreamState| state.requests.get(number).is_some_and(|entry| entry.here);
        is_here(records) && !is_here(summarized)
    };
    let differs = |number: &u64| of(records, *number) != of(summarized, *number) || is_lost(*number);
    if let Some(number) = numbers(records).union(&numbers(summarized)).copied().find(|it| differs(it)) {
        return Some(format!("request {number}"));
    }
    let figures =
        |state: &StreamState| [state.totals.frames, state.totals.frame_bytes, state.totals.next_frame];
    if figures(records) != figures(summarized) {
        return Some("the number of frames, their bytes, or the next frame".to_owned());
    }
    if records.totals.unfinished != summarized.totals.unfinished {
        return Some("the frames without an outcome".to_owned());
    }
    // The order of sinks has no meaning.
    let has_all = |one: &StreamState, other: &StreamState| {
        other.totals.sinks.iter().all(|it| one.totals.sinks.contains(it))
    };
    let is_same = has_all(records, summarized) && has_all(summarized, records);
    (!is_same).then(|| "the progress of a sink".to_owned())
}

fn no_outcome(from: FrameNo, through: FrameNo) -> String {
    match from == through {
        true => format!("frame {from} has no outcome"),
        false => format!("frames {from} to {through} have no outcome"),
    }
}

impl std::fmt::Display for JournalProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} byte {}: {}", self.segment, self.offset, self.what)
    }
}
