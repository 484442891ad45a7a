//! What the payload of each kind of record says.

use crate::format::{Bytes, Kind, put_text, record, set_number, widen};
use crate::frame_set::FrameSet;
use crate::outcome::{self, Credit, Gap, Verdict};
use crate::position::{FrameNo, RequestNo};
use crate::reader::{Action, Ending, Finish, Outcome, Passage, RequestInfo, State};
use crate::sink::{Handed, Held, Sent, Sink};

/// A request in a CARRY (as it stands when a segment begins) or a SUMMARY (when it ends).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub info: RequestInfo,
    /// No rows will come: it is not carried into the next segment.
    pub closed: bool,
    /// Rows of it may stand in this segment. False only where it is certain that none do.
    pub here: bool,
}

/// The same, where it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryRef<'a> {
    pub info: &'a RequestInfo,
    pub closed: bool,
    pub here: bool,
}

impl EntryRef<'_> {
    pub fn to_entry(self) -> Entry {
        Entry { info: self.info.clone(), closed: self.closed, here: self.here }
    }
}

impl Entry {
    pub fn by_ref(&self) -> EntryRef<'_> {
        EntryRef { info: &self.info, closed: self.closed, here: self.here }
    }
}

/// How far a sink has taken the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub sink: String,
    pub through: FrameNo,
    pub credit: Option<Credit>,
    /// The last frame that it was sent and has taken.
    pub sequence: u64,
    /// What it was sent after that never arrived.
    pub void: bool,
    /// Nothing of it is kept from here on.
    pub forgotten: bool,
}

impl Taken {
    pub fn apply(&self, sink: &mut Sink) {
        sink.pass(self.through);
        sink.take(self.sequence);
        sink.set_credit(self.credit);
        if self.void {
            sink.void();
        }
    }
}

/// To which of several sinks each row of a frame goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Routed {
    pub sinks: Vec<String>,
    /// Each row's request, and the place of its sink.
    pub rows: Vec<(RequestNo, u8)>,
}

/// What a sealed segment says of itself beside its requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Frames in the segment, and their bytes.
    pub frames: u64,
    pub frame_bytes: u64,
    /// When the first and the last of them came.
    pub first_unix_ns: u64,
    pub last_unix_ns: u64,
    /// The numbers that come next.
    pub next_frame: u64,
    pub next_request: u64,
    /// The writer ended in good order: no number was given out that is not on record.
    pub clean: bool,
    /// Frames of this and earlier segments whose outcome was awaited.
    pub unfinished: FrameSet,
    pub sinks: Vec<Sink>,
}

/// A record's payload, understood; a frame's bytes stay where they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Frame,
    Outcome(Outcome),
    Open {
        rid: String,
    },
    Close {
        state: State,
    },
    Taken(Taken),
    Sent {
        sink: String,
        held: Held,
    },
    Handed {
        sink: String,
        generation: u64,
    },
    Ahead {
        sink: String,
        whole: FrameSet,
        rows: Vec<(u64, u64)>,
    },
    Routed(Routed),
    Ending(Ending),
    Skipped {
        count: u64,
    },
    Lost,
    Carry(Vec<Entry>),
    /// Written when a segment is sealed, or of a kind that this version does not know: nothing that happened.
    Aside,
}

