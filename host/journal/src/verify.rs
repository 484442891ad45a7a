//! Checks all that can be checked: checksums, the numbering of frames, that each has an outcome, that each request's
//! tokens are as many as the scheduler counted, and that summaries say what their segments' records say.

use std::collections::BTreeMap;

use crate::bounds::{REQUESTS_LEFT_OUT, RUNS_MAX};
use crate::error::ReadError;
use crate::format::RecordKind;
use crate::manifest::{self, Manifest, MissingSegments};
use crate::position::{FrameNo, RequestNo, SegmentId};
use crate::record::RecordBody;
use crate::segment::{Payloads, RawRecord, RecordedEnd, Scan, ScanStep, Segment, SegmentSummary};
use crate::segment_files::{SegmentFile, SegmentFiles};
use crate::stored::Outcome;
use crate::stream_state::StreamState;

mod groups;

pub use groups::Cause;

/// A frame with more frames behind it than this should have an outcome by now.
const AWAITED_FRAMES: u64 = 1024;

/// Attempts to see the segments and the manifest as they are at one moment, while a process writes.
const STOCK_TRIES: usize = 16;

/// What was checked and what is wrong. Clean when `problems` is empty.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// SegmentFiles read.
    pub segments: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Frames whose checksum was right.
    pub frames: u64,
    /// Outcomes.
    pub outcomes: u64,
    /// Requests seen.
    pub requests: u64,
    /// Rows.
    pub rows: u64,
    /// Tokens received.
    pub tokens: u64,
    /// What is wrong, in order of segments. [`Report::causes`] has it in few words.
    pub problems: Vec<Problem>,
    /// The segments that a process began with.
    pub(crate) runs: Vec<SegmentId>,
    /// What is as declared, and still worth knowing.
    pub notes: Vec<Note>,
}

/// Something wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The segment.
    pub segment: SegmentId,
    /// The byte in it.
    pub offset: u64,
    /// What.
    pub what: What,
}

/// What is wrong. Displays as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum What {
    /// Neither copy of the segment's header is whole.
    #[error("segment header is corrupt")]
    Header,
    /// SegmentFiles that were begun, and that retention did not remove.
    #[error(
        "{} of {} segments are missing: {} is the first there should be, {} the last",
        .0.missing, .0.segments, .0.oldest, .0.newest
    )]
    MissingSegments(MissingSegments),
    /// A segment that was begun and has lost its header and all behind it.
    #[error("segment is emptied: {bytes} bytes are left")]
    Emptied {
        /** What is left of it. */
        bytes: u64,
    },
    /// The segment ends before its records did.
    #[error("segment is cut: {bytes} bytes are missing at its end")]
    Cut {
        /** How many. */
        bytes: u64,
    },
    /// Bytes that are no record.
    #[error("{bytes} bytes are corrupt")]
    Corrupt {
        /** How many. */
        bytes: u64,
    },
    /// Frames that are neither there nor declared skipped.
    #[error("frames {from} to {through} are missing")]
    MissingFrames {
        /** The first. */
        from: FrameNo,
        /** The last. */
        through: FrameNo,
    },
    /// A frame whose number had been used.
    #[error("frame {frame} is there again")]
    RepeatedFrame {
        /** The frame. */
        frame: FrameNo,
    },
    /// Frames whose handling is not recorded.
    #[error("{}", no_outcome(*.from, *.through))]
    NoOutcome {
        /** The first. */
        from: FrameNo,
        /** The last. */
        through: FrameNo,
    },
    /// What was received for a request is not what the scheduler counted.
    #[error("request {request} {rid:?}: received {received} tokens, the scheduler counted {counted}")]
    Tokens {
        /** Its number. */
        request: RequestNo,
        /** Its rid. */
        rid: String,
        /** Received. */
        received: u64,
        /** `completion_tokens` at the finish. */
        counted: u64,
    },
    /// The stream saw a gap.
    #[error("request {request} {rid:?}: frame {frame} row {row} stands at {got} tokens, expected {expected}")]
    Gap {
        /** Its number. */
        request: RequestNo,
        /** Its rid. */
        rid: String,
        /** The frame. */
        frame: FrameNo,
        /** The row. */
        row: u32,
        /** Received so far. */
        expected: u64,
        /** The scheduler's count. */
        got: u64,
    },
    /// The summary does not say what the records say.
    #[error("summary is not that of the segment's records: {detail}")]
    Summary {
        /** What differs. */
        detail: String,
    },
}

