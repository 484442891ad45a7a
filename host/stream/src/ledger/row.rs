//! A batch whose rows are accounted.

use crate::hold::Came;
use crate::keep::Kept;
use crate::requests::Slot;
use afterbay_runtime::FinishKind;
use afterbay_wire::Batch;

/// A row that was accounted.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) slot: Slot,
    /// The request's number, as plugins and the journal know it.
    pub(crate) number: u64,
    pub(crate) tokens: u32,
    pub(crate) completion_tokens: Option<u64>,
    pub(crate) finish: FinishKind,
    /// The request began with this row.
    pub(crate) first: bool,
    /// It belongs to a request that a plugin has finished.
    pub(crate) swallowed: bool,
    /// Its request is to be looked at when the batch is settled: this is its last row, or the one before was.
    pub(super) ends: bool,
    /// No plugin can be shown it: it cannot be read, or its request has no place among those that live.
    pub(crate) unread: bool,
    /// Not shown to plugins: swallowed, unread, a health check's, or one that waited and whose request has ended.
    pub(crate) unseen: bool,
}

impl Row {
    /// What came, if it goes on as it is.
    pub(super) fn came(&self) -> Came {
        Came::row(self.tokens)
    }
}

/// What some row of a batch is: where none is, rows are not looked through for it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Any {
    /// [`Row::first`].
    pub(crate) first: bool,
    /// [`Row::ends`].
    pub(crate) ends: bool,
    /// [`Row::unseen`].
    pub(crate) unseen: bool,
    /// [`Row::unread`].
    pub(crate) unread: bool,
    /// It needs an edit whatever the plugins say: its request's count is shifted, or it is swallowed.
    pub(super) needs_edit: bool,
    /// Its request skips the detokenizer.
    pub(super) skips: bool,
}

impl Any {
    /// One more row.
    #[inline]
    pub(super) fn count(&mut self, row: &Row, is_shifted: bool, skips: bool) {
        self.first |= row.first;
        self.ends |= row.ends;
        self.unseen |= row.unseen;
        self.needs_edit |= row.swallowed || is_shifted;
        self.skips |= skips;
    }
}

/// A batch whose rows are accounted.
pub(crate) struct Accounted {
    pub(crate) kept: Kept,
    pub(crate) batch: Batch,
    pub(crate) rows: Vec<Row>,
    pub(crate) any: Any,
    /// It is a frame of Afterbay's own: rows that had waited and go on by themselves.
    pub(crate) is_released: bool,
}