impl Body {
    /// `None`: the payload is not what its kind says.
    pub fn decode(kind: Kind, number: u64, payload: &[u8], around: u64) -> Option<Body> {
        let mut at = Bytes(payload);
        Some(match kind {
            Kind::FRAME => Body::Frame,
            Kind::OUTCOME => Body::Outcome(decode_outcome(&mut at, FrameNo(number), around)?),
            Kind::OPEN => Body::Open { rid: at.text()? },
            Kind::CLOSE => Body::Close { state: decode_state(at.u8()?)? },
            Kind::TAKEN => {
                let mut taken = decode_taken(&mut at, number)?;
                // Version 1 ends here.
                taken.sequence = if at.0.is_empty() { 0 } else { at.u64()? };
                Body::Taken(taken)
            }
            Kind::SENT => decode_sent(&mut at, around)?,
            Kind::HANDED => Body::Handed { sink: at.text()?, generation: at.u64()? },
            Kind::AHEAD => Body::Ahead {
                sink: at.text()?,
                whole: decode_frames(&mut at)?,
                rows: (0..at.count(16)?).map(|_| Some((at.u64()?, at.u64()?))).collect::<Option<_>>()?,
            },
            Kind::ROUTED => Body::Routed(decode_routed(&mut at, around)?),
            Kind::ENDING => Body::Ending(Ending::of_code(at.u8()?)?),
            Kind::SKIPPED => Body::Skipped { count: at.u64()? },
            Kind::LOST => Body::Lost,
            Kind::CARRY => Body::Carry(decode_entries(&mut at, number)?),
            _ => Body::Aside,
        })
    }
}

/// Adds the OUTCOME of a frame, behind the bytes that left in its place.
pub(crate) fn put_outcome(out: &mut Vec<u8>, outcome: &outcome::Outcome<'_>) {
    let rows = outcome.requests.len().min(outcome.tokens.len());
    // Nothing may come between the two.
    if let Some(changed) = outcome.changed.filter(|_| outcome.passage == outcome::Passage::Changed) {
        record(out, Kind::CHANGED, outcome.frame.0, outcome.received_unix_ns, |out| {
            out.extend_from_slice(changed);
        });
    }
    record(out, Kind::OUTCOME, outcome.frame.0, outcome.received_unix_ns, |out| {
        let (passage, text) = match outcome.passage {
            outcome::Passage::AsItCame => (0, None),
            outcome::Passage::Changed => (1, None),
            outcome::Passage::Barrier(kind) => (2, Some(kind)),
            outcome::Passage::NotUnderstood(error) => (3, Some(error)),
            outcome::Passage::Dropped => (4, None),
        };
        out.push(passage);
        for count in [rows, outcome.finished.len(), outcome.gaps.len(), outcome.actions.len()] {
            put_u32(out, count as u32);
        }
        put_column(out, outcome.requests[..rows].iter().map(|request| request.number.0 as u32));
        put_column(out, outcome.tokens[..rows].iter().copied());
        if let Some(text) = text {
            put_text(out, text);
        }
        for finished in outcome.finished {
            put_u32(out, finished.row);
            put_count(out, finished.completion_tokens);
            put_text(out, finished.reason);
        }
        for gap in outcome.gaps {
            put_u32(out, gap.row);
            put_u64(out, gap.expected);
            put_u64(out, gap.got);
        }
        for action in outcome.actions {
            put_u32(out, action.row);
            out.push(verdict_code(action.verdict));
            put_u32(out, action.forwarded);
            put_text(out, action.plugin);
            put_text(out, action.text);
            put_u32(out, action.ids.len() as u32);
            out.extend(action.ids.iter().flat_map(|id| id.to_le_bytes()));
        }
    });
}

fn decode_outcome(at: &mut Bytes<'_>, frame: FrameNo, around: u64) -> Option<Outcome> {
    let passage = at.u8()?;
    let rows = at.u32()? as usize;
    let [finished, gaps, actions] = [at.u32()?, at.u32()?, at.u32()?];
    let column = |bytes: &[u8]| -> Vec<u32> {
        bytes.as_chunks().0.iter().map(|chunk| u32::from_le_bytes(*chunk)).collect()
    };
    let requests = column(at.take(rows.checked_mul(4)?)?);
    let tokens = column(at.take(rows * 4)?);
    let passage = match passage {
        0 => Passage::AsItCame,
        1 => Passage::Changed,
        2 => Passage::Barrier(at.text()?),
        3 => Passage::NotUnderstood(at.text()?),
        4 => Passage::Dropped,
        _ => return None,
    };
    let finished = (0..finished)
        .map(|_| Some(Finish { row: at.u32()?, completion_tokens: count(at.u64()?), reason: at.text()? }))
        .collect::<Option<_>>()?;
    let gaps = (0..gaps)
        .map(|_| Some(Gap { row: at.u32()?, expected: at.u64()?, got: at.u64()? }))
        .collect::<Option<_>>()?;
    let actions = (0..actions).map(|_| decode_action(at)).collect::<Option<_>>()?;
    let requests = requests.into_iter().map(|low| RequestNo(widen(low, around))).collect();
    Some(Outcome { frame, passage, changed: None, requests, tokens, finished, gaps, actions })
}

