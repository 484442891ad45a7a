//! Decodes a frame of SMG's wire.

use std::sync::Arc;

use bytes::Bytes;

use super::batch::SlimRows;
use super::columns::{OUTPUT_IDS, REASONS, RIDS, SlimLayouts, has_rows};
use crate::batch::{Batch, Unread};
use crate::bounds::{MAX_FRAME_BYTES, MAX_TAG_BYTES};
use crate::error::WireError;
use crate::frame::{Barrier, BarrierKind, DecodedFrame};
use crate::kind::BatchKind;
use crate::pack::{self, INT, PackValue, STR, TYPES};
use crate::packed::{Packed, check_rest, tagged};
use crate::value::RawValue;

/// The last message of a scheduler that ends. It is no msgpack.
const ENGINE_DEAD: &str = "ENGINE_CORE_DEAD";
/// The class of an answer to a control call.
const REPLY: &str = "ControlReplySlim";

/// Whether the frame can only be SMG's: it names a class of its wire.
pub(crate) fn is_own(frame: &[u8]) -> bool {
    class(frame).is_some_and(|class| has_rows(class) || class == REPLY)
}

/// The class that the frame names.
fn class(frame: &[u8]) -> Option<&str> {
    tagged(frame).ok().flatten().map(|head| head.tag)
}

/// Decodes a frame. A frame that cannot be read becomes a barrier.
pub(crate) fn decode(frame: Bytes, layouts: &SlimLayouts) -> DecodedFrame {
    let barrier = |kind, counted, rows: Option<SlimRows>| {
        let rows = rows.map(|rows| Box::new(rows.into_batch(Vec::new(), false)));
        DecodedFrame::Barrier(Barrier::new(kind, frame.clone(), counted, rows))
    };
    if frame == ENGINE_DEAD {
        return barrier(BarrierKind::Control { tag: ENGINE_DEAD.to_owned() }, false, None);
    }
    let rows = match read(&frame, layouts) {
        Ok(Ok(rows)) => rows,
        Ok(Err(tag)) => return barrier(BarrierKind::Control { tag }, false, None),
        Err(error) => {
            let counted = class(&frame).is_some_and(has_rows);
            return barrier(BarrierKind::NotUnderstood { error }, counted, None);
        }
    };
    if rows.count == 0 {
        return barrier(BarrierKind::Idle { kind: rows.layout.kind }, true, Some(rows));
    }
    match check(&rows) {
        Ok(unread) if unread.len() < rows.count as usize => {
            let has_text_rids = rows.has_text_rids();
            DecodedFrame::Batch(rows.into_batch(unread, has_text_rids))
        }
        checked => {
            let wrong = |name| WireError::Cell { name, row: 0, expected: "what SMG sends" };
            let error = checked.map_or_else(|error| error, |unread| wrong(unread[0].column));
            let named = Some(rows).filter(|rows| rows.has_text_rids());
            barrier(BarrierKind::NotUnderstood { error }, true, named)
        }
    }
}

/// Reads a frame that this crate wrote.
pub(super) fn read_again(frame: Bytes, layouts: &SlimLayouts) -> Result<Batch, WireError> {
    match read(&frame, layouts)? {
        Ok(rows) => {
            let (unread, has_text_rids) = (check(&rows)?, rows.has_text_rids());
            Ok(rows.into_batch(unread, has_text_rids))
        }
        Err(tag) => Err(WireError::UnknownLayout { tag, elements: 0 }),
    }
}

/// Reads the positions of the columns. The inner error: a message without rows, by its class.
fn read(frame: &Bytes, layouts: &SlimLayouts) -> Result<Result<SlimRows, String>, WireError> {
    if frame.len() > MAX_FRAME_BYTES {
        return Err(WireError::TooLong { bytes: frame.len() });
    }
    let not_a_frame = || WireError::NotAFrame { head: frame.iter().copied().take(4).collect() };
    let head = tagged(frame)?.ok_or_else(not_a_frame)?;
    let fields = head.elements - 1;
    if !has_rows(head.tag) {
        check_rest(frame, head.body, fields)?;
        return Ok(Err(head.tag.chars().take(MAX_TAG_BYTES / 4).collect()));
    }
    let Some(layout) = layouts.of(head.tag, fields) else {
        check_rest(frame, head.body, fields)?;
        return Err(WireError::UnknownLayout { tag: head.tag.to_owned(), elements: head.elements });
    };
    let (packed, _) = Packed::read(frame, layout.fields.len(), head.body)?;
    Ok(SlimRows::new(frame.clone(), Arc::clone(layout), layouts.clone(), packed).ok_or(head.tag.to_owned()))
}

/// Finds the rows that cannot be read. The error: a column that identifies rows has not one cell per row.
fn check(rows: &SlimRows) -> Result<Vec<Unread>, WireError> {
    let mut columns = vec![RIDS, REASONS];
    columns.extend((rows.layout.kind == BatchKind::TokenId).then_some(OUTPUT_IDS));
    let mut unread = Vec::new();
    for name in columns {
        let is_right = |cell| if name == OUTPUT_IDS { are_ids(cell) } else { cell.types() == STR };
        let cells =
            rows.cells(name).ok_or(WireError::Column { name, expected: "a list with an entry a row" })?;
        let wrong = (0..).zip(cells.iter(rows.count)).filter(|(_, cell)| !is_right(*cell));
        unread.extend(wrong.map(|(row, _)| Unread { row, column: name }));
    }
    unread.sort_by_key(|unread| unread.row);
    unread.dedup_by_key(|unread| unread.row);
    Ok(unread)
}

/// Whether the cell is a list of ints.
fn are_ids(cell: RawValue<'_>) -> bool {
    let RawValue::Packed(bytes) = cell else { return false };
    let Some(PackValue::Array(count, body)) = pack::item(bytes) else { return false };
    pack::items(body, count).all(|id| TYPES[usize::from(id[0])] == INT)
}
