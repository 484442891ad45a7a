//! The columns that a plugin gets and the verdicts that it returns.
//!
//! This file knows the contract of `wit/transform.wit` and no wire format: the stream makes the columns and applies the
//! verdicts.

use crate::bindings::afterbay::plugin::types;
use crate::limits::REASON_BYTES_MAX;

pub use types::{Action, Ending, FinishKind, IdShape, Opened, Replacement, RequestId, TokenId, Verdict};

/// The columns of a batch. Row `i` is entry `i` of each.
/// Every column has the length of `requests`. It is empty if it is not available or the plugin did not ask for it.
/// `output_ends` is empty exactly when the plugin did not ask for ids.
#[derive(Clone, Copy, Debug, Default)]
pub struct Columns<'a> {
    /// The request of each row. A request has at most one row.
    pub requests: &'a [RequestId],
    /// The new token ids of all rows, one after another.
    pub output_ids: &'a [TokenId],
    /// The end of each row's ids in `output_ids`.
    pub output_ends: &'a [u32],
    /// The scheduler's count of each request's tokens, including this row.
    pub completion_tokens: &'a [u64],
    /// The finish reason of each row that is its request's last.
    pub finished: &'a [FinishKind],
    /// The new text of each row.
    pub texts: &'a [&'a str],
    /// The number of held rows of each row's request.
    pub waiting: &'a [u32],
}

impl<'a> Columns<'a> {
    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.requests.len()
    }

    /// The columns that the plugin asked for, as the ABI wants them.
    pub(crate) fn select(&self, wanted: ColumnSet) -> types::Batch<'a> {
        debug_assert!(self.is_even(), "columns of unequal length: {self:?}");
        types::Batch {
            requests: self.requests,
            output_ids: if wanted.output_ids { self.output_ids } else { &[] },
            output_ends: if wanted.output_ids { self.output_ends } else { &[] },
            completion_tokens: if wanted.completion_tokens { self.completion_tokens } else { &[] },
            finished: if wanted.finished { self.finished } else { &[] },
            texts: if wanted.texts { self.texts } else { &[] },
            waiting: if wanted.waiting { self.waiting } else { &[] },
        }
    }

    fn is_even(&self) -> bool {
        let fits = |length: usize| length == 0 || length == self.rows();
        fits(self.output_ends.len())
            && fits(self.completion_tokens.len())
            && fits(self.finished.len())
            && fits(self.texts.len())
            && fits(self.waiting.len())
            && self.output_ends.last().map_or(0, |&end| end as usize) == self.output_ids.len()
            && self.output_ends.is_sorted()
    }
}

/// The columns that a plugin asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ColumnSet {
    /// `output_ids` and `output_ends`.
    pub output_ids: bool,
    /// `completion_tokens`.
    pub completion_tokens: bool,
    /// `finished`.
    pub finished: bool,
    /// `texts`.
    pub texts: bool,
    /// `waiting`.
    pub waiting: bool,
}

impl From<types::Columns> for ColumnSet {
    fn from(flags: types::Columns) -> Self {
        Self {
            output_ids: flags.contains(types::Columns::OUTPUT_IDS),
            completion_tokens: flags.contains(types::Columns::COMPLETION_TOKENS),
            finished: flags.contains(types::Columns::FINISHED),
            texts: flags.contains(types::Columns::TEXTS),
            waiting: flags.contains(types::Columns::WAITING),
        }
    }
}

/// The calls that a plugin asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallSet {
    /// `pressure`.
    pub pressure: bool,
    /// `changed`.
    pub changed: bool,
    /// `export-state` and `import-state`.
    pub state: bool,
}

impl From<types::Calls> for CallSet {
    fn from(flags: types::Calls) -> Self {
        Self {
            pressure: flags.contains(types::Calls::PRESSURE),
            changed: flags.contains(types::Calls::CHANGED),
            state: flags.contains(types::Calls::STATE),
        }
    }
}

