//! Rows that Afterbay writes itself, to end a request of which it holds no row. The scheduler may send none any more.

use super::Ledger;
use crate::{HeldRow, ReceivedTokens};
use afterbay_journal::{FrameNo, JournalRequest};
use afterbay_wire::BlankRow;

impl Ledger {
    /// Makes a row without tokens for the live request with this number, as a row that is held. `None`: no batch has shown the
    /// form of a row yet, or the request's rid or front end is not known.
    pub fn blank_row(&self, number: u64, frame: FrameNo) -> Option<(JournalRequest, HeldRow)> {
        let handle = self.numbered(number)?;
        let (rid, request) = self.request(handle)?;
        let like = self.last_batch.as_ref().filter(|_| !request.is_rid_hashed)?;
        let front_end = Some(&*request.reader.front_end).filter(|name| !name.is_empty());
        if front_end.is_none() && like.front_end(0).is_some() {
            return None;
        }
        let row = BlankRow {
            rid,
            front_end,
            prompt_tokens: request.prompt_tokens,
            completion_tokens: request.scheduler_count,
        };
        let batch = like.blank(&[row]).ok()?;
        Some((handle, HeldRow::new(batch, 0, frame, ReceivedTokens::default())))
    }
}