/// Something to know that is not wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Note {
    /// Frames that went on without being kept, as declared.
    #[error("{count} frames from {from} on went on without being kept")]
    Skipped {
        /** The first. */
        from: FrameNo,
        /** How many. */
        count: u64,
    },
    /// Outcomes lost while the disk refused writes, as declared.
    #[error("{count} records of outcomes found no room while the disk refused writes")]
    OutcomesLost {
        /** How many. */
        count: u64,
    },
    /// The last segment ends in so many bytes that are not a whole record: being written, or to be cut at the next start.
    #[error("{segment} ends in {bytes} bytes that are not a whole record (yet)")]
    TornTail {
        /** The segment. */
        segment: SegmentId,
        /** How many. */
        bytes: u64,
    },
    /// SegmentFiles that an earlier start has found missing, and told.
    #[error("{count} segments were missing at an earlier start")]
    SegmentsLost {
        /** How many. */
        count: u64,
    },
    /// While the disk took no records, frames were forwarded: what the readers have of the newest frames is not on record.
    #[error("what was forwarded last is not on record, since the disk took no more")]
    Unrecorded,
    /// Frames at the very end whose outcome may still come.
    #[error("the last {frames} frames await their outcome")]
    Unfinished {
        /** How many. */
        frames: u64,
    },
}

pub(crate) fn verify(segments: &SegmentFiles) -> Result<Report, ReadError> {
    let mut check = Verifier {
        report: Report::default(),
        state: StreamState::new(),
        first: None,
        last: SegmentId::default(),
        places: BTreeMap::new(),
        clean: false,
    };
    let (manifest, found) = stock(segments)?;
    let listed: Vec<SegmentId> = found.iter().map(|segment| segment.id).collect();
    check.stock(&manifest, &found);
    for (at, &id) in listed.iter().enumerate() {
        let next = listed.get(at + 1).copied();
        match segments.open(id)? {
            Some(segment) => check.segment(&segment, segments.seen_from(next, id)?, next.is_none())?,
            // Removed since it was listed, or torn when it was begun, or damaged.
            None => match segments.list()?.iter().find(|known| known.id == id) {
                // With all that came before it: the next is the first.
                None => (check.first, check.state) = (None, StreamState::new()),
                // It was told with the stock.
                Some(_) if manifest.emptied(&found).any(|emptied| emptied.id == id) => {}
                Some(known) if next.is_none() && known.bytes < crate::format::HEADER_BYTES as u64 => {
                    check.report.notes.push(Note::TornTail { segment: id, bytes: known.bytes });
                }
                Some(_) => check.problem(id, 0, What::Header),
            },
        }
    }
    check.end();
    Ok(check.report)
}

/// The segments, and what the manifest says of them, of one moment.
fn stock(segments: &SegmentFiles) -> Result<(Manifest, Vec<SegmentFile>), ReadError> {
    let read = || manifest::read(&*segments.storage, &segments.dir).unwrap_or_default();
    let mut manifest = read();
    for _ in 0..STOCK_TRIES {
        let listed = segments.list()?;
        let now = read();
        if now.is_of_the_same_segments(&manifest) {
            return Ok((manifest, listed));
        }
        manifest = now;
    }
    // Nothing can be said of one that is changed all the time.
    Ok((Manifest::default(), segments.list()?))
}

struct Verifier {
    report: Report,
    state: StreamState,
    /// The first segment there is.
    first: Option<SegmentId>,
    /// The segment that is read, or was last.
    last: SegmentId,
    /// Where frames without an outcome stand: of the newest, as far as there is room.
    places: BTreeMap<u64, (SegmentId, u64)>,
    /// The last segment was ended in good order.
    clean: bool,
}

impl Verifier {
    /// What should be there, and is not.
    fn stock(&mut self, manifest: &Manifest, listed: &[SegmentFile]) {
        if let Some(missing) = manifest.missing(listed) {
            self.problem(missing.newest, 0, What::MissingSegments(missing));
        }
        for emptied in manifest.emptied(listed) {
            self.problem(emptied.id, 0, What::Emptied { bytes: emptied.bytes });
        }
        if manifest.lost > 0 {
            self.report.notes.push(Note::SegmentsLost { count: manifest.lost });
        }
        if manifest.unrecorded {
            self.report.notes.push(Note::Unrecorded);
        }
    }

