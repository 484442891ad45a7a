//! The verdicts of a plugin on the rows of a batch.

use std::time::Duration;

use crate::{Action, Ending, Failure, FinishReason, Replacement, Row, TokenId, Verdict};

/// The most bytes of a reason, message, note, sink name or `matched`. The rest is cut.
pub const REASON_BYTES_MAX: usize = 256;

/// The verdicts on a batch, at most one for each row. A second verdict for a row replaces the first.
#[derive(Debug, Default)]
pub struct Verdicts {
    /// Sorted by row.
    list: Vec<Verdict>,
}

impl Verdicts {
    pub(crate) fn new() -> Self {
        Self { list: Vec::new() }
    }

    pub(crate) fn into_list(self) -> Vec<Verdict> {
        self.list
    }

    /// Replaces the row's ids. `ids` are the row's new ids, or all ids of the request so far if the plugin
    /// [writes](crate::Plugin::WRITES) cumulative ids. An empty list makes a row without tokens.
    pub fn replace(&mut self, row: Row<'_>, ids: impl Into<Vec<TokenId>>) {
        self.give(row, Action::Replace(replacement(ids, None)));
    }

    /// Replaces the row's ids and its text. A stream before the detokenizer ignores the text.
    pub fn replace_with_text(&mut self, row: Row<'_>, ids: impl Into<Vec<TokenId>>, text: impl Into<String>) {
        self.give(row, Action::Replace(replacement(ids, Some(text.into()))));
    }

    /// Drops the row's tokens. Afterbay's log and ledger record the reason. The first and the last row of a
    /// request are still sent, without tokens, so that the reader sees the request begin and end.
    pub fn drop(&mut self, row: Row<'_>, reason: impl Into<String>) {
        self.give(row, Action::Drop(cut(reason)));
    }

    /// Ends the request with this row. Afterbay swallows and counts later rows. The row keeps its ids.
    ///
    /// A text alone is a reason of kind [`FinishReason::Stop`]: the reader sees
    /// `{"type": "stop", "matched": <text>}`.
    ///
    /// ```
    /// # use afterbay_plugin::{Failure, FinishReason, Row, Verdicts};
    /// # fn ends(verdicts: &mut Verdicts, row: Row<'_>) {
    /// verdicts.finish(row, "stop-on-loop");
    /// verdicts.finish(row, FinishReason::Length);
    /// verdicts.finish(row, FinishReason::Abort("forbidden".into()));
    /// verdicts.finish(row, Failure { status: 503, message: "try again".into() });
    /// # }
    /// ```
    pub fn finish(&mut self, row: Row<'_>, reason: impl Into<FinishReason>) {
        self.end(row, reason.into(), None);
    }

    /// Ends the request like [`Verdicts::finish`] and replaces the row's ids like [`Verdicts::replace`], and
    /// those of the held rows like [`Verdicts::release_as`]. A plugin can cut the text before a token that the
    /// reader must not see.
    pub fn finish_with(
        &mut self,
        row: Row<'_>,
        reason: impl Into<FinishReason>,
        ids: impl Into<Vec<TokenId>>,
    ) {
        self.end(row, reason.into(), Some(replacement(ids, None)));
    }

    /// Ends the request like [`Verdicts::finish_with`] and replaces the row's text too. A stream before the
    /// detokenizer ignores the text.
    pub fn finish_with_text(
        &mut self,
        row: Row<'_>,
        reason: impl Into<FinishReason>,
        ids: impl Into<Vec<TokenId>>,
        text: impl Into<String>,
    ) {
        self.end(row, reason.into(), Some(replacement(ids, Some(text.into()))));
    }

    /// Leaves the row unchanged and stores a note beside it in the journal.
    pub fn annotate(&mut self, row: Row<'_>, note: impl Into<String>) {
        self.give(row, Action::Annotate(cut(note)));
    }

    /// Sends the row to this sink instead of to its reader. The sink must belong to the stream and be of kind
    /// `routed`.
    pub fn route(&mut self, row: Row<'_>, sink: impl Into<String>) {
        self.give(row, Action::Route(cut(sink)));
    }

    /// Sends this row and all later rows of the request directly to the tokenizer without text, bypassing the
    /// detokenizer. Valid at the request's first row; the stream needs a sink of kind `skipped`.
    pub fn skip_text(&mut self, row: Row<'_>) {
        self.give(row, Action::SkipText);
    }

    /// Holds the row until a release of its request, for at most `time` from the receipt of the row, rounded
    /// up to milliseconds. The operator's `limits.hold` caps the time. Later rows of the request wait behind
    /// the held row. If the time passes or the request's last row arrives, the held rows are released
    /// unchanged; [`Row::waiting`] shows their number.
    ///
    /// A last row is never held, because no later row could release it.
    pub fn hold(&mut self, row: Row<'_>, time: Duration) {
        self.give(row, Action::Hold(millis(time)));
    }

    /// Releases the held rows of the request unchanged and holds this row like [`Verdicts::hold`]. For a
    /// plugin that has decided about the earlier rows but not about this one.
    pub fn release_and_hold(&mut self, row: Row<'_>, time: Duration) {
        self.give(row, Action::ReleaseAndHold(millis(time)));
    }

    /// Releases the held rows of the request together with this row, as one row.
    pub fn release(&mut self, row: Row<'_>) {
        self.give(row, Action::Release);
    }

    /// Releases the held rows of the request together with this row, as one row with these ids (see
    /// [`Verdicts::replace`]) instead of all theirs. Without held rows it acts like [`Verdicts::replace`].
    pub fn release_as(&mut self, row: Row<'_>, ids: impl Into<Vec<TokenId>>) {
        self.give(row, Action::ReleaseAs(replacement(ids, None)));
    }