/// Sorts an answer by row and checks it against the contract: existing rows, one verdict per row, short texts. The error
/// says what is wrong.
pub(crate) fn check_verdicts(mut verdicts: Vec<Verdict>, rows: usize) -> Result<Vec<Verdict>, String> {
    if !verdicts.is_sorted_by_key(|verdict| verdict.row) {
        verdicts.sort_unstable_by_key(|verdict| verdict.row);
    }
    if let Some(verdict) = verdicts.last()
        && verdict.row as usize >= rows
    {
        return Err(format!("a verdict for row {}, the batch has {rows} rows", verdict.row));
    }
    if let Some(pair) = verdicts.windows(2).find(|pair| pair[0].row == pair[1].row) {
        return Err(format!("two verdicts for row {}", pair[0].row));
    }
    for verdict in &verdicts {
        let row = verdict.row;
        if let Some(length) = text(&verdict.action).map(str::len)
            && length > REASON_BYTES_MAX
        {
            return Err(format!("a text of {length} bytes for row {row}, at most {REASON_BYTES_MAX}"));
        }
    }
    Ok(verdicts)
}

/// The text of a verdict. A verdict has at most one.
fn text(action: &Action) -> Option<&str> {
    match action {
        Action::FinishAs(Ending { matched, .. }) => Some(matched),
        Action::Drop(text)
        | Action::Finish(text)
        | Action::Abort(text)
        | Action::Annotate(text)
        | Action::Route(text) => Some(text),
        Action::Replace(_)
        | Action::SkipDetokenization
        | Action::Hold(_)
        | Action::Release
        | Action::ReleaseAs(_)
        | Action::ReleaseAndHold(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drop_row(row: u32) -> Verdict {
        Verdict { row, action: Action::Drop("x".into()) }
    }

    #[test]
    fn an_answer_is_sorted_by_row() {
        let checked = check_verdicts(vec![drop_row(2), drop_row(0), drop_row(1)], 3).unwrap();
        assert_eq!(checked.iter().map(|verdict| verdict.row).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn the_last_row_is_in_range_and_the_next_is_not() {
        assert!(check_verdicts(vec![drop_row(3)], 4).is_ok());
        let error = check_verdicts(vec![drop_row(4)], 4).unwrap_err();
        assert_eq!(error, "a verdict for row 4, the batch has 4 rows");
    }

    #[test]
    fn two_verdicts_for_a_row_are_refused_even_apart() {
        let error = check_verdicts(vec![drop_row(1), drop_row(0), drop_row(1)], 4).unwrap_err();
        assert_eq!(error, "two verdicts for row 1");
    }

    #[test]
    fn a_reason_has_256_bytes_at_most() {
        let reason = |length: usize| vec![Verdict { row: 0, action: Action::Finish("x".repeat(length)) }];
        assert!(check_verdicts(reason(REASON_BYTES_MAX), 1).is_ok());
        assert!(check_verdicts(reason(REASON_BYTES_MAX + 1), 1).is_err());
        let ending = |length: usize| {
            let instead = Replacement { ids: vec![], text: None };
            vec![Verdict {
                row: 0,
                action: Action::FinishAs(Ending { matched: "x".repeat(length), instead }),
            }]
        };
        assert!(check_verdicts(ending(REASON_BYTES_MAX), 1).is_ok());
        assert!(check_verdicts(ending(REASON_BYTES_MAX + 1), 1).is_err());
    }

    #[test]
    fn a_column_that_was_not_asked_for_is_not_passed() {
        let columns = Columns {
            requests: &[7],
            output_ids: &[1, 2],
            output_ends: &[2],
            completion_tokens: &[2],
            finished: &[FinishKind::Running],
            texts: &["a"],
            waiting: &[3],
        };
        let batch = columns.select(ColumnSet { finished: true, ..ColumnSet::default() });
        assert_eq!((batch.requests, batch.finished), (&[7][..], &[FinishKind::Running][..]));
        assert!(batch.output_ids.is_empty() && batch.output_ends.is_empty());
        assert!(batch.completion_tokens.is_empty() && batch.texts.is_empty() && batch.waiting.is_empty());
    }
}
