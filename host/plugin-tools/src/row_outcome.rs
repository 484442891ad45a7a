//! The outcome of a row that a plugin was shown: its verdict, and what goes on of the row.

use crate::row::Row;
use afterbay_runtime::{Action, Ending, FinishKind, Replacement, TokenId};
use std::borrow::Cow;

/// What became of a row.
#[derive(Debug)]
pub(crate) enum RowOutcome {
    /// No verdict, or a fault: it goes on.
    AsItCame,
    /// The plugin has ended its request before: it was not shown, and goes no further.
    Swallowed,
    Judged(Action),
    /// It waits, by this verdict or behind others of its request.
    Waits(Option<Action>),
    /// What waited goes on in it, by this verdict or since nothing more comes that could release it.
    Released {
        by: Option<Action>,
        ids: Vec<TokenId>,
        text: Option<String>,
    },
}

impl RowOutcome {
    /// What the plugin said of the row.
    pub(crate) fn said(&self) -> Option<&Action> {
        match self {
            RowOutcome::AsItCame | RowOutcome::Swallowed => None,
            RowOutcome::Judged(action) => Some(action),
            RowOutcome::Waits(by) | RowOutcome::Released { by, .. } => by.as_ref(),
        }
    }
}

/// Whether the row is its request's last by this verdict.
pub(crate) fn ends(action: &Action) -> bool {
    matches!(action, Action::Finish(_) | Action::FinishAs(_) | Action::Abort(_))
}

/// What goes on of a row.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct After<'r> {
    pub(crate) ids: Cow<'r, [TokenId]>,
    pub(crate) text: Option<Cow<'r, str>>,
    pub(crate) finish: FinishKind,
}

/// `None`: nothing of it.
pub(crate) fn after<'r>(row: &'r Row, fate: &'r RowOutcome) -> Option<After<'r>> {
    let as_it_came = After {
        ids: Cow::Borrowed(&row.ids),
        text: row.text.as_deref().map(Cow::Borrowed),
        finish: row.finish,
    };
    let action = match fate {
        RowOutcome::AsItCame => return Some(as_it_came),
        RowOutcome::Swallowed | RowOutcome::Waits(_) => return None,
        RowOutcome::Judged(action) => action,
        RowOutcome::Released { by, ids, text } => {
            let finish = match by {
                Some(Action::Finish(_) | Action::FinishAs(_)) => FinishKind::Stop,
                Some(Action::Abort(_)) => FinishKind::Abort,
                _ => row.finish,
            };
            return Some(After { ids: Cow::Borrowed(ids), text: text.as_deref().map(Cow::Borrowed), finish });
        }
    };
    Some(match action {
        Action::Replace(instead) => replaced(row, instead, row.finish),
        Action::FinishAs(Ending { instead, .. }) => replaced(row, instead, FinishKind::Stop),
        Action::Drop(_) => After {
            ids: Cow::Borrowed(&[]),
            text: row.text.as_ref().map(|_| Cow::Borrowed("")),
            finish: row.finish,
        },
        Action::Finish(_) => After { finish: FinishKind::Stop, ..as_it_came },
        Action::Abort(_) => After { finish: FinishKind::Abort, ..as_it_came },
        Action::Annotate(_) | Action::Route(_) | Action::SkipDetokenization => as_it_came,
        Action::Hold(_) | Action::Release | Action::ReleaseAs(_) | Action::ReleaseAndHold(_) => as_it_came,
    })
}

fn replaced<'r>(row: &'r Row, instead: &'r Replacement, finish: FinishKind) -> After<'r> {
    // Before a detokenizer it is not looked at.
    let text = row.text.as_ref().map(|came| Cow::Borrowed(instead.text.as_ref().unwrap_or(came).as_str()));
    After { ids: Cow::Borrowed(&instead.ids), text, finish }
}

/// The ids and the text that go on of a row.
pub(crate) fn left(row: &Row, fate: &RowOutcome) -> (Vec<TokenId>, Option<String>) {
    let after = after(row, fate);
    after.map_or_else(Default::default, |after| (after.ids.into_owned(), after.text.map(Cow::into_owned)))
}
