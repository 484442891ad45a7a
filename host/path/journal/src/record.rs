//! Payloads of records: columns where there are many of a kind on the path, otherwise values in the format of postcard.

use crate::format::{ByteReader, RecordHead, RecordKind, decoded};
use crate::outcome::Outcome;
use crate::plugin_component::PluginComponent;
use crate::request::{OperatorAbort, RequestState};
use crate::sink_progress::{SentFrame, SinkProgress};

mod attributes;
mod entries;
mod erased;
mod outcome;
mod rids;
mod sinks;

pub(crate) use attributes::bounded_attributes;
pub(crate) use entries::{RequestEntry, SegmentTotals, put_entries};
pub(crate) use erased::erase_outcome;
pub use outcome::as_read;
pub(crate) use outcome::put_outcome;
pub(crate) use rids::RidIndex;
pub use sinks::Taken;
pub(crate) use sinks::{Routed, apply_to_sinks, put_routed, put_sent, sink_of};

use outcome::decode_outcome;
use sinks::{decode_routed, decode_sent};

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
    Sink(SinkProgress),
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
        let mut at = ByteReader(payload);
        Some(match head.kind {
            RecordKind::FRAME => RecordBody::Frame,
            RecordKind::OUTCOME => RecordBody::Outcome(decode_outcome(&mut at, head, around)?),
            RecordKind::OPEN => RecordBody::Open { rid: decoded(payload)? },
            RecordKind::CLOSE => {
                let (state, finish) = decoded(payload)?;
                RecordBody::Close { state, finish }
            }
            RecordKind::TAKEN => RecordBody::Taken(decoded(payload)?),
            RecordKind::SENT => decode_sent(&mut at, head, around)?,
            RecordKind::SINK => RecordBody::Sink(decoded(payload)?),
            RecordKind::ROUTED => RecordBody::Routed(decode_routed(&mut at, around)?),
            RecordKind::ABORT => RecordBody::OperatorAbort(decoded(payload)?),
            RecordKind::ATTRIBUTES => RecordBody::Attributes(decoded(payload)?),
            RecordKind::PLUGIN => RecordBody::Plugin(decoded(payload)?),
            RecordKind::SKIPPED => {
                let (count, left_out) = decoded(payload)?;
                RecordBody::Skipped { count, left_out }
            }
            RecordKind::LOST => RecordBody::Lost,
            RecordKind::CARRY => RecordBody::Carry(decoded(payload)?),
            _ => RecordBody::Aside,
        })
    }
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

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Writes a count; `None` means unknown.
fn put_count(out: &mut Vec<u8>, count: Option<u64>) {
    put_u64(out, count.unwrap_or(u64::MAX));
}

fn count(value: u64) -> Option<u64> {
    (value != u64::MAX).then_some(value)
}
