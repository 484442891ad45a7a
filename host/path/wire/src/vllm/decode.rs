//! Decodes a frame of vLLM.

use afterbay_types::parts;
use bytes::Bytes;

use super::layout::OutputsLayouts;
use super::outputs::Outputs;
use crate::batch::{Batch, EngineBatch, Unread};
use crate::bounds::MAX_FRAME_BYTES;
use crate::error::{RowsError, WireError};
use crate::frame::{Barrier, BarrierKind, DecodedFrame};

/// The last message of an engine that dies. It is no msgpack.
const ENGINE_DEAD: &str = "ENGINE_CORE_DEAD";

/// Whether the frame can only be vLLM's: it has several parts, is the engine's last message, or is an array that begins with an
/// int. SGLang's begin with the name of a class.
pub(crate) fn is_own(frame: &Bytes) -> bool {
    let is_outputs = || match frame.as_ref() {
        [0x98..=0x9f, first, ..] | [0xdc, _, _, first, ..] => matches!(first, 0x00..=0x7f | 0xcc..=0xcf),
        _ => false,
    };
    parts::is_envelope(frame) || is_outputs() || frame == ENGINE_DEAD
}

/// Decodes a frame. A frame that cannot be read becomes a barrier.
pub(crate) fn decode(frame: Bytes, layouts: &OutputsLayouts) -> DecodedFrame {
    let barrier = |kind, counted, columns: Option<Batch>| {
        DecodedFrame::Barrier(Barrier::new(kind, frame.clone(), counted, columns.map(Box::new)))
    };
    if frame == ENGINE_DEAD {
        return barrier(BarrierKind::Control { tag: ENGINE_DEAD.to_owned() }, false, None);
    }
    let read = match frame.len() > MAX_FRAME_BYTES {
        true => Err(WireError::TooLong { bytes: frame.len() }),
        false => Outputs::read(&frame, layouts),
    };
    match read {
        Ok(outputs) if outputs.rows.is_empty() => {
            let kind = match outputs.control() {
                Some(field) => BarrierKind::Control { tag: field.to_owned() },
                None => BarrierKind::Idle { kind: outputs.kind() },
            };
            barrier(kind, true, Some(outputs.into_batch()))
        }
        Ok(outputs) => match outputs.unread.first() {
            // No row can be read, so the layout is another than assumed.
            Some(&(row, name)) if outputs.unread.len() == outputs.rows.len() => {
                let error = WireError::Cell { name, row, expected: "what vLLM sends" };
                let named = outputs.has_rids().then(|| outputs.into_batch());
                barrier(BarrierKind::NotUnderstood { error }, true, named)
            }
            _ => DecodedFrame::Batch(outputs.into_batch()),
        },
        Err(error) => barrier(BarrierKind::NotUnderstood { error }, true, None),
    }
}

impl Outputs {
    pub(super) fn into_batch(mut self) -> Batch {
        let unread = std::mem::take(&mut self.unread);
        let unread = unread.into_iter().map(|(row, column)| Unread { row, column }).collect();
        let (has_text_rids, has_first) = (self.has_text_rids, self.has_first);
        let (bytes, rows) = (self.bytes().clone(), self.rows.len() as u32);
        let batch = Batch::new(bytes, rows, self).checked(unread, has_text_rids);
        if has_first { batch } else { batch.without_first_rows() }
    }
}

impl Batch {
    /// The rows. The error: the batch is another engine's.
    pub(super) fn outputs(&self) -> Result<&Outputs, RowsError> {
        self.body_of()
    }
}