    /// Releases like [`Verdicts::release_as`] and replaces the text too. A stream before the detokenizer
    /// ignores the text.
    pub fn release_as_with_text(
        &mut self,
        row: Row<'_>,
        ids: impl Into<Vec<TokenId>>,
        text: impl Into<String>,
    ) {
        self.give(row, Action::ReleaseAs(replacement(ids, Some(text.into()))));
    }

    fn end(&mut self, row: Row<'_>, reason: FinishReason, replacement: Option<Replacement>) {
        self.give(row, Action::Finish(Ending { reason: cut_reason(reason), replacement }));
    }

    fn give(&mut self, row: Row<'_>, action: Action) {
        // The cast is safe: a batch has fewer rows than a 32-bit memory has bytes.
        let verdict = Verdict { row: row.index() as u32, action };
        // Plugins usually give verdicts in order: then this is a push.
        if self.list.last().is_none_or(|last| last.row < verdict.row) {
            self.list.push(verdict);
            return;
        }
        match self.list.binary_search_by_key(&verdict.row, |given| given.row) {
            Ok(index) => self.list[index] = verdict,
            Err(index) => self.list.insert(index, verdict),
        }
    }
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u32::MAX)
}

fn cut(text: impl Into<String>) -> String {
    let mut text = text.into();
    text.truncate(text.floor_char_boundary(REASON_BYTES_MAX));
    text
}

/// Cuts the text of a reason at [`REASON_BYTES_MAX`].
pub(crate) fn cut_reason(reason: FinishReason) -> FinishReason {
    match reason {
        FinishReason::Stop(text) => FinishReason::Stop(cut(text)),
        FinishReason::Length => FinishReason::Length,
        FinishReason::Abort(text) => FinishReason::Abort(cut(text)),
        FinishReason::Error(Failure { status, message }) => {
            FinishReason::Error(Failure { status, message: cut(message) })
        }
    }
}

/// A text alone is a reason to stop.
impl From<&str> for FinishReason {
    fn from(matched: &str) -> Self {
        Self::Stop(matched.to_owned())
    }
}

impl From<Failure> for FinishReason {
    fn from(failure: Failure) -> Self {
        Self::Error(failure)
    }
}

/// A text alone is a reason to stop.
impl From<String> for FinishReason {
    fn from(matched: String) -> Self {
        Self::Stop(matched)
    }
}

/// An end that keeps the row's tokens.
impl<R: Into<FinishReason>> From<R> for Ending {
    fn from(reason: R) -> Self {
        Self { reason: reason.into(), replacement: None }
    }
}

pub(crate) fn replacement(ids: impl Into<Vec<TokenId>>, text: Option<String>) -> Replacement {
    Replacement { ids: ids.into(), text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::{TestRow, batch_of};
    use crate::{Batch, Columns, abi};

    fn batch(rows: u64) -> abi::Batch {
        batch_of(0, &(0..rows).map(TestRow::new).collect::<Vec<_>>(), Columns::empty())
    }

    #[test]
    fn verdicts_are_sorted_and_the_last_verdict_for_a_row_counts() {
        let columns = batch(3);
        let rows: Vec<Row<'_>> = Batch::new(&columns).rows().collect();
        let mut verdicts = Verdicts::new();
        verdicts.drop(rows[2], "late");
        verdicts.drop(rows[0], "early");
        verdicts.replace(rows[2], [1, 2]);
        let list = verdicts.into_list();
        assert_eq!(list[0], Verdict { row: 0, action: Action::Drop("early".into()) });
        assert_eq!(
            list[1],
            Verdict { row: 2, action: Action::Replace(Replacement { ids: vec![1, 2], text: None }) }
        );
        assert_eq!(list.len(), 2);
    }

    #[test]
    fn a_hold_is_rounded_up_to_milliseconds() {
        let columns = batch(3);
        let rows: Vec<Row<'_>> = Batch::new(&columns).rows().collect();
        let mut verdicts = Verdicts::new();
        for (row, time) in
            [Duration::ZERO, Duration::from_micros(1001), Duration::MAX].into_iter().enumerate()
        {
            verdicts.hold(rows[row], time);
        }
        let held: Vec<Action> = verdicts.into_list().into_iter().map(|verdict| verdict.action).collect();
        assert_eq!(held, [Action::Hold(0), Action::Hold(2), Action::Hold(u32::MAX)]);
    }

    #[test]
    fn a_long_reason_is_cut_at_a_character() {
        let columns = batch(1);
        let row = Batch::new(&columns).rows().next().unwrap();
        let mut verdicts = Verdicts::new();
        let long = format!("a{}", "é".repeat(REASON_BYTES_MAX));
        verdicts.finish_with(row, &long[..], [1]);
        let Action::Finish(ending) = &verdicts.list[0].action else { panic!("{:?}", verdicts.list) };
        let cut = &long[..REASON_BYTES_MAX - 1];
        assert_eq!(ending.reason, FinishReason::Stop(cut.to_owned()));
        assert_eq!(ending.replacement, Some(Replacement { ids: vec![1], text: None }));
        verdicts.finish(row, FinishReason::Abort(long.clone()));
        let Action::Finish(ending) = &verdicts.list[0].action else { panic!("{:?}", verdicts.list) };
        assert_eq!((&ending.reason, &ending.replacement), (&FinishReason::Abort(cut.to_owned()), &None));
        verdicts.drop(row, long.clone());
        assert_eq!(verdicts.list[0].action, Action::Drop(cut.to_owned()));
    }
}