    fn segment(&mut self, segment: &Segment, previous: RecordedEnd, last: bool) -> Result<(), ReadError> {
        let id = segment.id;
        if self.first.is_none() {
            // What came before was removed by retention.
            self.state.next_frame = id.first.0;
            self.first = Some(id);
        }
        self.last = id;
        self.report.segments += 1;
        self.report.bytes += segment.bytes()?;
        // A process that starts leaves request numbers out, unless the last one ended in good order.
        let is_begun_by_another = segment.header.next_request >= self.state.next_request + REQUESTS_LEFT_OUT;
        if self.clean || is_begun_by_another {
            self.report.runs.push(id);
        }
        self.state.begin_segment(&segment.header);
        let summary = segment.summary()?;
        let limit = summary.as_ref().map_or(previous.limit, |summary| summary.begins);
        let mut exact = true;
        let mut summary_begins = None;
        let mut scan = segment.records(limit, Payloads::All);
        loop {
            match scan.step()? {
                ScanStep::Record(record)
                    if record.head.kind == RecordKind::SUMMARY || record.head.kind == RecordKind::TOTALS =>
                {
                    summary_begins = summary_begins.or(Some(record.offset));
                }
                ScanStep::Record(record) => exact &= self.record(&scan, &record),
                ScanStep::Corrupt { offset, bytes } => {
                    exact = false;
                    self.problem(id, offset, What::Corrupt { bytes });
                }
                ScanStep::End { torn: 0, offset }
                    if offset < previous.limit && previous.limit != u64::MAX && summary.is_none() =>
                {
                    exact = false;
                    self.problem(id, offset, What::Cut { bytes: previous.limit - offset });
                    break;
                }
                ScanStep::End { torn: 0, .. } => break,
                ScanStep::End { torn: bytes, .. } if last && summary.is_none() => {
                    self.report.notes.push(Note::TornTail { segment: id, bytes });
                    break;
                }
                ScanStep::End { offset, torn: bytes } => {
                    exact = false;
                    self.problem(id, offset, What::Corrupt { bytes });
                    break;
                }
            }
        }
        match &summary {
            Some(summary) => self.summary(id, summary, exact),
            None => self.without_summary(segment, previous, summary_begins)?,
        }
        self.clean = summary.is_some_and(|summary| summary.totals.clean);
        Ok(())
    }

