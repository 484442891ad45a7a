//! Erases rows in a frame of vLLM, in place.

use super::arrays::data_spans;
use super::outputs::Outputs;
use super::write::splittable;
use crate::blank::blank;
use crate::pack::{self, PackValue};

/// The fields of a row that stay: its identity, the kind of its end, counts and times. Every other field is content, also one
/// that this version does not know.
const STAY: [&str; 7] = [
    "request_id",
    "finish_reason",
    "events",
    "trace_headers",
    "prefill_stats",
    "num_nans_in_logits",
    "spec_decode_metrics",
];

/// Returns the frame with these rows overwritten. Adds what cannot be told apart to `left`.
pub(super) fn erase(outputs: &Outputs, rows: &[u32], left: &mut Vec<String>) -> Vec<u8> {
    let frame = outputs.frame();
    let mut bytes = frame.to_vec();
    // Data in parts may be that of another row, unless every part is named once.
    let has_parts = outputs.aux_parts() > 0;
    let owns_parts = splittable(outputs).is_ok() || rows.len() == outputs.rows.len();
    if has_parts && !owns_parts {
        left.push("arrays in parts of the message".to_owned());
    }
    for row in rows.iter().filter_map(|row| outputs.rows.get(*row as usize)) {
        for span in [row.first(), row.second()] {
            let Some(PackValue::Array(len, body)) = pack::item(&frame[span]) else { continue };
            let layout = outputs.row_layout.as_ref().filter(|layout| layout.wire.len() as u64 == len);
            for (at, cell) in pack::items(body, len).enumerate() {
                // The request of a row of unknown form comes first.
                let stays = layout.map_or(at == 0, |layout| STAY.contains(&&*layout.names[at]));
                if stays {
                    continue;
                }
                if has_parts && owns_parts {
                    data_spans(outputs, cell).into_iter().for_each(|span| bytes[span].fill(0));
                }
                let start = cell.as_ptr().addr() - frame.as_ptr().addr();
                blank(&mut bytes[start..start + cell.len()], false);
            }
        }
    }
    bytes
}
