//! The tokens that were received of several requests, in one pass over their frames.

use afterbay_journal::reader::{ReadFrom, StreamReader};
use afterbay_journal::{FrameNo, Passage, ReadError};
use afterbay_wire::{DecodedFrame, Decoder, Layouts};
use std::collections::HashMap;

/// The tokens that were received.
#[derive(Debug, Default)]
pub struct Received {
    /// By the number of the request.
    pub ids: HashMap<u64, Vec<i64>>,
    /// The last frame that was not understood: nobody knows the requests whose tokens it has.
    pub not_understood: Option<FrameNo>,
}

/// Reads the tokens of these requests, by number, from a frame on. A request of which the journal lacks tokens has fewer.
///
/// # Errors
/// The journal cannot be read.
pub fn received(
    stream: &StreamReader,
    layouts: &Layouts,
    first: Option<FrameNo>,
    requests: &[u64],
) -> Result<Received, ReadError> {
    let ids = requests.iter().map(|number| (*number, Vec::new())).collect();
    let mut found = Received { ids, not_understood: None };
    let mut decoder = Decoder::new(layouts.clone());
    for frame in stream.frames(first.map_or(ReadFrom::Start, ReadFrom::Frame))? {
        let (frame, Some(outcome)) = frame? else { continue };
        if let Passage::NotUnderstood(_) = outcome.passage {
            found.not_understood = Some(outcome.frame);
        }
        let rows = (0..).zip(&*outcome.requests).zip(&*outcome.tokens);
        let rows: Vec<_> = rows
            .filter(|((_, number), tokens)| **tokens > 0 && found.ids.contains_key(&number.0))
            .map(|((row, number), tokens)| (row, number.0, u64::from(*tokens)))
            .collect();
        if rows.is_empty() {
            continue;
        }
        let DecodedFrame::Batch(batch) = decoder.decode(frame.bytes.into()) else { continue };
        for (row, number, tokens) in rows {
            let Some(ids) = found.ids.get_mut(&number) else { continue };
            let before = ids.len();
            batch.row_ids(row, ids);
            // Other ids than were accounted are none that can be sent.
            if (ids.len() - before) as u64 != tokens {
                ids.truncate(before);
            }
        }
    }
    Ok(found)
}
