//! The tokens that were received of several requests, in one pass over their frames.

use afterbay_journal::reader::{ReadFrom, StreamReader};
use afterbay_journal::{FrameNo, ReadError};
use afterbay_wire::{DecodedFrame, Decoder, Layouts};
use std::collections::{BTreeMap, HashMap};

/// Reads the tokens of these requests from a frame on, until each has as many as are wanted. A request of which the journal lacks
/// tokens has fewer.
///
/// # Errors
/// The journal cannot be read.
pub fn received(
    stream: &StreamReader,
    layouts: &Layouts,
    first: Option<FrameNo>,
    wanted: &BTreeMap<u64, u64>,
) -> Result<HashMap<u64, Vec<i64>>, ReadError> {
    let mut found: HashMap<u64, Vec<i64>> = wanted.keys().map(|number| (*number, Vec::new())).collect();
    let mut missing: u64 = wanted.values().sum();
    let mut decoder = Decoder::new(layouts.clone());
    for frame in stream.frames(first.map_or(ReadFrom::Start, ReadFrom::Frame))? {
        if missing == 0 {
            break;
        }
        let (frame, Some(outcome)) = frame? else { continue };
        let rows = (0..).zip(&*outcome.requests).zip(&*outcome.tokens);
        let rows: Vec<_> = rows
            .filter(|((_, number), tokens)| **tokens > 0 && wanted.contains_key(&number.0))
            .map(|((row, number), tokens)| (row, number.0, u64::from(*tokens)))
            .collect();
        if rows.is_empty() {
            continue;
        }
        let DecodedFrame::Batch(batch) = decoder.decode(frame.bytes.into()) else { continue };
        for (row, number, tokens) in rows {
            let Some(ids) = found.get_mut(&number) else { continue };
            let before = ids.len();
            batch.row_ids(row, ids);
            // Other ids than were accounted are none that can be sent.
            if (ids.len() - before) as u64 != tokens {
                ids.truncate(before);
            }
            missing = missing.saturating_sub(tokens);
        }
    }
    Ok(found)
}
