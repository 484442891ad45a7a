//! The verdicts that a plugin returns, and the checks of an answer. The stream applies the verdicts.

use std::collections::HashSet;

use crate::bindings::afterbay::plugin::types;
use crate::bindings::exports::afterbay::plugin::plugin;
use crate::limits::{ERROR_STATUSES, REASON_BYTES_MAX};

use afterbay_types::VerdictKind;

pub use plugin::{Answer, CallError, RequestAction, RequestVerdict, Response};
pub use types::{Action, Ending, Failure, FinishReason, IdShape, Replacement, Verdict};

impl FinishReason {
    /// The text of the reason.
    pub fn text(&self) -> Option<&str> {
        match self {
            FinishReason::Stop(text) | FinishReason::Abort(text) => Some(text),
            FinishReason::Error(failure) => Some(&failure.message),
            FinishReason::Length => None,
        }
    }
}

impl Ending {
    /// The kind of the verdict that ends a request so.
    pub fn kind(&self) -> VerdictKind {
        match self.reason {
            FinishReason::Stop(_) => VerdictKind::Finish,
            FinishReason::Length => VerdictKind::Length,
            FinishReason::Abort(_) => VerdictKind::Abort,
            FinishReason::Error(_) => VerdictKind::Error,
        }
    }
}

impl Action {
    /// The kind of the verdict. An end has the kind of its finish reason.
    pub fn kind(&self) -> VerdictKind {
        match self {
            Action::Replace(_) => VerdictKind::Replace,
            Action::Drop(_) => VerdictKind::Drop,
            Action::Finish(ending) => ending.kind(),
            Action::Annotate(_) => VerdictKind::Annotate,
            Action::Route(_) => VerdictKind::Route,
            Action::SkipText => VerdictKind::SkipText,
            Action::Hold(_) => VerdictKind::Hold,
            Action::Release => VerdictKind::Release,
            Action::ReleaseAs(_) => VerdictKind::ReleaseAs,
            Action::ReleaseAndHold(_) => VerdictKind::ReleaseAndHold,
        }
    }

    /// The text of the verdict: a reason, a note, a message or a sink's name.
    pub fn text(&self) -> Option<&str> {
        match self {
            Action::Finish(Ending { reason, .. }) => reason.text(),
            Action::Drop(text) | Action::Annotate(text) | Action::Route(text) => Some(text),
            Action::Replace(_)
            | Action::SkipText
            | Action::Hold(_)
            | Action::Release
            | Action::ReleaseAs(_)
            | Action::ReleaseAndHold(_) => None,
        }
    }

    /// The tokens that the verdict writes.
    pub fn replacement(&self) -> Option<&Replacement> {
        match self {
            Action::Replace(replacement) | Action::ReleaseAs(replacement) => Some(replacement),
            Action::Finish(Ending { replacement, .. }) => replacement.as_ref(),
            _ => None,
        }
    }
}

/// Sorts an answer by row and checks it against the contract: existing rows, one verdict per row, texts of at most
/// [`REASON_BYTES_MAX`] bytes, and statuses of [`ERROR_STATUSES`]. The error names the first violation.
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
        let of = format_args!("row {}", verdict.row);
        check_text(verdict.action.text(), of)?;
        if let Action::Finish(ending) = &verdict.action {
            check_status(&ending.reason, of)?;
        }
    }
    Ok(verdicts)
}

/// Checks the answer of `answered` against the contract: one verdict per request, and texts of at most [`REASON_BYTES_MAX`]
/// bytes. The error names the first violation.
pub(crate) fn check_request_verdicts(verdicts: &[RequestVerdict]) -> Result<(), String> {
    let mut requests = HashSet::new();
    for RequestVerdict { request, action } in verdicts {
        if !requests.insert(request) {
            return Err(format!("two verdicts for request {request}"));
        }
        if let RequestAction::Finish(ending) = action {
            let of = format_args!("request {request}");
            check_text(ending.reason.text(), of)?;
            check_status(&ending.reason, of)?;
        }
    }
    Ok(())
}

fn check_status(reason: &FinishReason, of: std::fmt::Arguments<'_>) -> Result<(), String> {
    match reason {
        FinishReason::Error(failure) if !ERROR_STATUSES.contains(&failure.status) => {
            let (least, most) = (ERROR_STATUSES.start(), ERROR_STATUSES.end());
            Err(format!("an error with status {} for {of}, must be {least} to {most}", failure.status))
        }
        _ => Ok(()),
    }
}

fn check_text(text: Option<&str>, of: std::fmt::Arguments<'_>) -> Result<(), String> {
    match text.map_or(0, str::len) {
        length if length > REASON_BYTES_MAX => {
            Err(format!("a text of {length} bytes for {of}, at most {REASON_BYTES_MAX}"))
        }
        _ => Ok(()),
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

    fn ending(length: usize) -> Ending {
        Ending { reason: FinishReason::Stop("x".repeat(length)), replacement: None }
    }

    #[test]
    fn a_reason_has_256_bytes_at_most() {
        let finish = |length| vec![Verdict { row: 0, action: Action::Finish(ending(length)) }];
        assert!(check_verdicts(finish(REASON_BYTES_MAX), 1).is_ok());
        assert!(check_verdicts(finish(REASON_BYTES_MAX + 1), 1).is_err());
        let finish = |length| [RequestVerdict { request: 7, action: RequestAction::Finish(ending(length)) }];
        assert!(check_request_verdicts(&finish(REASON_BYTES_MAX)).is_ok());
        let error = check_request_verdicts(&finish(REASON_BYTES_MAX + 1)).unwrap_err();
        assert_eq!(error, "a text of 257 bytes for request 7, at most 256");
    }

    #[test]
    fn two_verdicts_for_a_request_are_refused() {
        let release = |request| RequestVerdict { request, action: RequestAction::Release(1) };
        assert!(check_request_verdicts(&[release(1), release(2)]).is_ok());
        let error = check_request_verdicts(&[release(1), release(2), release(1)]).unwrap_err();
        assert_eq!(error, "two verdicts for request 1");
    }
}
