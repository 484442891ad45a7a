//! An accounted batch: each row is matched with a live request.

use crate::decoded::DecodedBatch;
use crate::persisted::Persisted;
use afterbay_journal::JournalRequest;
use afterbay_wire::{Batch, FinishKind};

/// One request's part of a batch, as the ledger accounts it.
#[derive(Clone, Copy)]
pub struct Row {
    /// The request.
    pub request: JournalRequest,
    /// Tokens received with the row.
    pub tokens: u32,
    /// The request's tokens so far, including the row: the scheduler's count, or the ledger's if the row has none.
    pub tokens_so_far: u64,
    /// Whether the row has the scheduler's count.
    pub is_counted: bool,
    /// Whether, and how, the scheduler ends the request with this row.
    pub finish: FinishKind,
    /// Whether the row is the first of its request.
    pub first: bool,
    /// Whether plugins were not told of the request before.
    pub opens: bool,
    /// Whether a plugin finished the request before this row: the row is dropped and counted as swallowed.
    pub swallowed: bool,
    /// Whether the request closes with this batch unless rows of the request are held.
    pub may_close: bool,
    /// Whether no plugin can see the row: a column cannot be read, or the request is beyond the bound of live requests.
    pub unread: bool,
    /// Whether plugins are not called with the row: a swallowed or unread row, a row of a health check, or a released row of
    /// a request that has ended.
    pub hidden: bool,
}

impl Row {
    /// The request's number, for plugins and the journal.
    #[inline]
    pub fn number(&self) -> u64 {
        self.request.number().0
    }

    /// The scheduler's own count of the request's tokens, if the row has one.
    #[inline]
    pub fn completion_tokens(&self) -> Option<u64> {
        self.is_counted.then_some(self.tokens_so_far)
    }
}

/// Whether any row of a batch has a property. Stages skip a search through the rows where none has.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnyRow {
    /// Any [`Row::first`].
    pub first: bool,
    /// Any [`Row::opens`].
    pub opens: bool,
    /// Any [`Row::may_close`].
    pub may_close: bool,
    /// Any [`Row::hidden`].
    pub hidden: bool,
    /// Any [`Row::unread`].
    pub unread: bool,
    /// Whether a row must be edited without any verdict: the row is swallowed, or the count of the row's request is shifted.
    pub needs_edit: bool,
    /// Whether the request of a row skips the detokenizer.
    pub skips: bool,
}

impl AnyRow {
    /// Adds a row.
    #[inline]
    pub fn add(&mut self, row: &Row, is_shifted: bool, skips: bool) {
        self.first |= row.first;
        self.opens |= row.opens;
        self.may_close |= row.may_close;
        self.hidden |= row.hidden;
        self.needs_edit |= row.swallowed || is_shifted;
        self.skips |= skips;
    }
}

/// A batch with each row matched with a live request.
pub struct Accounted {
    persisted: Persisted,
    batch: Batch,
    rows: Vec<Row>,
    any: AnyRow,
    is_released: bool,
}

impl Accounted {
    /// Accounts a decoded batch. `rows` has one entry per row of the batch.
    pub fn new(decoded: DecodedBatch, rows: Vec<Row>, any: AnyRow) -> Accounted {
        let DecodedBatch { persisted, batch } = decoded;
        Accounted { persisted, batch, rows, any, is_released: false }
    }

    /// Accounts the held rows that leave in the frame of this release marker.
    pub fn released(marker: Persisted, batch: Batch, rows: Vec<Row>, any: AnyRow) -> Accounted {
        Accounted { persisted: marker, batch, rows, any, is_released: true }
    }

    /// The frame.
    pub fn persisted(&self) -> &Persisted {
        &self.persisted
    }

    /// The decoded rows.
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// The rows as the ledger accounts them, in the order of the batch.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Which properties at least one row has.
    pub fn any(&self) -> AnyRow {
        self.any
    }

    /// Whether the batch consists of held rows that leave in a frame of Afterbay's own.
    pub fn is_released(&self) -> bool {
        self.is_released
    }

    pub(crate) fn into_parts(self) -> (Persisted, Batch, Vec<Row>) {
        (self.persisted, self.batch, self.rows)
    }
}
