//! A row that a plugin holds, and a row with which held rows are released.

use crate::tokens::ReceivedTokens;
use afterbay_events::{HoldEnd, Name};
use afterbay_journal::FrameNo;
use afterbay_wire::{Batch, BatchKind, BatchPart, Edit, Finish};
use foldhash::fast::FixedState;
use std::collections::HashMap;

/// A held row, or several held rows of one request joined into one row.
#[derive(Clone, Debug)]
pub struct HeldRow {
    /// The batch that has the row: the received one, which the held rows of a frame share, or one of the row alone if the row
    /// was changed. The row's token count is the scheduler's, also where plugins have changed the tokens.
    pub(crate) batch: Batch,
    /// The index of the row in the batch.
    pub(crate) row: u32,
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
    /// Holds a row of `batch`.
    pub fn new(batch: Batch, row: u32, frame: FrameNo, received: ReceivedTokens) -> HeldRow {
        let tokens = batch.tokens(row);
        HeldRow { batch, row, frame, tokens, received, is_joined: false, is_whole: true }
    }

    /// The kind of the row's batch.
    pub fn kind(&self) -> BatchKind {
        self.batch.kind()
    }

    /// Whether and why the request ends with this row.
    pub fn finish(&self) -> Finish<'_> {
        self.batch.finish(self.row)
    }

    /// Whether the request ends with this row.
    pub fn is_last(&self) -> bool {
        self.finish() != Finish::Running
    }

    /// The scheduler's count of the request's tokens so far, if the engine counts.
    pub fn completion_tokens(&self) -> Option<u64> {
        self.batch.completion_tokens(self.row)
    }

    /// The batch that has the row, and the row in it.
    pub fn batch_row(&self) -> (&Batch, u32) {
        (&self.batch, self.row)
    }

    /// Appends the row's ids.
    pub fn ids(&self, out: &mut Vec<i64>) {
        self.batch.row_ids(self.row, out);
    }

    /// The row's text, if its kind has text.
    pub fn text(&self) -> Option<&str> {
        self.batch.text(self.row)
    }

    /// Edits the row. An error leaves the row as it was; its text is for the operator.
    pub fn edit(&mut self, edit: Edit, received: ReceivedTokens) -> Result<(), String> {
        if edit == Edit::new(0) {
            return Ok(());
        }
        let edited = self.detached()?.batch.edit(&[edit]).map_err(|error| error.to_string())?;
        (self.batch, self.row) = (edited.ok_or("no row is left after the edit")?, 0);
        (self.tokens, self.received) = (self.batch.tokens(0), received);
        Ok(())
    }

    /// Joins at least one row of a request, in order. The error's text is for the operator.
    pub fn join(rows: &[HeldRow]) -> Result<HeldRow, String> {
        if let [row] = rows {
            return Ok(row.clone());
        }
        // Each row in a batch of its own: what else the frames say, such as an engine's answer, may be in no joined frame.
        let own = rows.iter().map(HeldRow::detached).collect::<Result<Vec<_>, _>>()?;
        let parts: Vec<BatchPart<'_>> = own.iter().map(|row| BatchPart::from(&row.batch)).collect();
        Ok(HeldRow::joined(rows, Batch::join(&parts).map_err(|error| error.to_string())?, 0))
    }

    /// The row in a batch of its own.
    pub(crate) fn detached(&self) -> Result<HeldRow, String> {
        let batch = self.batch.detach(&[self.row]).map_err(|error| error.to_string())?;
        Ok(HeldRow { batch, row: 0, ..self.clone() })
    }

    /// The row of `batch` that `rows` were joined into.
    fn joined(rows: &[HeldRow], batch: Batch, row: u32) -> HeldRow {
        let received = rows.iter().fold(ReceivedTokens::default(), |sum, row| sum.plus(row.received));
        let frame = rows.first().map_or(FrameNo(0), |row| row.frame);
        let is_joined = rows.len() > 1 || rows.iter().any(|row| row.is_joined);
        HeldRow { is_joined, ..HeldRow::new(batch, row, frame, received) }
    }

    /// [Joins](HeldRow::join) the rows of each request, all into one batch. The rows of the batch stand in the order of the requests'
    /// first rows. The error: a row cannot be joined, or the rows cannot share a batch.
    pub fn join_all(requests: &[&[HeldRow]]) -> Result<Vec<HeldRow>, String> {
        // The rows by frame, and those of one frame by batch, numbered by its first row here: addresses differ between runs.
        let mut batches = HashMap::with_hasher(FixedState::default());
        let mut rows = Vec::new();
        for (request, of_request) in requests.iter().enumerate() {
            for (at, row) in of_request.iter().enumerate() {
                let next = batches.len();
                let batch = *batches.entry(row.batch.address()).or_insert(next);
                rows.push(((row.frame, batch, row.row), request, at));
            }
        }
        rows.sort_unstable();
        let mut parts: Vec<(&Batch, Vec<u32>)> = Vec::new();
        // The rows of each request so far, and its place in the batch.
        let mut places = vec![(0, 0); requests.len()];
        let mut joined = 0;
        let mut last = None;
        for ((_, batch, row), request, at) in rows {
            let is_next = last.replace(batch) == Some(batch);
            let (so_far, place) = &mut places[request];
            if at != *so_far {
                return Err("rows are not held in the order of their frames".to_owned());
            }
            if at == 0 {
                *place = joined;
                joined += 1;
            }
            *so_far += 1;
            match parts.last_mut() {
                Some((_, rows)) if is_next => rows.push(row),
                _ => parts.push((&requests[request][at].batch, vec![row])),
            }
        }
        let parts = parts.iter().map(|(batch, rows)| BatchPart { batch, rows: Some(rows) });
        let batch = Batch::join_detached(&parts.collect::<Vec<_>>()).map_err(|error| error.to_string())?;
        if batch.rows() != joined {
            return Err("two requests have one rid".to_owned());
        }
        let all = requests.iter().zip(places);
        Ok(all.map(|(rows, (_, place))| HeldRow::joined(rows, batch.clone(), place)).collect())
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