    /// False if the segment's figures cannot be followed record by record.
    fn record(&mut self, scan: &Scan, record: &RawRecord) -> bool {
        let (id, number) = (scan.segment.id, record.head.number);
        let Some(body) = scan.body(record) else {
            self.problem(id, record.offset, What::Corrupt { bytes: record.head.record_bytes() });
            return false;
        };
        let expected = self.state.next_frame;
        let numbered = matches!(body, RecordBody::Frame | RecordBody::Skipped { .. });
        if numbered && number > expected {
            let (from, through) = (FrameNo(expected), FrameNo(number - 1));
            self.problem(id, record.offset, What::MissingFrames { from, through });
        }
        match &body {
            RecordBody::Frame => {
                self.report.frames += 1;
                if number < expected {
                    self.problem(id, record.offset, What::RepeatedFrame { frame: FrameNo(number) });
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
                let more = entries.iter().filter(|entry| !known.contains_key(&entry.info.number.0));
                self.report.requests += more.count() as u64;
            }
            RecordBody::Skipped { count } => self.skipped(number, *count),
            RecordBody::Lost => self.report.notes.push(Note::OutcomesLost { count: number }),
            _ => {}
        }
        self.state.apply(record, &body);
        if let Some((first, count)) = self.state.given_up.take() {
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

    /// An outage is one note, however many records tell of it.
    fn skipped(&mut self, from: u64, count: u64) {
        match self.report.notes.last_mut() {
            Some(Note::Skipped { from: first, count: so_far }) if first.0 + *so_far == from => {
                *so_far += count
            }
            _ => self.report.notes.push(Note::Skipped { from: FrameNo(from), count }),
        }
    }

    /// The ledger: gaps as the stream saw them, and the sum at the finish.
    fn tokens(&mut self, id: SegmentId, offset: u64, outcome: &Outcome) {
        let request = |row: u32| outcome.requests.get(row as usize).copied().unwrap_or_default();
        for gap in &outcome.gaps {
            let (request, frame) = (request(gap.row), outcome.frame);
            let rid = self.rid(request);
            let what = What::Gap { request, rid, frame, row: gap.row, expected: gap.expected, got: gap.got };
            self.problem(id, offset, what);
        }
        for finish in &outcome.finished {
            self.finished(id, offset, request(finish.row));
        }
    }

    /// A request's sum, if it has finished. One whose opening is not known (yet) has none: a segment that was begun on
    /// a failing disk names the requests it carries only behind what had waited.
    fn finished(&mut self, id: SegmentId, offset: u64, request: RequestNo) {
        let Some(entry) = self.state.requests.get(&request.0).filter(|entry| !entry.info.rid.is_empty())
        else {
            return;
        };
        let received = entry.info.received;
        if let Some(counted) = entry.info.completion_tokens.filter(|&counted| counted != received) {
            let rid = entry.info.rid.clone();
            self.problem(id, offset, What::Tokens { request, rid, received, counted });
        }
    }

    fn rid(&self, request: RequestNo) -> String {
        self.state.requests.get(&request.0).map_or_else(String::new, |entry| entry.info.rid.clone())
    }

    fn summary(&mut self, id: SegmentId, summary: &SegmentSummary, exact: bool) {
        let said = StreamState::at_end_of(summary);
        // Of segments that retention has removed, what was awaited is known from here alone.
        let removed = self.first.map_or(0, |first| first.first.0);
        for (first, count) in said.unfinished.runs() {
            for frame in first.0..removed.min(first.0.saturating_add(count)) {
                self.state.unfinished.insert(frame);
            }
        }
        if exact && let Some(detail) = difference(&self.state, &said) {
            self.problem(id, summary.begins, What::Summary { detail });
        }
        self.state = said;
    }

    /// A segment may have none yet, or none where its disk failed; but not half of one.
    fn without_summary(
        &mut self,
        segment: &Segment,
        previous: RecordedEnd,
        begins: Option<u64>,
    ) -> Result<(), ReadError> {
        let half = previous.sealed && segment.bytes()? > previous.limit;
        let begins = begins.or(half.then_some(previous.limit));
        // It may have been sealed since the first look.
        if let Some(begins) = begins
            && segment.summary()?.is_none()
        {
            self.problem(segment.id, begins, What::Summary { detail: "it is damaged".into() });
        }
        Ok(())
    }

    fn end(&mut self) {
        let mut awaited = 0;
        for (first, count) in std::mem::take(&mut self.state.unfinished).runs() {
            // Frames that wait in the journal are all those at its end, however many.
            let behind = self.state.next_frame.saturating_sub(first.0 + count);
            if behind > if self.clean { 0 } else { AWAITED_FRAMES } {
                self.no_outcome(first, count);
            } else {
                awaited += count;
            }
        }
        if awaited > 0 {
            self.report.notes.push(Note::Unfinished { frames: awaited });
        }
    }

    fn no_outcome(&mut self, from: FrameNo, count: u64) {
        let through = FrameNo(from.0 + count - 1);
        let (segment, offset) = self.places.get(&from.0).copied().unwrap_or((self.last, 0));
        self.problem(segment, offset, What::NoOutcome { from, through });
    }

    fn problem(&mut self, segment: SegmentId, offset: u64, what: What) {
        self.report.problems.push(Problem { segment, offset, what });
    }
}

/// The first figure in which a summary is not what the records come to.
fn difference(records: &StreamState, said: &StreamState) -> Option<String> {
    for (number, entry) in &records.requests {
        match said.requests.get(number) {
            None => return Some(format!("request {number} is not in it")),
            Some(known)
                if known.info != entry.info || known.closed != entry.closed || entry.here && !known.here =>
            {
                return Some(format!(
                    "request {number} is {:?}, by the records {:?}",
                    known.info, entry.info
                ));
            }
            Some(_) => {}
        }
    }
    if let Some(number) = said.requests.keys().find(|number| !records.requests.contains_key(number)) {
        return Some(format!("request {number} is not in the records"));
    }
    let figures = |state: &StreamState| [state.frames, state.frame_bytes, state.next_frame];
    if figures(records) != figures(said) {
        return Some(format!(
            "frames, bytes, next frame are {:?}, by the records {:?}",
            figures(said),
            figures(records)
        ));
    }
    if records.unfinished != said.unfinished {
        let only = |one: &StreamState, other: &StreamState| {
            one.unfinished.runs().find(|run| !other.unfinished.runs().any(|known| known == *run))
        };
        let (kept, known) = (only(records, said), only(said, records));
        return Some(format!("frames {known:?} have no outcome, by the records {kept:?}"));
    }
    (records.sinks != said.sinks).then(|| "what sinks have taken is another".into())
}

fn no_outcome(from: FrameNo, through: FrameNo) -> String {
    match from == through {
        true => format!("frame {from} has no outcome"),
        false => format!("frames {from} to {through} have no outcome"),
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} byte {}: {}", self.segment, self.offset, self.what)
    }
}
