//! One request's tool calls: which of its rows are held, and until when.

use afterbay_plugin::{FinishKind, TokenId};

use super::block::CallFault;
use super::scanner::{CallMarkers, CallScanner};
use super::tools::ToolsOf;
use crate::Vocabulary;

/// One request's progress in its text.
pub(crate) struct CallCheck {
    scanner: CallScanner,
    /// The ids of the rows that are held.
    held_ids: Vec<TokenId>,
    /// The rows that are held.
    held_rows: u32,
    /// The number of ids in `held_ids` before the block that is open.
    open_at: usize,
    /// Set while the open block is partly with the reader, because its rows were held for too long.
    has_leaked: bool,
    /// False if invalid calls are only reported: then nothing is held.
    holds: bool,
    is_done: bool,
}

/// The action on a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallAction {
    /// Nothing: the row has no part of a call.
    Pass,
    /// The row joins the held rows.
    Hold,
    /// The row and the held rows are released.
    Release,
    /// The held rows are released and the row is held.
    ReleaseAndHold,
    /// The request ends for this reason. The ids are what the reader may still get of the held rows and of this
    /// row.
    End(CallFault, Vec<TokenId>),
}

/// The result of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallResult {
    pub(crate) action: CallAction,
    /// Calls that were complete and valid.
    pub(crate) valid: u32,
    /// Set if rows of an open call were released before it was complete.
    pub(crate) leaked: bool,
    /// The format of a marker that no setting reads, at the first one of the request.
    pub(crate) unread: Option<&'static str>,
    /// The reason why a call was not checked.
    pub(crate) unchecked: Option<String>,
}

impl CallCheck {
    pub(crate) fn new(markers: &CallMarkers, from_start: bool, holds: bool) -> Self {
        Self {
            scanner: CallScanner::new(markers, from_start),
            held_ids: Vec::new(),
            held_rows: 0,
            open_at: 0,
            has_leaked: false,
            holds,
            is_done: false,
        }
    }

    /// Whether a token leaves everything as it is if it has no byte of a marker: the text is free.
    pub(crate) fn is_free(&self) -> bool {
        self.scanner.is_free() && self.held_rows == 0
    }

    /// Whether the text ends in a call or in what may become one.
    pub(crate) fn is_open(&self) -> bool {
        self.scanner.is_open()
    }

    /// Stops checking with this row. Returns its action.
    pub(crate) fn stop(&mut self, action: &CallAction) -> CallAction {
        self.is_done = true;
        let joins = matches!(action, CallAction::Hold);
        let has_held = self.held_rows > u32::from(joins)
            || matches!(action, CallAction::Release | CallAction::ReleaseAndHold);
        self.forget_held();
        if has_held { CallAction::Release } else { CallAction::Pass }
    }

    /// Checks a row. `waiting` is the number of rows that the host still holds.
    pub(crate) fn row(
        &mut self,
        given: (&CallMarkers, &Vocabulary),
        tools: ToolsOf<'_>,
        ids: &[TokenId],
        waiting: u32,
        finish: FinishKind,
    ) -> CallResult {
        let mut leaked = false;
        if waiting < self.held_rows {
            leaked = self.scanner.is_open() && !self.has_leaked;
            self.has_leaked = self.scanner.is_open();
            self.forget_held();
        }
        if self.is_done {
            let action = if self.held_rows > 0 { CallAction::Release } else { CallAction::Pass };
            self.forget_held();
            return CallResult { action, valid: 0, leaked, unread: None, unchecked: None };
        }
        let (is_last, was_open) = (finish != FinishKind::Running, self.scanner.is_open());
        let before = self.held_ids.len();
        // The index among the held ids and this row's ids.
        let mut open_at = was_open.then_some(self.open_at);
        let mut closed = self.scanner.closed();
        let mut has_closed = false;
        let mut result = Ok(());
        for (index, id) in ids.iter().enumerate() {
            result = self.scanner.token(given, tools, *id, is_last && index + 1 == ids.len());
            if closed != self.scanner.closed() {
                (closed, has_closed, open_at) = (self.scanner.closed(), true, None);
                self.has_leaked = false;
            }
            if open_at.is_none() && (self.scanner.is_open() || result.is_err()) {
                open_at = Some(before + index);
            }
            if result.is_err() {
                break;
            }
        }
        if is_last && result.is_ok() {
            result = self.scanner.end(tools, finish);
        }
        let (valid, unchecked) = (self.scanner.take_valid(), self.scanner.take_unchecked());
        let action = match result {
            Err(fault) => {
                self.is_done = true;
                let mut all = std::mem::take(&mut self.held_ids);
                all.extend_from_slice(ids);
                all.truncate(open_at.unwrap_or(0));
                CallAction::End(fault, all)
            }
            Ok(()) => self.placed(ids, open_at.filter(|_| !is_last), has_closed),
        };
        CallResult { action, valid, leaked, unread: None, unchecked }
    }

    /// The action for a row without a fault.
    fn placed(&mut self, ids: &[TokenId], open_at: Option<usize>, has_closed: bool) -> CallAction {
        let has_held = self.held_rows > 0;
        let Some(open_at) = open_at.filter(|_| self.holds && !self.has_leaked) else {
            self.forget_held();
            return if has_held { CallAction::Release } else { CallAction::Pass };
        };
        let action = match has_held && has_closed {
            true => {
                self.open_at = open_at - self.held_ids.len();
                self.forget_held_rows();
                CallAction::ReleaseAndHold
            }
            false => {
                self.open_at = open_at;
                CallAction::Hold
            }
        };
        self.held_ids.extend_from_slice(ids);
        self.held_rows += 1;
        action
    }

    fn forget_held(&mut self) {
        self.open_at = 0;
        self.forget_held_rows();
    }

    fn forget_held_rows(&mut self) {
        self.held_ids.clear();
        self.held_rows = 0;
    }
}
