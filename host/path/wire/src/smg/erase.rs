//! Erases rows in a frame of SMG's wire, in place.

use super::batch::SlimRows;
use super::columns::{
    CACHED_TOKENS, COMPLETION_TOKENS, ERR_TYPES, Join, PROMPT_TOKENS, REASONING_TOKENS, REASONS, RIDS, STATUS,
};
use crate::blank::blank;
use crate::value::RawValue;

/// The columns of a row that stay: its identity, the kind of its end, and counts. Every other column is content, also one that this
/// version does not know.
const STAY: [&str; 8] =
    [RIDS, REASONS, STATUS, ERR_TYPES, PROMPT_TOKENS, COMPLETION_TOKENS, CACHED_TOKENS, REASONING_TOKENS];

/// Returns the frame with these rows overwritten. Adds columns without an entry per row to `left`.
pub(super) fn erase(from: &SlimRows, rows: &[u32], left: &mut Vec<String>) -> Vec<u8> {
    let mut bytes = from.frame.to_vec();
    let start = from.frame.as_ptr().addr();
    let mut blank_part = |part: &[u8]| blank(&mut bytes[part.as_ptr().addr() - start..][..part.len()], false);
    for (at, (name, column)) in from.layout.fields.iter().enumerate() {
        if column.join == Join::Frame || STAY.contains(&&**name) {
            continue;
        }
        let whole = from.raw(at);
        match from.packed.cells(&from.frame, at) {
            Some(cells) => {
                for row in rows {
                    if let RawValue::Packed(cell) = cells.get(*row) {
                        blank_part(cell);
                    }
                }
            }
            None if rows.len() == from.count as usize => blank_part(whole),
            None if matches!(whole, [0xc0 | 0x90]) => {}
            None => left.push(name.to_string()),
        }
    }
    bytes
}
