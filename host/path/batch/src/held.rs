//! A row that a plugin holds, and a row with which held rows are released.

use crate::tokens::ReceivedTokens;
use afterbay_events::{HoldEnd, Name};
use afterbay_journal::FrameNo;
use afterbay_wire::{Batch, BatchPart, Edit, Finish};

/// A held row, or several held rows of one request joined into one row.
#[derive(Debug)]
pub struct HeldRow {
    /// A batch of one row. The row's token count is the scheduler's, also where plugins have changed the tokens.
    pub batch: Batch,
    /// The frame that brought the row. For joined rows, the first frame.
    pub frame: FrameNo,
    /// Tokens in the row now.
    pub tokens: u32,
    /// Tokens received for the row.
    pub received: ReceivedTokens,
    /// Whether the row was joined of several: in front of a detokenizer such a row must end where the text is whole.
    pub is_joined: bool,
    /// Whether the request's text is whole after the row.
    pub is_whole: bool,
}

impl HeldRow {
    /// Holds the only row of `batch`.
    pub fn new(batch: Batch, frame: FrameNo, received: ReceivedTokens) -> HeldRow {
        let tokens = batch.tokens(0);
        HeldRow { batch, frame, tokens, received, is_joined: false, is_whole: true }
    }

    /// Whether the request ends with this row.
    pub fn is_last(&self) -> bool {
        !matches!(self.batch.finish(0), Finish::Running)
    }

    /// Edits the row. An error leaves the row as it was; its text is for the operator.
    pub fn edit(&mut self, edit: Edit, received: ReceivedTokens) -> Result<(), String> {
        if edit == Edit::new(0) {
            return Ok(());
        }
        let edited = self.batch.edit(&[edit]).map_err(|error| error.to_string())?;
        self.batch = edited.ok_or("no row is left after the edit")?;
        (self.tokens, self.received) = (self.batch.tokens(0), received);
        Ok(())
    }

    /// Joins at least one row, in order. The error's text is for the operator.
    pub fn join<'a>(rows: impl IntoIterator<Item = &'a HeldRow>) -> Result<HeldRow, String> {
        let rows: Vec<&HeldRow> = rows.into_iter().collect();
        let parts: Vec<BatchPart<'_>> = rows.iter().map(|row| BatchPart::from(&row.batch)).collect();
        let batch = Batch::join(&parts).map_err(|error| error.to_string())?;
        let received = rows.iter().fold(ReceivedTokens::default(), |sum, row| sum.plus(row.received));
        let frame = rows.first().map_or(FrameNo(0), |row| row.frame);
        let is_joined = rows.len() > 1 || rows.iter().any(|row| row.is_joined);
        Ok(HeldRow { is_joined, ..HeldRow::new(batch, frame, received) })
    }
}

/// A row of a batch that is sent with the held rows of its request joined to it.
pub struct ReleasedRow {
    /// Index of the row in the batch.
    pub row: u32,
    /// The held rows and the row itself, joined.
    pub held: HeldRow,
    /// Whether the batch contains the joined row already, because the batch consists of released rows only.
    pub in_place: bool,
    /// The last plugin that held a part of the row.
    pub plugin: Name,
    /// Why the held rows are released.
    pub why: HoldEnd,
}

/// Why held rows are released, as the journal records it.
pub fn hold_end_words(why: HoldEnd) -> &'static str {
    match why {
        HoldEnd::Verdict => "",
        HoldEnd::Time => "time limit reached",
        HoldEnd::Last => "last row of the request",
        HoldEnd::Instance => "plugin instance replaced",
        HoldEnd::Room => "bound of held rows reached",
        HoldEnd::Columns => "the rows cannot be joined",
        HoldEnd::Start => "held before the last start or panic",
        HoldEnd::Stop => "the stream stops",
        HoldEnd::Call => "a call about the request failed",
    }
}
