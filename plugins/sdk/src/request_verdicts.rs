//! The verdicts of a plugin on requests between two batches.

use crate::abi::{RequestAction, RequestVerdict};
use crate::verdicts::{cut_reason, replacement};
use crate::{Ending, FinishReason, Replacement, RequestId, TokenId};

/// The verdicts on requests, at most one for each. A second verdict for a request replaces the first. The rows
/// of a request without a verdict stay held.
#[derive(Debug, Default)]
pub struct RequestVerdicts {
    list: Vec<RequestVerdict>,
}

impl RequestVerdicts {
    pub(crate) fn new() -> Self {
        Self { list: Vec::new() }
    }

    pub(crate) fn into_list(self) -> Vec<RequestVerdict> {
        self.list
    }

    /// Releases the first rows that the plugin holds of the request, unchanged and as one row: this many rows,
    /// as [`Row::waiting`](crate::Row::waiting) counts them, or all if there are fewer.
    pub fn release(&mut self, request: RequestId, rows: u32) {
        self.give(request, RequestAction::Release(rows));
    }

    /// Ends the request, and its held rows become its last row. Without held rows, Afterbay sends a last row of
    /// its own. A text alone is a reason of kind [`FinishReason::Stop`].
    pub fn finish(&mut self, request: RequestId, reason: impl Into<FinishReason>) {
        self.end(request, reason.into(), None);
    }

    /// Ends the request like [`RequestVerdicts::finish`], with these ids in its last row instead of those of
    /// the held rows.
    pub fn finish_with(
        &mut self,
        request: RequestId,
        reason: impl Into<FinishReason>,
        ids: impl Into<Vec<TokenId>>,
    ) {
        self.end(request, reason.into(), Some(replacement(ids, None)));
    }

    /// Ends the request like [`RequestVerdicts::finish_with`] and replaces the text too. A stream before the
    /// detokenizer ignores the text.
    pub fn finish_with_text(
        &mut self,
        request: RequestId,
        reason: impl Into<FinishReason>,
        ids: impl Into<Vec<TokenId>>,
        text: impl Into<String>,
    ) {
        self.end(request, reason.into(), Some(replacement(ids, Some(text.into()))));
    }

    fn end(&mut self, request: RequestId, reason: FinishReason, replacement: Option<Replacement>) {
        let ending = Ending { reason: cut_reason(reason), replacement };
        self.give(request, RequestAction::Finish(ending));
    }

    fn give(&mut self, request: RequestId, action: RequestAction) {
        let verdict = RequestVerdict { request, action };
        match self.list.iter_mut().find(|given| given.request == request) {
            Some(given) => *given = verdict,
            None => self.list.push(verdict),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_verdict_for_a_request_counts() {
        let mut verdicts = RequestVerdicts::new();
        verdicts.release(7, 2);
        verdicts.finish_with(8, FinishReason::Length, [5]);
        verdicts.finish(7, "x".repeat(300));
        let [first, second] = &verdicts.into_list()[..] else { panic!("not two") };
        let RequestAction::Finish(Ending { reason: FinishReason::Stop(matched), replacement: None }) =
            &first.action
        else {
            panic!("{first:?}")
        };
        assert_eq!((first.request, matched.len()), (7, crate::REASON_BYTES_MAX));
        let replacement = Some(Replacement { ids: vec![5], text: None });
        let ending = Ending { reason: FinishReason::Length, replacement };
        assert_eq!((second.request, &second.action), (8, &RequestAction::Finish(ending)));
    }
}