fn decode_action(at: &mut Bytes<'_>) -> Option<Action> {
    let row = at.u32()?;
    let verdict = verdict(at.u8()?);
    let forwarded = at.u32()?;
    let (plugin, text) = (at.text()?, at.text()?);
    let ids = at.count(8)?;
    let ids = at.take(ids * 8)?.as_chunks().0.iter().map(|chunk| i64::from_le_bytes(*chunk)).collect();
    Some(Action { row, plugin, verdict, text, ids, forwarded })
}

const VERDICTS: [Verdict; 10] = [
    Verdict::Replace,
    Verdict::Drop,
    Verdict::Finish,
    Verdict::Hold,
    Verdict::Release,
    Verdict::Route,
    Verdict::SkipDetokenizing,
    Verdict::Abort,
    Verdict::Annotate,
    Verdict::Fault,
];

fn verdict_code(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Other(code) => code,
        known => VERDICTS.iter().position(|&each| each == known).unwrap_or_default() as u8,
    }
}

fn verdict(code: u8) -> Verdict {
    VERDICTS.get(usize::from(code)).copied().unwrap_or(Verdict::Other(code))
}

/// `flags`: [`VOID`], [`FORGOTTEN`].
pub(crate) fn put_taken(out: &mut Vec<u8>, sink: &Sink, flags: u8) {
    record(out, Kind::TAKEN, sink.through().0, 0, |out| {
        put_taken_payload(out, sink.name(), sink.credit(), flags);
        put_u64(out, sink.sequence());
    });
}

pub(crate) const VOID: u8 = 2;
pub(crate) const FORGOTTEN: u8 = 4;

/// All that a segment must know of a sink when it begins or ends, beside its TAKEN.
pub(crate) fn put_ahead(out: &mut Vec<u8>, sink: &Sink) {
    if !sink.is_numbered() {
        return;
    }
    record(out, Kind::AHEAD, sink.last_sent(), 0, |out| {
        let (whole, rows) = sink.ahead();
        put_text(out, sink.name());
        put_frames(out, whole);
        put_u32(out, rows.len() as u32);
        for (request, frame) in rows {
            put_u64(out, request);
            put_u64(out, frame);
        }
    });
    for (sequence, sent) in sink.sent() {
        put_sent(out, sink.name(), sequence, sent);
    }
    if let Some(handed) = sink.handed() {
        put_handed(out, sink.name(), handed);
    }
}

/// The kernel has all that this sink was sent up to this number, for this generation of its reader.
pub(crate) fn put_handed(out: &mut Vec<u8>, sink: &str, handed: Handed) {
    record(out, Kind::HANDED, handed.sequence, 0, |out| {
        put_text(out, sink);
        put_u64(out, handed.generation);
    });
}

pub(crate) fn put_sent(out: &mut Vec<u8>, sink: &str, sequence: u64, sent: Sent<'_>) {
    record(out, Kind::SENT, sequence, 0, |out| {
        put_text(out, sink);
        match sent {
            Sent::Whole(frame) => {
                out.push(0);
                put_u64(out, frame.0);
            }
            Sent::Rows(rows) => {
                out.push(1);
                let base = rows.iter().map(|(_, frame)| frame.0).min().unwrap_or_default();
                put_u64(out, base);
                put_u32(out, rows.len() as u32);
                put_column(out, rows.iter().map(|(request, _)| request.0 as u32));
                // One that lay further off than that would be sent again: nothing is lost.
                let after = |frame: u64| u32::try_from(frame - base).unwrap_or(u32::MAX);
                put_column(out, rows.iter().map(|(_, frame)| after(frame.0)));
            }
        }
    });
}

