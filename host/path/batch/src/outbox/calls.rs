//! The rows that are sent singly because they may be parts of a tool call.

use afterbay_text::{CallProgress, Vocabulary};
use afterbay_wire::{Batch, Finish};
use foldhash::fast::FixedState;
use hashbrown::HashMap;

/// The most requests that are followed. A stream has fewer live ones; some end without a last row.
const REQUESTS_MAX: usize = 1 << 18;

/// The requests that have sent their first row and no tool call yet, by number. Rows of all others are single, so that a request
/// that was live at a start, or was forgotten here, is read right.
#[derive(Debug, Default)]
pub(crate) struct ToolCalls {
    before: HashMap<u64, CallProgress, FixedState>,
    ids: Vec<i64>,
}

impl ToolCalls {
    /// Whether each row of the batch is sent singly. `requests` has the number of each row's request.
    pub(crate) fn single_rows(
        &mut self,
        vocabulary: &Vocabulary,
        batch: &Batch,
        requests: &[u64],
    ) -> Box<[bool]> {
        if self.before.len() + requests.len() > REQUESTS_MAX {
            self.before.clear();
        }
        let ToolCalls { before, ids } = self;
        let rows = (0..).zip(requests).zip(batch.finishes());
        let single = rows.map(|((row, request), finish)| {
            if batch.is_first(row) {
                before.insert(*request, CallProgress::default());
            }
            ids.clear();
            batch.row_ids(row, ids);
            let is_single = match before.get_mut(request) {
                // Text without its ids cannot be searched.
                Some(_) if ids.is_empty() && batch.tokens(row) > 0 => true,
                Some(progress) => progress.advance(vocabulary, ids),
                None => true,
            };
            if is_single || finish != Finish::Running {
                before.remove(request);
            }
            is_single
        });
        single.collect()
    }
}
