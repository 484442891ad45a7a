//! Payload of OUTCOME, and of the CHANGED before it.

use super::{count, put_column, put_count, put_u32, put_u64};
use crate::format::{ByteReader, RecordKind, put_text, record, widen};
use crate::outcome::{self, Gap, Verdict};
use crate::position::{FrameNo, RequestNo};
use crate::stored::{Action, Finish, Outcome, Passage};

/// Adds the OUTCOME of a frame, after the CHANGED with the bytes sent in its place.
pub(crate) fn put_outcome(out: &mut Vec<u8>, outcome: &outcome::Outcome<'_>) {
    let rows = outcome.requests.len().min(outcome.tokens.len());
    // No record may stand between the two.
    if let Some(changed) = outcome.changed.filter(|_| outcome.passage == outcome::Passage::Changed) {
        record(out, RecordKind::CHANGED, outcome.frame.0, outcome.received_unix_ns, |out| {
            out.extend_from_slice(changed);
        });
    }
    record(out, RecordKind::OUTCOME, outcome.frame.0, outcome.received_unix_ns, |out| {
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

pub(super) fn decode_outcome(at: &mut ByteReader<'_>, frame: FrameNo, around: u64) -> Option<Outcome> {
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

fn decode_action(at: &mut ByteReader<'_>) -> Option<Action> {
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
