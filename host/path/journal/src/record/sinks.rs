//! Payloads of the records about sinks.

use serde::{Deserialize, Serialize};

use super::{RecordBody, put_column, put_u32, put_u64};
use crate::bounds::SINKS_MAX;
use crate::format::{ByteReader, RecordHead, RecordKind, put_text, record, widen};
use crate::position::{FrameNo, RequestNo};
use crate::sink_progress::{Credit, SentFrame, SinkContent, SinkProgress};

/// The frames that a sink has taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// Name of the sink.
    pub sink: String,
    /// Last frame up to which everything is taken.
    pub through: FrameNo,
    /// The reader's credit then.
    pub credit: Option<Credit>,
    /// Sequence number of the last taken frame.
    pub sequence: u64,
    /// Whether the frames sent after `sequence` never arrived.
    pub void: bool,
    /// Whether the sink was removed.
    pub forgotten: bool,
    /// Time when `sequence` was found to be taken, unix nanoseconds. 0: unknown.
    pub unix_ns: u64,
}

impl Taken {
    pub(crate) fn by(sink: &SinkProgress) -> Taken {
        Taken {
            sink: sink.name().to_owned(),
            through: sink.through(),
            credit: sink.credit(),
            sequence: sink.sequence(),
            void: false,
            forgotten: false,
            unix_ns: sink.taken_unix_ns(),
        }
    }

    /// Whether the frames sent after `sequence` are no longer on their way: their rows are sent again, or the sink was removed.
    #[must_use]
    pub fn is_void(&self) -> bool {
        self.void || self.forgotten
    }

    pub(crate) fn apply(&self, sink: &mut SinkProgress) {
        sink.pass(self.through);
        sink.take_at(self.sequence, self.unix_ns);
        sink.set_credit(self.credit);
        if self.void {
            sink.void();
        }
    }
}

/// Sink of each row of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Routed {
    pub sinks: Vec<String>,
    /// Request of each row, and the index of its sink.
    pub rows: Vec<(RequestNo, u8)>,
}

pub(crate) fn put_sent(
    out: &mut Vec<u8>,
    sink: &str,
    sequence: u64,
    content: &SinkContent<'_>,
    unix_ns: u64,
) {
    record(out, RecordKind::SENT, sequence, unix_ns, |out| {
        put_text(out, sink);
        match content {
            SinkContent::Whole(frame) => {
                out.push(0);
                put_u64(out, frame.0);
            }
            SinkContent::Rows(rows) => {
                out.push(1);
                let base = rows.iter().map(|(_, frame)| frame.0).min().unwrap_or_default();
                put_u64(out, base);
                put_u32(out, rows.len() as u32);
                put_column(out, rows.iter().map(|(request, _)| request.0 as u32));
                // A row too far ahead is sent again after a restart. Nothing is lost.
                let after = |frame: u64| u32::try_from(frame - base).unwrap_or(u32::MAX);
                put_column(out, rows.iter().map(|(_, frame)| after(frame.0)));
            }
        }
    });
}

/// Adds ROUTED: one target (an index into `sinks`) for each request.
pub(crate) fn put_routed(
    out: &mut Vec<u8>,
    frame: FrameNo,
    sinks: &[String],
    requests: &[u64],
    targets: &[u32],
) {
    record(out, RecordKind::ROUTED, frame.0, 0, |out| {
        let rows = requests.len().min(targets.len());
        out.push(sinks.len() as u8);
        sinks.iter().for_each(|sink| put_text(out, sink));
        put_u32(out, rows as u32);
        put_column(out, requests.iter().take(rows).map(|request| *request as u32));
        out.extend(targets.iter().take(rows).map(|target| *target as u8));
    });
}

pub(super) fn decode_routed(at: &mut ByteReader<'_>, around: u64) -> Option<Routed> {
    let sinks = (0..at.u8()?).map(|_| at.text()).collect::<Option<Vec<_>>>()?;
    let count = at.count(5)?;
    let (requests, targets) = (at.take(count * 4)?.as_chunks().0, at.take(count)?);
    let request = |request: &[u8; 4]| RequestNo(widen(u32::from_le_bytes(*request), around));
    let rows = requests.iter().map(request).zip(targets.iter().copied()).collect();
    Some(Routed { sinks, rows })
}

pub(super) fn decode_sent(at: &mut ByteReader<'_>, head: &RecordHead, around: u64) -> Option<RecordBody> {
    let sink = at.text()?;
    let (rows, base) = (at.u8()?, at.u64()?);
    let frame = |content| SentFrame { sequence: head.number, content, unix_ns: head.time };
    if rows == 0 {
        return Some(RecordBody::Sent { sink, frame: frame(SinkContent::Whole(FrameNo(base))) });
    }
    let count = at.count(8)?;
    let (requests, after) = (at.take(count * 4)?.as_chunks().0, at.take(count * 4)?.as_chunks().0);
    let rows = requests.iter().zip(after).map(|(request, after)| {
        let request = RequestNo(widen(u32::from_le_bytes(*request), around));
        (request, FrameNo(base.saturating_add(u32::from_le_bytes(*after).into())))
    });
    Some(RecordBody::Sent { sink, frame: frame(SinkContent::Rows(rows.collect())) })
}

/// Applies a record about a sink.
pub(crate) fn apply_to_sinks(sinks: &mut Vec<SinkProgress>, body: &RecordBody) {
    let name = match body {
        RecordBody::Taken(taken) if taken.forgotten => return sinks.retain(|sink| sink.name() != taken.sink),
        RecordBody::Taken(taken) => &taken.sink,
        RecordBody::Sent { sink, .. } => sink,
        RecordBody::Sink(progress) => progress.name(),
        _ => return,
    };
    let Some(sink) = sink_of(sinks, name) else { return };
    match body {
        RecordBody::Taken(taken) => taken.apply(sink),
        RecordBody::Sent { frame, .. } => sink.send(frame.clone()),
        RecordBody::Sink(progress) => sink.clone_from(progress),
        _ => {}
    }
}

/// Returns the sink of this name. Adds it if there is room.
pub(crate) fn sink_of<'a>(sinks: &'a mut Vec<SinkProgress>, name: &str) -> Option<&'a mut SinkProgress> {
    match sinks.iter().position(|sink| sink.name() == name) {
        Some(at) => sinks.get_mut(at),
        None if sinks.len() < SINKS_MAX => {
            sinks.push(SinkProgress::new(name));
            sinks.last_mut()
        }
        None => None,
    }
}
