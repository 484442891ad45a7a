//! Payloads of CARRY, SUMMARY and TOTALS: requests, and totals of a segment.

use super::sinks::{decode_taken, put_ahead, put_taken_payload};
use super::{count, decode_state, put_count, put_u32, put_u64, state_code};
use crate::format::{ByteReader, RecordKind, put_text, record, set_number};
use crate::frame_set::FrameSet;
use crate::position::{FrameNo, RequestNo};
use crate::request::{OperatorAbort, RequestInfo};
use crate::sink_progress::SinkProgress;

/// State of a request when a segment begins (CARRY) or ends (SUMMARY).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestEntry {
    pub info: RequestInfo,
    /// No rows follow. The next segment does not carry the request.
    pub closed: bool,
    /// Whether rows of the request may be in this segment.
    pub here: bool,
}

/// Borrowed form of [`RequestEntry`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestEntryRef<'a> {
    pub info: &'a RequestInfo,
    pub closed: bool,
    pub here: bool,
}

impl RequestEntryRef<'_> {
    pub fn to_entry(self) -> RequestEntry {
        RequestEntry { info: self.info.clone(), closed: self.closed, here: self.here }
    }
}

impl RequestEntry {
    pub fn by_ref(&self) -> RequestEntryRef<'_> {
        RequestEntryRef { info: &self.info, closed: self.closed, here: self.here }
    }
}

/// Totals of a sealed segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentTotals {
    /// Frames in the segment, and their bytes.
    pub frames: u64,
    pub frame_bytes: u64,
    /// Times of the first and last frame.
    pub first_unix_ns: u64,
    pub last_unix_ns: u64,
    /// Next numbers to be given.
    pub next_frame: u64,
    pub next_request: u64,
    /// Whether the writer ended cleanly: every number it gave is recorded.
    pub clean: bool,
    /// Frames of this and earlier segments without an outcome.
    pub unfinished: FrameSet,
    pub sinks: Vec<SinkProgress>,
}

/// Entries per record, which keeps a record below a megabyte.
const ENTRIES_PER_RECORD: usize = 1024;
const ENTRY_BYTES_MIN: usize = 98;

/// Adds the entries in as many records of this kind (CARRY or SUMMARY) as needed.
pub(crate) fn put_entries<'a>(
    out: &mut Vec<u8>,
    kind: RecordKind,
    entries: impl Iterator<Item = RequestEntryRef<'a>>,
) {
    let mut entries = entries.peekable();
    while entries.peek().is_some() {
        let start = out.len();
        let mut count = 0u64;
        record(out, kind, 0, 0, |out| {
            for entry in entries.by_ref().take(ENTRIES_PER_RECORD) {
                put_entry(out, entry);
                count += 1;
            }
        });
        set_number(out, start, count);
    }
}

fn put_entry(out: &mut Vec<u8>, RequestEntryRef { info, closed, here }: RequestEntryRef<'_>) {
    for value in [
        info.number.0,
        info.rows,
        info.received,
        info.forwarded,
        info.dropped,
        info.replaced,
        info.first_frame.0,
        info.last_frame.0,
        info.first_unix_ns,
        info.last_unix_ns,
    ] {
        put_u64(out, value);
    }
    put_count(out, info.completion_tokens);
    put_u32(out, info.gaps);
    out.extend([
        state_code(info.state),
        u8::from(closed) | u8::from(here) << 1 | u8::from(info.ended_early) << 2 | info.ending.code() << 3,
    ]);
    put_text(out, &info.rid);
    put_text(out, &info.finish);
}

pub(crate) fn decode_entries(at: &mut ByteReader<'_>, count_: u64) -> Option<Vec<RequestEntry>> {
    if count_.checked_mul(ENTRY_BYTES_MIN as u64)? > at.0.len() as u64 {
        return None;
    }
    let entry = |_| {
        let number = RequestNo(at.u64()?);
        let [rows, received, forwarded, dropped, replaced] =
            [at.u64()?, at.u64()?, at.u64()?, at.u64()?, at.u64()?];
        let [first_frame, last_frame] = [FrameNo(at.u64()?), FrameNo(at.u64()?)];
        let [first_unix_ns, last_unix_ns] = [at.u64()?, at.u64()?];
        let completion_tokens = count(at.u64()?);
        let gaps = at.u32()?;
        let state = decode_state(at.u8()?)?;
        let flags = at.u8()?;
        let (rid, finish) = (at.text()?, at.text()?);
        let info = RequestInfo {
            number,
            rid,
            state,
            rows,
            received,
            forwarded,
            dropped,
            replaced,
            gaps,
            ended_early: flags & 4 != 0,
            ending: OperatorAbort::of_code(flags >> 3 & 3)?,
            first_frame,
            last_frame,
            first_unix_ns,
            last_unix_ns,
            finish,
            completion_tokens,
            attributes: Vec::new(),
            erased: None,
        };
        Some(RequestEntry { info, closed: flags & 1 != 0, here: flags & 2 != 0 })
    };
    (0..count_).map(entry).collect()
}

pub(crate) fn put_totals(out: &mut Vec<u8>, totals: &SegmentTotals) {
    totals.sinks.iter().for_each(|sink| put_ahead(out, sink));
    record(out, RecordKind::TOTALS, totals.next_frame, totals.last_unix_ns, |out| {
        for value in [totals.frames, totals.frame_bytes, totals.first_unix_ns, totals.next_request] {
            put_u64(out, value);
        }
        out.push(u8::from(totals.clean));
        put_frames(out, &totals.unfinished);
        put_u32(out, totals.sinks.len() as u32);
        for sink in &totals.sinks {
            put_u64(out, sink.through().0);
            put_taken_payload(out, sink, 0);
        }
    });
}

pub(crate) fn decode_totals(payload: &[u8], next_frame: u64, last_unix_ns: u64) -> Option<SegmentTotals> {
    let mut at = ByteReader(payload);
    let [frames, frame_bytes, first_unix_ns, next_request] = [at.u64()?, at.u64()?, at.u64()?, at.u64()?];
    let clean = at.u8()? != 0;
    let unfinished = decode_frames(&mut at)?;
    let sinks = (0..at.count(19)?)
        .map(|_| {
            let through = at.u64()?;
            let taken = decode_taken(&mut at, through)?;
            let mut sink = SinkProgress::new(&taken.sink);
            taken.apply(&mut sink);
            Some(sink)
        })
        .collect::<Option<_>>()?;
    Some(SegmentTotals {
        frames,
        frame_bytes,
        first_unix_ns,
        last_unix_ns,
        next_frame,
        next_request,
        clean,
        unfinished,
        sinks,
    })
}

pub(super) fn put_frames(out: &mut Vec<u8>, frames: &FrameSet) {
    put_u32(out, frames.runs().len() as u32);
    for (first, count) in frames.runs() {
        put_u64(out, first.0);
        put_u64(out, count);
    }
}

pub(super) fn decode_frames(at: &mut ByteReader<'_>) -> Option<FrameSet> {
    let mut frames = FrameSet::default();
    for _ in 0..at.count(16)? {
        let (first, count) = (at.u64()?, at.u64()?);
        frames.insert_run(first, count);
    }
    Some(frames)
}
