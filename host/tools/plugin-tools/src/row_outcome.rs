//! The outcome of a row that a plugin was shown: its verdict, and what goes on of the row.

use crate::row::Row;
use afterbay_runtime::{Action, Ending, FinishKind, FinishReason, Replacement, TokenId};
use std::borrow::Cow;

/// The outcome of a row.
#[derive(Debug)]
pub(crate) enum RowOutcome {
    /// There was no verdict, or a fault: the row goes on unchanged.
    AsReceived,
    /// The plugin ended the request earlier, so it did not see the row, and the row is dropped.
    Swallowed,
    Verdict(Action),
    /// The row is held, by this verdict or behind other held rows of its request.
    Held(Option<Action>),
    /// The held rows go on in this row, by this verdict or because it is the last row of the request.
    Released {
        by: Option<Action>,
        ids: Vec<TokenId>,
        text: Option<String>,
    },
}

impl RowOutcome {
    /// Whether the plugin changed the row, or a hold did.
    pub(crate) fn is_changed(&self) -> bool {
        !matches!(self, RowOutcome::AsReceived | RowOutcome::Swallowed)
    }

    /// The plugin's verdict on the row.
    pub(crate) fn verdict(&self) -> Option<&Action> {
        match self {
            RowOutcome::AsReceived | RowOutcome::Swallowed => None,
            RowOutcome::Verdict(action) => Some(action),
            RowOutcome::Held(by) | RowOutcome::Released { by, .. } => by.as_ref(),
        }
    }
}

/// Whether this verdict ends the request.
pub(crate) fn ends(action: &Action) -> bool {
    matches!(action, Action::Finish(_))
}

/// The finish reason that the reader of a request sees.
fn kind(reason: &FinishReason) -> FinishKind {
    match reason {
        FinishReason::Stop(_) => FinishKind::Stop,
        FinishReason::Length => FinishKind::Length,
        FinishReason::Abort(_) | FinishReason::Error(_) => FinishKind::Abort,
    }
}

/// The content of a row that goes on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct After<'r> {
    pub(crate) ids: Cow<'r, [TokenId]>,
    pub(crate) text: Option<Cow<'r, str>>,
    pub(crate) finish: FinishKind,
}

/// The content that goes on of a row; `None` if the row is swallowed or held.
pub(crate) fn after<'r>(row: &'r Row, outcome: &'r RowOutcome) -> Option<After<'r>> {
    let as_it_came = After {
        ids: Cow::Borrowed(&row.ids),
        text: row.text.as_deref().map(Cow::Borrowed),
        finish: row.values.finished,
    };
    let action = match outcome {
        RowOutcome::AsReceived => return Some(as_it_came),
        RowOutcome::Swallowed | RowOutcome::Held(_) => return None,
        RowOutcome::Verdict(action) => action,
        RowOutcome::Released { by, ids, text } => {
            let finish = match by {
                Some(Action::Finish(ending)) => kind(&ending.reason),
                _ => row.values.finished,
            };
            return Some(After { ids: Cow::Borrowed(ids), text: text.as_deref().map(Cow::Borrowed), finish });
        }
    };
    Some(match action {
        Action::Replace(instead) => replaced(row, instead, row.values.finished),
        Action::Finish(Ending { reason, replacement: Some(instead) }) => replaced(row, instead, kind(reason)),
        Action::Finish(Ending { reason, replacement: None }) => After { finish: kind(reason), ..as_it_came },
        Action::Drop(_) => After {
            ids: Cow::Borrowed(&[]),
            text: row.text.as_ref().map(|_| Cow::Borrowed("")),
            finish: row.values.finished,
        },
        Action::Annotate(_) | Action::Route(_) | Action::SkipText => as_it_came,
        Action::Hold(_) | Action::Release | Action::ReleaseAs(_) | Action::ReleaseAndHold(_) => as_it_came,
    })
}

fn replaced<'r>(row: &'r Row, instead: &'r Replacement, finish: FinishKind) -> After<'r> {
    // A row without text has no use for the text of the replacement.
    let text = row.text.as_ref().map(|came| Cow::Borrowed(instead.text.as_ref().unwrap_or(came).as_str()));
    After { ids: Cow::Borrowed(&instead.ids), text, finish }
}

/// The ids and the text that go on of a row; empty if nothing goes on.
pub(crate) fn left(row: &Row, outcome: &RowOutcome) -> (Vec<TokenId>, Option<String>) {
    let after = after(row, outcome);
    after.map_or_else(Default::default, |after| (after.ids.into_owned(), after.text.map(Cow::into_owned)))
}