/// Adds where the rows of a frame go: as many targets (places among `sinks`) as requests.
pub(crate) fn put_routed(
    out: &mut Vec<u8>,
    frame: FrameNo,
    sinks: &[String],
    requests: &[u64],
    targets: &[u32],
) {
    record(out, Kind::ROUTED, frame.0, 0, |out| {
        let rows = requests.len().min(targets.len());
        out.push(sinks.len() as u8);
        sinks.iter().for_each(|sink| put_text(out, sink));
        put_u32(out, rows as u32);
        put_column(out, requests.iter().take(rows).map(|request| *request as u32));
        out.extend(targets.iter().take(rows).map(|target| *target as u8));
    });
}

fn decode_routed(at: &mut Bytes<'_>, around: u64) -> Option<Routed> {
    let sinks = (0..at.u8()?).map(|_| at.text()).collect::<Option<Vec<_>>>()?;
    let count = at.count(5)?;
    let (requests, targets) = (at.take(count * 4)?.as_chunks().0, at.take(count)?);
    let request = |request: &[u8; 4]| RequestNo(widen(u32::from_le_bytes(*request), around));
    let rows = requests.iter().map(request).zip(targets.iter().copied()).collect();
    Some(Routed { sinks, rows })
}

fn decode_sent(at: &mut Bytes<'_>, around: u64) -> Option<Body> {
    let sink = at.text()?;
    let (rows, base) = (at.u8()?, at.u64()?);
    if rows == 0 {
        return Some(Body::Sent { sink, held: Held::Whole(FrameNo(base)) });
    }
    let count = at.count(8)?;
    let (requests, after) = (at.take(count * 4)?.as_chunks().0, at.take(count * 4)?.as_chunks().0);
    let rows = requests.iter().zip(after).map(|(request, after)| {
        let request = RequestNo(widen(u32::from_le_bytes(*request), around));
        (request, FrameNo(base.saturating_add(u32::from_le_bytes(*after).into())))
    });
    Some(Body::Sent { sink, held: Held::Rows(rows.collect()) })
}

fn put_taken_payload(out: &mut Vec<u8>, sink: &str, credit: Option<Credit>, flags: u8) {
    out.push(u8::from(credit.is_some()) | flags);
    if let Some(credit) = credit {
        put_u64(out, credit.generation);
        put_u64(out, credit.sent);
    }
    put_text(out, sink);
}

fn decode_taken(at: &mut Bytes<'_>, through: u64) -> Option<Taken> {
    let flags = at.u8()?;
    let credit = match flags & 1 {
        0 => None,
        _ => Some(Credit { generation: at.u64()?, sent: at.u64()? }),
    };
    let (void, forgotten) = (flags & VOID != 0, flags & FORGOTTEN != 0);
    Some(Taken { sink: at.text()?, through: FrameNo(through), credit, sequence: 0, void, forgotten })
}

/// Entries in one record: so that a record stays a fraction of a megabyte.
const ENTRIES_PER_RECORD: usize = 1024;
const ENTRY_BYTES_MIN: usize = 98;

/// Adds the entries, in as many records of this kind (CARRY or SUMMARY) as they take; none for none.
pub(crate) fn put_entries<'a>(out: &mut Vec<u8>, kind: Kind, entries: impl Iterator<Item = EntryRef<'a>>) {
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

fn put_entry(out: &mut Vec<u8>, EntryRef { info, closed, here }: EntryRef<'_>) {
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

pub(crate) fn decode_entries(at: &mut Bytes<'_>, count_: u64) -> Option<Vec<Entry>> {
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
            ending: Ending::of_code(flags >> 3 & 3)?,
            first_frame,
            last_frame,
            first_unix_ns,
            last_unix_ns,
            finish,
            completion_tokens,
        };
        Some(Entry { info, closed: flags & 1 != 0, here: flags & 2 != 0 })
    };
    (0..count_).map(entry).collect()
}

