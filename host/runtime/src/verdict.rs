//! The verdicts that a plugin returns, and the checks of an answer. The stream applies the verdicts.

use crate::bindings::afterbay::plugin::types;
use crate::limits::REASON_BYTES_MAX;

use afterbay_types::VerdictKind;

pub use types::{Action, Ending, IdShape, Replacement, Verdict};

impl Action {
    /// The kind of the verdict.
    pub fn kind(&self) -> VerdictKind {
        match self {
            Action::Replace(_) => VerdictKind::Replace,
            Action::Drop(_) => VerdictKind::Drop,
            Action::Finish(_) => VerdictKind::Finish,
            Action::FinishAs(_) => VerdictKind::FinishAs,
            Action::Abort(_) => VerdictKind::Abort,
            Action::Annotate(_) => VerdictKind::Annotate,
            Action::Route(_) => VerdictKind::Route,
            Action::SkipDetokenization => VerdictKind::SkipDetokenization,
            Action::Hold(_) => VerdictKind::Hold,
            Action::Release => VerdictKind::Release,
            Action::ReleaseAs(_) => VerdictKind::ReleaseAs,
            Action::ReleaseAndHold(_) => VerdictKind::ReleaseAndHold,
        }
    }

    /// The text of the verdict: a reason, a note, a message or a sink's name.
    pub fn text(&self) -> Option<&str> {
        match self {
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
}

/// Sorts an answer by row and checks it against the contract: existing rows, one verdict per row, and texts of at most
/// [`REASON_BYTES_MAX`] bytes. The error names the first violation.
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
        if let Some(length) = verdict.action.text().map(str::len)
            && length > REASON_BYTES_MAX
        {
            return Err(format!("a text of {length} bytes for row {row}, at most {REASON_BYTES_MAX}"));
        }
    }
    Ok(verdicts)
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
}
