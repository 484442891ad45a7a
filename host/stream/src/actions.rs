//! What was said of the rows of a batch, by whom: for the journal.

use afterbay_events as events;
use afterbay_journal as journal;
use afterbay_runtime::{Action, TokenId};
use std::ops::Range;

/// Who said what, for the journal. In order of rows, and for one row in order of the chain.
#[derive(Default)]
pub(crate) struct Actions(pub(crate) Vec<Said>);

pub(crate) struct Said {
    pub(crate) row: u32,
    pub(crate) plugin: String,
    pub(crate) verdict: journal::Verdict,
    pub(crate) text: String,
    pub(crate) ids: Vec<TokenId>,
    pub(crate) forwarded: u32,
}

impl Said {
    fn is_way(&self) -> bool {
        matches!(self.verdict, journal::Verdict::Route | journal::Verdict::SkipDetokenizing)
    }
}

impl Actions {
    /// Where what was said of this row stands.
    fn of_row(&self, row: u32) -> Range<usize> {
        self.0.partition_point(|said| said.row < row)..self.0.partition_point(|said| said.row <= row)
    }

    /// Takes out what sends this row elsewhere. Whose verdicts they were.
    pub(crate) fn take_ways(&mut self, row: u32) -> Vec<String> {
        let of_row = self.of_row(row);
        self.0.extract_if(of_row, |said| said.is_way()).map(|said| said.plugin).collect()
    }

    /// Who lets this row skip the detokenizer, or sends it elsewhere.
    pub(crate) fn way_of(&self, row: u32) -> Option<&str> {
        let said = self.0[self.of_row(row)].iter().rfind(|said| said.is_way());
        said.map(|said| said.plugin.as_str())
    }

    /// The row skips the detokenizer, as those of its request before.
    pub(crate) fn skip(&mut self, row: u32, plugin: &str, tokens: u32) {
        let of_row = self.of_row(row);
        let at = of_row.end;
        let forwarded = self.0[of_row].last().map_or(tokens, |said| said.forwarded);
        let said = Said {
            row,
            plugin: plugin.to_owned(),
            verdict: journal::Verdict::SkipDetokenizing,
            text: String::new(),
            ids: Vec::new(),
            forwarded,
        };
        self.0.insert(at, said);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = journal::Action<'_>> {
        let said = self.0.iter();
        said.map(|said| journal::Action {
            row: said.row,
            plugin: &said.plugin,
            verdict: said.verdict,
            text: &said.text,
            ids: &said.ids,
            forwarded: said.forwarded,
        })
    }
}

/// How a verdict is counted.
pub(crate) fn label(action: &Action) -> events::Verdict {
    match action {
        Action::Replace(_) => events::Verdict::Replace,
        Action::Drop(_) => events::Verdict::Drop,
        Action::Finish(_) => events::Verdict::Finish,
        Action::FinishAs(_) => events::Verdict::FinishAs,
        Action::Abort(_) => events::Verdict::Abort,
        Action::Annotate(_) => events::Verdict::Annotate,
        Action::Route(_) => events::Verdict::Route,
        Action::SkipDetokenization => events::Verdict::SkipDetokenization,
        Action::Hold(_) => events::Verdict::Hold,
        Action::Release => events::Verdict::Release,
        Action::ReleaseAs(_) => events::Verdict::ReleaseAs,
        Action::ReleaseAndHold(_) => events::Verdict::ReleaseAndHold,
    }
}
