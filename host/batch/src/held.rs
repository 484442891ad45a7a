//! A row that a plugin holds, and a row with which held rows go on.

use crate::tokens::ReceivedTokens;
use afterbay_events::{HoldEnd, Name};
use afterbay_journal::FrameNo;
use afterbay_wire::{Batch, BatchPart, Edit};

/// A row that waits, or several as one.
#[derive(Debug)]
pub struct HeldRow {
    /// Of one row. Its count is the scheduler's, whatever plugins have made of its tokens.
    pub batch: Batch,
    /// The frame it came in; of several the first.
    pub frame: FrameNo,
    /// Tokens that it has.
    pub tokens: u32,
    pub came: ReceivedTokens,
    /// It is made of several: before a detokenizer it must end where the text is whole.
    pub is_made: bool,
    /// The text is whole after it.
    pub is_whole: bool,
}

impl HeldRow {
    pub fn new(batch: Batch, frame: FrameNo, came: ReceivedTokens) -> HeldRow {
        let tokens = batch.tokens(0);
        HeldRow { batch, frame, tokens, came, is_made: false, is_whole: true }
    }

    /// Does this to it; where it fails nothing is done. The error is for people.
    pub fn edit(&mut self, edit: Edit, came: ReceivedTokens) -> Result<(), String> {
        if edit == Edit::new(0) {
            return Ok(());
        }
        let edited = self.batch.edit(&[edit]).map_err(|error| error.to_string())?;
        self.batch = edited.ok_or("nothing is left of it")?;
        (self.tokens, self.came) = (self.batch.tokens(0), came);
        Ok(())
    }

    /// Several as one, in order; there is at least one. The error is for people.
    pub fn join<'a>(rows: impl IntoIterator<Item = &'a HeldRow>) -> Result<HeldRow, String> {
        let rows: Vec<&HeldRow> = rows.into_iter().collect();
        let parts: Vec<BatchPart<'_>> = rows.iter().map(|row| BatchPart::from(&row.batch)).collect();
        let batch = Batch::join(&parts).map_err(|error| error.to_string())?;
        let came = rows.iter().fold(ReceivedTokens::default(), |sum, row| sum.and(row.came));
        let frame = rows.first().map_or(FrameNo(0), |row| row.frame);
        let is_made = rows.len() > 1 || rows.iter().any(|row| row.is_made);
        Ok(HeldRow { is_made, ..HeldRow::new(batch, frame, came) })
    }
}

/// What stands in the place of a row.
pub struct ReleasedRow {
    pub row: u32,
    pub held: HeldRow,
    /// The frame has it there already: it is one of Afterbay's own.
    pub in_place: bool,
    /// The last that held some of it.
    pub plugin: Name,
    /// Why it goes on.
    pub why: HoldEnd,
}
