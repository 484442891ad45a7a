//! Rows that Afterbay writes itself, to end a request of which it holds no row. The scheduler may send none any more.

use super::{Ledger, Request, StoredRecord};
use crate::{HeldRow, ReaderKey, ReceivedTokens};
use afterbay_journal::{FrameNo, JournalRequest};
use afterbay_wire::BlankRow;
use std::borrow::Cow;

impl Ledger {
    /// Makes a row without tokens for the live request with this number, as a row that is held. `None`: no batch has shown the
    /// form of a row yet, or the request's rid or front end is not known.
    pub fn blank_row(&self, number: u64, frame: FrameNo) -> Option<(JournalRequest, HeldRow)> {
        let handle = self.numbered(number)?;
        let (rid, request) = self.request(handle)?;
        let like = self.last_batch.as_ref().filter(|_| !request.is_rid_hashed)?;
        let front_end = self.front_end(request);
        if front_end.is_empty() && like.front_end(0).is_some() {
            return None;
        }
        let row = BlankRow {
            rid,
            front_end: Some(&*front_end).filter(|name| !name.is_empty()),
            prompt_tokens: request.prompt_tokens,
            completion_tokens: request.scheduler_count,
        };
        let batch = like.blank(&[row]).ok()?;
        Some((handle, HeldRow::new(batch, 0, frame, ReceivedTokens::default())))
    }

    /// The front end of a request. After a restart, the journal has it of a request that has no row.
    fn front_end<'r>(&self, request: &'r Request) -> Cow<'r, str> {
        if request.reader.key.is_some() {
            return (&*request.reader.front_end).into();
        }
        let record = self.record_of(request.number()).as_ref().and_then(StoredRecord::read);
        record.map_or(Cow::default(), |record| ReaderKey::of_record(&record).front_end.into_string().into())
    }
}
