//! A batch whose rows are accounted.

use crate::persisted::Persisted;
use crate::tokens::ReceivedTokens;
use afterbay_runtime::FinishKind;
use afterbay_wire::Batch;

/// A row that was accounted.
#[derive(Clone, Copy)]
pub struct Row {
    pub slot: RequestSlot,
    /// The request's number, as plugins and the journal know it.
    pub number: u64,
    pub tokens: u32,
    pub completion_tokens: Option<u64>,
    pub finish: FinishKind,
    /// The request began with this row.
    pub first: bool,
    /// It belongs to a request that a plugin has finished.
    pub swallowed: bool,
    /// Its request is to be looked at when the batch is settled: this is its last row, or the one before was.
    pub ends: bool,
    /// No plugin can be shown it: it cannot be read, or its request has no place among those that live.
    pub unread: bool,
    /// Not shown to plugins: swallowed, unread, a health check's, or one that waited and whose request has ended.
    pub unseen: bool,
}

impl Row {
    /// What came, if it goes on as it is.
    pub fn came(&self) -> ReceivedTokens {
        ReceivedTokens::row(self.tokens)
    }
}

/// What some row of a batch is: where none is, rows are not looked through for it.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnyRow {
    /// [`Row::first`].
    pub first: bool,
    /// [`Row::ends`].
    pub ends: bool,
    /// [`Row::unseen`].
    pub unseen: bool,
    /// [`Row::unread`].
    pub unread: bool,
    /// It needs an edit whatever the plugins say: its request's count is shifted, or it is swallowed.
    pub needs_edit: bool,
    /// Its request skips the detokenizer.
    pub skips: bool,
}

impl AnyRow {
    /// One more row.
    #[inline]
    pub fn count(&mut self, row: &Row, is_shifted: bool, skips: bool) {
        self.first |= row.first;
        self.ends |= row.ends;
        self.unseen |= row.unseen;
        self.needs_edit |= row.swallowed || is_shifted;
        self.skips |= skips;
    }
}

/// A batch whose rows are accounted.
pub struct Accounted {
    pub persisted: Persisted,
    pub batch: Batch,
    pub rows: Vec<Row>,
    pub any: AnyRow,
    /// It is a frame of Afterbay's own: rows that had waited and go on by themselves.
    pub is_released: bool,
}

/// Where a live request stands in the table. Used again after the request has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestSlot(pub u32);
