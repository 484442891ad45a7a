//! What was said of the rows of a batch, by whom: for the journal.

use afterbay_events::HoldEnd;
use afterbay_journal as journal;
use afterbay_runtime::TokenId;
use std::ops::Range;

/// Who said what, for the journal. In order of rows, and for one row in order of the chain.
#[derive(Default)]
pub struct RecordedVerdicts(pub Vec<RecordedVerdict>);

pub struct RecordedVerdict {
    pub row: u32,
    pub plugin: String,
    pub verdict: journal::Verdict,
    pub text: String,
    pub ids: Vec<TokenId>,
    pub forwarded: u32,
}

impl RecordedVerdict {
    fn is_way(&self) -> bool {
        matches!(self.verdict, journal::Verdict::Route | journal::Verdict::SkipDetokenizing)
    }
}

impl RecordedVerdicts {
    /// Where what was said of this row stands.
    fn of_row(&self, row: u32) -> Range<usize> {
        self.0.partition_point(|said| said.row < row)..self.0.partition_point(|said| said.row <= row)
    }

    /// Takes out what sends this row elsewhere. Whose verdicts they were.
    pub fn take_ways(&mut self, row: u32) -> Vec<String> {
        let of_row = self.of_row(row);
        self.0.extract_if(of_row, |said| said.is_way()).map(|said| said.plugin).collect()
    }

    /// Who lets this row skip the detokenizer, or sends it elsewhere.
    pub fn way_of(&self, row: u32) -> Option<&str> {
        let said = self.0[self.of_row(row)].iter().rfind(|said| said.is_way());
        said.map(|said| said.plugin.as_str())
    }

    /// The row skips the detokenizer, as those of its request before.
    pub fn skip(&mut self, row: u32, plugin: &str, tokens: u32) {
        let of_row = self.of_row(row);
        let at = of_row.end;
        let forwarded = self.0[of_row].last().map_or(tokens, |said| said.forwarded);
        let said = RecordedVerdict {
            row,
            plugin: plugin.to_owned(),
            verdict: journal::Verdict::SkipDetokenizing,
            text: String::new(),
            ids: Vec::new(),
            forwarded,
        };
        self.0.insert(at, said);
    }

    pub fn iter(&self) -> std::slice::Iter<'_, RecordedVerdict> {
        self.0.iter()
    }

    /// The verdicts as the journal records them.
    pub fn plugin_actions(&self) -> impl Iterator<Item = journal::PluginAction<'_>> {
        let said = self.0.iter();
        said.map(|said| journal::PluginAction {
            row: said.row,
            plugin: (&said.plugin).into(),
            verdict: said.verdict,
            text: (&said.text).into(),
            ids: (&said.ids).into(),
            forwarded: said.forwarded,
        })
    }
}

impl RecordedVerdicts {
    /// So many rows that waited with the plugin go on by themselves, in this one.
    pub fn release(&mut self, row: u32, plugin: &str, text: &str, rows: usize, forwarded: u32) {
        let (plugin, text) = (plugin.to_owned(), text.to_owned());
        let verdict = journal::Verdict::Release;
        self.0.push(RecordedVerdict { row, plugin, verdict, text, ids: vec![rows as i64], forwarded });
    }

    /// What was released waits again.
    pub fn hold_again(&mut self, row: u32, plugin: &str) {
        let at = self.0.partition_point(|said| said.row <= row);
        let (plugin, text) = (plugin.to_owned(), hold_end_words(HoldEnd::Columns).to_owned());
        let said = RecordedVerdict {
            row,
            plugin,
            verdict: journal::Verdict::Hold,
            text,
            ids: Vec::new(),
            forwarded: 0,
        };
        self.0.insert(at, said);
    }
}

/// Why rows went on, as the journal has it.
pub fn hold_end_words(why: HoldEnd) -> &'static str {
    match why {
        HoldEnd::Verdict => "",
        HoldEnd::Time => "its time was over",
        HoldEnd::Last => "the request's last row",
        HoldEnd::Instance => "the plugin's instance is another",
        HoldEnd::Room => "no room for more rows",
        HoldEnd::Columns => "a row that cannot be joined",
        HoldEnd::Start => "held before the last start or panic",
        HoldEnd::Stop => "nothing more comes",
    }
}