pub(crate) fn put_totals(out: &mut Vec<u8>, totals: &Totals) {
    totals.sinks.iter().for_each(|sink| put_ahead(out, sink));
    record(out, Kind::TOTALS, totals.next_frame, totals.last_unix_ns, |out| {
        for value in [totals.frames, totals.frame_bytes, totals.first_unix_ns, totals.next_request] {
            put_u64(out, value);
        }
        out.push(u8::from(totals.clean));
        put_frames(out, &totals.unfinished);
        put_u32(out, totals.sinks.len() as u32);
        for sink in &totals.sinks {
            put_u64(out, sink.through().0);
            put_taken_payload(out, sink.name(), sink.credit(), 0);
            put_u64(out, sink.sequence());
        }
    });
}

/// `version`: that of the segment.
pub(crate) fn decode_totals(
    payload: &[u8],
    next_frame: u64,
    last_unix_ns: u64,
    version: u32,
) -> Option<Totals> {
    let mut at = Bytes(payload);
    let [frames, frame_bytes, first_unix_ns, next_request] = [at.u64()?, at.u64()?, at.u64()?, at.u64()?];
    let clean = at.u8()? != 0;
    let unfinished = match version {
        1 => decode_frames_v1(&mut at)?,
        _ => decode_frames(&mut at)?,
    };
    let sinks = (0..at.count(11)?)
        .map(|_| {
            let through = at.u64()?;
            let mut taken = decode_taken(&mut at, through)?;
            if version > 1 {
                taken.sequence = at.u64()?;
            }
            let mut sink = Sink::new(&taken.sink);
            taken.apply(&mut sink);
            Some(sink)
        })
        .collect::<Option<_>>()?;
    Some(Totals {
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

fn put_frames(out: &mut Vec<u8>, frames: &FrameSet) {
    put_u32(out, frames.runs().len() as u32);
    for (first, count) in frames.runs() {
        put_u64(out, first.0);
        put_u64(out, count);
    }
}

fn decode_frames(at: &mut Bytes<'_>) -> Option<FrameSet> {
    let mut frames = FrameSet::default();
    for _ in 0..at.count(16)? {
        let (first, count) = (at.u64()?, at.u64()?);
        frames.insert_run(first, count);
    }
    Some(frames)
}

/// Each frame by itself, with where it stands and when it came.
fn decode_frames_v1(at: &mut Bytes<'_>) -> Option<FrameSet> {
    let mut frames = FrameSet::default();
    for _ in 0..at.count(32)? {
        frames.insert(at.u64()?);
        at.take(24)?;
    }
    Some(frames)
}

pub(crate) fn state_code(state: State) -> u8 {
    match state {
        State::Live => 0,
        State::Finished => 1,
        State::Abandoned => 2,
    }
}

fn decode_state(code: u8) -> Option<State> {
    [State::Live, State::Finished, State::Abandoned].get(usize::from(code)).copied()
}

fn put_column(out: &mut Vec<u8>, values: impl ExactSizeIterator<Item = u32>) {
    let start = out.len();
    out.resize(start + values.len() * 4, 0);
    for (place, value) in out[start..].as_chunks_mut().0.iter_mut().zip(values) {
        *place = value.to_le_bytes();
    }
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// A count that may be unknown.
fn put_count(out: &mut Vec<u8>, count: Option<u64>) {
    put_u64(out, count.unwrap_or(u64::MAX));
}

fn count(value: u64) -> Option<u64> {
    (value != u64::MAX).then_some(value)
}
