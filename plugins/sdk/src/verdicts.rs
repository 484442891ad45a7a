//! What a plugin answers.

use std::time::Duration;

use crate::{Action, Ending, Replacement, Row, TokenId, Verdict};

/// A reason, or what a finish says it matched, has at most this many bytes; the rest is cut.
pub const REASON_BYTES_MAX: usize = 256;

/// The verdicts on a batch. At most one a row: a second one for a row takes the place of the first.
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

    /// These ids instead of the row's: the new ones, or, for a plugin that [writes](crate::Plugin::WRITES) cumulative
    /// ids, all of the request so far. None at all is a row without tokens.
    pub fn replace(&mut self, row: Row<'_>, ids: impl Into<Vec<TokenId>>) {
        self.give(row, Action::Replace(Replacement { ids: ids.into(), text: None }));
    }

    /// The same with the row's text, for a stream that is past the detokenizer. Before one it is not looked at.
    pub fn replace_with_text(&mut self, row: Row<'_>, ids: impl Into<Vec<TokenId>>, text: impl Into<String>) {
        self.give(row, Action::Replace(Replacement { ids: ids.into(), text: Some(text.into()) }));
    }

    /// The row's tokens go no further. The reason stands in Afterbay's log and in its ledger. A request's first and last
    /// row still go out, without tokens, so that the reader knows of both ends.
    pub fn drop(&mut self, row: Row<'_>, reason: impl Into<String>) {
        self.give(row, Action::Drop(short(reason.into())));
    }

    /// The row is its request's last: the reader sees the finish reason `{"type": "stop", "matched": <this>}`, and what
    /// still comes for the request is swallowed and counted. The row's ids are kept.
    pub fn finish(&mut self, row: Row<'_>, matched: impl Into<String>) {
        self.give(row, Action::Finish(short(matched.into())));
    }

    /// [`Verdicts::replace`] and [`Verdicts::finish`] in one: these ids are the request's last. A row goes as far as it may, and
    /// the reader has no token behind that.
    pub fn finish_as(&mut self, row: Row<'_>, matched: impl Into<String>, ids: impl Into<Vec<TokenId>>) {
        let instead = Replacement { ids: ids.into(), text: None };
        self.give(row, Action::FinishAs(Ending { matched: short(matched.into()), instead }));
    }

    /// The same with the row's text, for a stream that is past the detokenizer. Before one it is not looked at.
    pub fn finish_as_with_text(
        &mut self,
        row: Row<'_>,
        matched: impl Into<String>,
        ids: impl Into<Vec<TokenId>>,
        text: impl Into<String>,
    ) {
        let instead = Replacement { ids: ids.into(), text: Some(text.into()) };
        self.give(row, Action::FinishAs(Ending { matched: short(matched.into()), instead }));
    }

    /// The row is its request's last: the reader sees the finish reason `{"type": "abort", "message": <this>}`. Else as
    /// [`Verdicts::finish`].
    pub fn abort(&mut self, row: Row<'_>, message: impl Into<String>) {
        self.give(row, Action::Abort(short(message.into())));
    }

    /// The row goes on as it is, and the journal keeps this beside it.
    pub fn annotate(&mut self, row: Row<'_>, note: impl Into<String>) {
        self.give(row, Action::Annotate(short(note.into())));
    }

    /// The row goes to this sink instead of to its reader: one of the stream's of kind `routed`, by its name.
    pub fn route(&mut self, row: Row<'_>, sink: impl Into<String>) {
        self.give(row, Action::Route(short(sink.into())));
    }

    /// This row and all later ones of its request go to the tokenizer without text, past the detokenizer. At the request's
    /// first row; the stream needs a sink of kind `skipped`.
    pub fn skip_detokenization(&mut self, row: Row<'_>) {
        self.give(row, Action::SkipDetokenization);
    }

    /// The row waits for a release of its request: at most so long after it came, and at most as long as the operator allows
    /// (`limits.hold`). Later rows of the request wait behind it until then. When the time is over, or with the request's last
    /// row, what waits goes on as it came; [`Row::waiting`] shows it. Rounded up to milliseconds.
    ///
    /// A last row is not held: nothing would come that could release it.
    pub fn hold(&mut self, row: Row<'_>, time: Duration) {
        self.give(row, Action::Hold(millis(time)));
    }

    /// What waits of the row's request goes on as it came, and this row waits as by [`Verdicts::hold`]: where it is known now
    /// of what came before, and not yet of this.
    pub fn release_and_hold(&mut self, row: Row<'_>, time: Duration) {
        self.give(row, Action::ReleaseAndHold(millis(time)));
    }

    /// What waits of the row's request goes on as one row, this one last.
    pub fn release(&mut self, row: Row<'_>) {
        self.give(row, Action::Release);
    }

    /// What waits of the row's request goes on as one row, with these ids instead of all that waited and of this row's. What
    /// they are is said in [`Verdicts::replace`], which this is where nothing waits.
    pub fn release_as(&mut self, row: Row<'_>, ids: impl Into<Vec<TokenId>>) {
        self.give(row, Action::ReleaseAs(Replacement { ids: ids.into(), text: None }));
    }

    /// The same with the text of it all, for a stream that is past the detokenizer. Before one it is not looked at.
    pub fn release_as_with_text(
        &mut self,
        row: Row<'_>,
        ids: impl Into<Vec<TokenId>>,
        text: impl Into<String>,
    ) {
        self.give(row, Action::ReleaseAs(Replacement { ids: ids.into(), text: Some(text.into()) }));
    }

    fn give(&mut self, row: Row<'_>, action: Action) {
        // A batch has fewer rows than a 32-bit memory has bytes.
        let verdict = Verdict { row: row.index() as u32, action };
        // Rows are judged in order, mostly: then this is a push.
        if self.list.last().is_none_or(|last| last.row < verdict.row) {
            self.list.push(verdict);
            return;
        }
        match self.list.binary_search_by_key(&verdict.row, |given| given.row) {
            Ok(place) => self.list[place] = verdict,
            Err(place) => self.list.insert(place, verdict),
        }
    }
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u32::MAX)
}

fn short(mut reason: String) -> String {
    reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
    reason
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Batch, abi};

    fn batch(rows: u64) -> abi::Batch {
        abi::Batch {
            requests: (0..rows).collect(),
            output_ids: vec![],
            output_ends: vec![],
            completion_tokens: vec![],
            finished: vec![],
            texts: vec![],
            waiting: vec![],
        }
    }

    #[test]
    fn verdicts_are_sorted_and_the_last_one_for_a_row_holds() {
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
    fn a_time_to_wait_is_rounded_up_to_milliseconds() {
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
        verdicts.finish(row, format!("a{}", "é".repeat(REASON_BYTES_MAX)));
        let Action::Finish(matched) = &verdicts.list[0].action else { panic!("{:?}", verdicts.list) };
        assert_eq!(matched.len(), REASON_BYTES_MAX - 1);
        verdicts.finish_as(row, format!("a{}", "é".repeat(REASON_BYTES_MAX)), [1]);
        let Action::FinishAs(ending) = &verdicts.list[0].action else { panic!("{:?}", verdicts.list) };
        assert_eq!((ending.matched.len(), &ending.instead.ids[..]), (REASON_BYTES_MAX - 1, &[1][..]));
    }
}
