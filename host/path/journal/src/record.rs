//! Payloads of records.

use crate::format::{ByteReader, RecordHead, RecordKind, record};
use crate::frame_set::FrameSet;
use crate::outcome::Outcome;
use crate::plugin_component::PluginComponent;
use crate::request::{OperatorAbort, RequestState};
use crate::sink_progress::SentFrame;

mod attributes;
mod entries;
mod erased;
mod outcome;
mod plugin;
mod rids;
mod sinks;

pub(crate) use attributes::{bounded_attributes, put_attributes, put_kept_attributes};
pub(crate) use entries::{
    RequestEntry, RequestEntryRef, SegmentTotals, decode_entries, decode_totals, put_entries, put_totals,
};
pub(crate) use erased::{ErasedEntry, erase_outcome};
pub(crate) use outcome::put_outcome;
pub(crate) use plugin::put_plugin;
pub(crate) use rids::RidIndex;
pub(crate) use sinks::{
    FORGOTTEN, Routed, Taken, VOID, apply_to_sinks, put_ahead, put_handed, put_routed, put_sent, put_taken,
    sink_of,
};

use attributes::decode_attributes;
use entries::decode_frames;
use outcome::decode_outcome;
use plugin::decode_plugin;
use sinks::{decode_routed, decode_sent, decode_taken};

/// Decoded payload of a record, without the bytes of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecordBody {
    Frame,
    Outcome(Outcome<'static>),
    Open {
        rid: String,
    },
    Close {
        state: RequestState,
        /// The finish reason, if no row brought it.
        finish: String,
    },
    Taken(Taken),
    Sent {
        sink: String,
        frame: SentFrame,
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
    OperatorAbort(OperatorAbort),
    /// Names and values.
    Attributes(Vec<(String, String)>),
    Plugin(PluginComponent),
    Skipped {
        count: u64,
        /// Whether an excerpt left the frames out. Otherwise they were forwarded without being stored.
        left_out: bool,
    },
    Lost,
    Carry(Vec<RequestEntry>),
    /// Part of a summary, or a kind that this version does not know.
    Aside,
}

impl RecordBody {
    /// Returns `None` if the payload does not match its kind.
    pub fn decode(head: &RecordHead, payload: &[u8], around: u64) -> Option<RecordBody> {
        let number = head.number;
        let mut at = ByteReader(payload);
        Some(match head.kind {
            RecordKind::FRAME => RecordBody::Frame,
            RecordKind::OUTCOME => RecordBody::Outcome(decode_outcome(&mut at, head, around)?),
            RecordKind::OPEN => RecordBody::Open { rid: at.text()? },
            RecordKind::CLOSE => RecordBody::Close {
                state: decode_state(at.u8()?)?,
                finish: if at.0.is_empty() { String::new() } else { at.text()? },
            },
            RecordKind::TAKEN => {
                let mut taken = decode_taken(&mut at, number)?;
                taken.unix_ns = head.time;
                RecordBody::Taken(taken)
            }
            RecordKind::SENT => decode_sent(&mut at, head, around)?,
            RecordKind::HANDED => RecordBody::Handed { sink: at.text()?, generation: at.u64()? },
            RecordKind::AHEAD => RecordBody::Ahead {
                sink: at.text()?,
                whole: decode_frames(&mut at)?,
                rows: (0..at.count(16)?).map(|_| Some((at.u64()?, at.u64()?))).collect::<Option<_>>()?,
            },
            RecordKind::ROUTED => RecordBody::Routed(decode_routed(&mut at, around)?),
            RecordKind::ABORT => RecordBody::OperatorAbort(OperatorAbort::of_code(at.u8()?)?),
            RecordKind::ATTRIBUTES => RecordBody::Attributes(decode_attributes(&mut at)?),
            RecordKind::PLUGIN => RecordBody::Plugin(decode_plugin(&mut at)?),
            RecordKind::SKIPPED => {
                let count = at.u64()?;
                RecordBody::Skipped { count, left_out: !at.0.is_empty() && at.u8()? == LEFT_OUT }
            }
            RecordKind::LOST => RecordBody::Lost,
            RecordKind::CARRY => RecordBody::Carry(decode_entries(&mut at, number)?),
            _ => RecordBody::Aside,
        })
    }
}

/// Follows the count of SKIPPED if an excerpt left the frames out.
const LEFT_OUT: u8 = 1;

/// Adds SKIPPED for frames that an excerpt leaves out.
pub(crate) fn put_left_out(out: &mut Vec<u8>, first: u64, count: u64) {
    record(out, RecordKind::SKIPPED, first, 0, |out| {
        put_u64(out, count);
        out.push(LEFT_OUT);
    });
}

pub(crate) fn state_code(state: RequestState) -> u8 {
    match state {
        RequestState::Live => 0,
        RequestState::Finished => 1,
        RequestState::Abandoned => 2,
    }
}

fn decode_state(code: u8) -> Option<RequestState> {
    [RequestState::Live, RequestState::Finished, RequestState::Abandoned].get(usize::from(code)).copied()
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

/// Writes a count; `None` means unknown.
fn put_count(out: &mut Vec<u8>, count: Option<u64>) {
    put_u64(out, count.unwrap_or(u64::MAX));
}

fn count(value: u64) -> Option<u64> {
    (value != u64::MAX).then_some(value)
}
