//! Payload of OUTCOME, and of the CHANGED before it.

use super::{count, put_column, put_count, put_u32, put_u64};
use crate::format::{ByteReader, RecordHead, RecordKind, put_text, record, widen};
use crate::outcome::{Outcome, Passage, PluginAction, RowFinish, TokenGap, Verdict};
use crate::position::{FrameNo, RequestNo};
use crate::request::JournalRequest;

/// Adds the OUTCOME of a frame, after the CHANGED with the bytes sent in its place.
pub(crate) fn put_outcome(out: &mut Vec<u8>, outcome: &Outcome<'_, JournalRequest>) {
    // No record may stand between the two.
    if let Some(changed) = outcome.changed.as_ref().filter(|_| outcome.passage == Passage::Changed) {
        record(out, RecordKind::CHANGED, outcome.frame.0, outcome.received_unix_ns, |out| {
            out.extend_from_slice(changed);
        });
    }
    record(out, RecordKind::OUTCOME, outcome.frame.0, outcome.received_unix_ns, |out| {
        put_payload(out, outcome)
    });
}

/// The outcome as a journal reader returns it.
pub fn as_read(outcome: &Outcome<'_, JournalRequest>) -> Option<Outcome<'static>> {
    let mut payload = Vec::new();
    put_payload(&mut payload, outcome);
    let (number, time) = (outcome.frame.0, outcome.received_unix_ns);
    let head = RecordHead { payload: payload.len() as u32, kind: RecordKind::OUTCOME, number, time };
    let around = outcome.requests.first().map_or(0, |request| request.number.0);
    let read = decode_outcome(&mut ByteReader(&payload), &head, around)?;
    Some(Outcome { changed: outcome.changed.clone(), ..read })
}

fn put_payload(out: &mut Vec<u8>, outcome: &Outcome<'_, JournalRequest>) {
    let rows = outcome.requests.len().min(outcome.tokens.len());
    let (passage, text) = match &outcome.passage {
        Passage::Unchanged => (0, None),
        Passage::Changed => (1, None),
        Passage::Barrier(kind) => (2, Some(kind)),
        Passage::NotUnderstood(error) => (3, Some(error)),
        Passage::Dropped => (4, None),
    };
    out.push(passage);
    for count in [rows, outcome.finished.len(), outcome.gaps.len(), outcome.actions.len()] {
        put_u32(out, count as u32);
    }
    put_column(out, outcome.requests[..rows].iter().map(|request| request.number.0 as u32));
    put_tokens(out, &outcome.tokens[..rows]);
    if let Some(text) = text {
        put_text(out, text);
    }
    for finished in outcome.finished.iter() {
        put_u32(out, finished.row);
        put_count(out, finished.completion_tokens);
        put_text(out, &finished.reason);
    }
    for gap in outcome.gaps.iter() {
        put_u32(out, gap.row);
        put_u64(out, gap.expected);
        put_u64(out, gap.got);
    }
    for action in outcome.actions.iter() {
        put_u32(out, action.row);
        out.push(verdict_code(action.verdict));
        put_u32(out, action.forwarded);
        put_text(out, &action.plugin);
        put_text(out, &action.text);
        put_u32(out, action.ids.len() as u32);
        out.extend(action.ids.iter().flat_map(|id| id.to_le_bytes()));
    }
}

/// Writes the tokens that each row received. In most frames all have received the same number, which stands once.
fn put_tokens(out: &mut Vec<u8>, tokens: &[u32]) {
    let first = tokens.first().copied().unwrap_or_default();
    // Without an early exit, so that the compiler can compare many at a time.
    let are_equal = tokens.iter().fold(true, |all, each| all & (*each == first));
    out.push(are_equal.into());
    let column: &[u32] = if are_equal { &[first] } else { tokens };
    put_column(out, column.iter().copied());
}

/// Reads what [`put_tokens`] wrote, after a column of as many rows.
pub(super) fn take_tokens(at: &mut ByteReader<'_>, rows: usize) -> Option<Vec<u32>> {
    match at.u8()? {
        0 => Some(column(at.take(rows.checked_mul(4)?)?)),
        1 => Some(vec![at.u32()?; rows]),
        _ => None,
    }
}

fn column(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|chunk| u32::from_le_bytes(*chunk)).collect()
}

pub(super) fn decode_outcome(
    at: &mut ByteReader<'_>,
    head: &RecordHead,
    around: u64,
) -> Option<Outcome<'static>> {
    let passage = at.u8()?;
    let rows = at.u32()? as usize;
    let [finished, gaps, actions] = [at.u32()?, at.u32()?, at.u32()?];
    let requests = column(at.take(rows.checked_mul(4)?)?);
    let tokens = take_tokens(at, rows)?;
    let passage = match passage {
        0 => Passage::Unchanged,
        1 => Passage::Changed,
        2 => Passage::Barrier(at.text()?.into()),
        3 => Passage::NotUnderstood(at.text()?.into()),
        4 => Passage::Dropped,
        _ => return None,
    };
    let finished = (0..finished)
        .map(|_| {
            Some(RowFinish { row: at.u32()?, completion_tokens: count(at.u64()?), reason: at.text()?.into() })
        })
        .collect::<Option<Vec<_>>>()?;
    let gaps = (0..gaps)
        .map(|_| Some(TokenGap { row: at.u32()?, expected: at.u64()?, got: at.u64()? }))
        .collect::<Option<Vec<_>>>()?;
    let actions = (0..actions).map(|_| decode_action(at)).collect::<Option<Vec<_>>>()?;
    let requests = requests.into_iter().map(|low| RequestNo(widen(low, around))).collect();
    Some(Outcome {
        frame: FrameNo(head.number),
        received_unix_ns: head.time,
        passage,
        changed: None,
        requests,
        tokens: tokens.into(),
        finished: finished.into(),
        gaps: gaps.into(),
        actions: actions.into(),
    })
}

fn decode_action(at: &mut ByteReader<'_>) -> Option<PluginAction<'static>> {
    let row = at.u32()?;
    let verdict = verdict(at.u8()?);
    let forwarded = at.u32()?;
    let (plugin, text) = (at.text()?, at.text()?);
    let ids = at.count(8)?;
    let ids = at.take(ids * 8)?.as_chunks().0.iter().map(|chunk| i64::from_le_bytes(*chunk)).collect();
    Some(PluginAction { row, plugin: plugin.into(), verdict, text: text.into(), ids, forwarded })
}

const VERDICTS: [Verdict; 12] = [
    Verdict::Replace,
    Verdict::Drop,
    Verdict::Finish,
    Verdict::Hold,
    Verdict::Release,
    Verdict::Route,
    Verdict::SkipText,
    Verdict::Abort,
    Verdict::Annotate,
    Verdict::Fault,
    Verdict::Length,
    Verdict::Error,
];

fn verdict_code(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Other(code) => code,
        known => VERDICTS.iter().position(|&each| each == known).unwrap_or_default() as u8,
    }
}

pub(super) fn verdict(code: u8) -> Verdict {
    VERDICTS.get(usize::from(code)).copied().unwrap_or(Verdict::Other(code))
}
