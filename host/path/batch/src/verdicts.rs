//! The verdicts of the plugins on the rows of a batch, as the journal records them.

use crate::decision::{failed, recorded_end};
use crate::held::hold_end_words;
use afterbay_events::HoldEnd;
use afterbay_journal::{PluginAction, Verdict};
use std::ops::Range;

/// The verdicts on the rows of a batch. Sorted by row; the verdicts on one row are in the order of the chain.
#[derive(Default)]
pub struct RecordedVerdicts(Vec<PluginAction<'static>>);

fn is_destination(action: &PluginAction<'_>) -> bool {
    matches!(action.verdict, Verdict::Route | Verdict::SkipText)
}

fn action(row: u32, plugin: &str, verdict: Verdict, text: &str, forwarded: u32) -> PluginAction<'static> {
    let (plugin, text) = (plugin.to_owned().into(), text.to_owned().into());
    PluginAction { row, plugin, verdict, text, ids: Vec::new().into(), forwarded }
}

impl RecordedVerdicts {
    /// Appends a verdict. Call [`RecordedVerdicts::sort`] if a verdict on a later row may be there.
    pub fn push(&mut self, action: PluginAction<'static>) {
        self.0.push(action);
    }

    /// Sorts the verdicts by row, and keeps the order of the chain within each row.
    pub fn sort(&mut self) {
        self.0.sort_by_key(|action| action.row);
    }

    /// The verdict that was pushed last.
    pub fn last_mut(&mut self) -> Option<&mut PluginAction<'static>> {
        self.0.last_mut()
    }

    /// The verdicts in order.
    pub fn as_slice(&self) -> &[PluginAction<'static>] {
        &self.0
    }

    /// The verdicts in order.
    pub fn iter(&self) -> std::slice::Iter<'_, PluginAction<'static>> {
        self.0.iter()
    }

    /// Removes the verdicts on all rows for which `keeps` returns false.
    pub fn retain_rows(&mut self, keeps: impl Fn(u32) -> bool) {
        self.0.retain(|action| keeps(action.row));
    }

    /// Removes the verdicts that change or end a row, because none is carried out. All verdicts on held rows stay. `tokens`
    /// returns the tokens of a row as it is sent.
    pub fn revert(&mut self, is_held: impl Fn(u32) -> bool, tokens: impl Fn(u32) -> u32) {
        self.0.retain_mut(|action| {
            if is_held(action.row) {
                return true;
            }
            action.forwarded = tokens(action.row);
            !action.ends_request() && !matches!(action.verdict, Verdict::Replace | Verdict::Drop)
        });
    }

    fn of_row(&self, row: u32) -> Range<usize> {
        let end = self.0.partition_point(|action| action.row <= row);
        self.0.partition_point(|action| action.row < row)..end
    }

    /// Removes the verdicts that give this row a destination. Returns the plugins of these verdicts.
    pub fn take_destinations(&mut self, row: u32) -> Vec<String> {
        let of_row = self.of_row(row);
        self.0
            .extract_if(of_row, |action| is_destination(action))
            .map(|action| action.plugin.into())
            .collect()
    }

    /// The plugin that gives this row a destination.
    pub fn destination_plugin(&self, row: u32) -> Option<&str> {
        let action = self.0[self.of_row(row)].iter().rfind(|action| is_destination(action));
        action.map(|action| &*action.plugin)
    }

    /// Records that the row skips the detokenizer because of a verdict of this plugin on an earlier row.
    pub fn push_skip(&mut self, row: u32, plugin: &str, tokens: u32) {
        let of_row = self.of_row(row);
        let at = of_row.end;
        let forwarded = self.0[of_row].last().map_or(tokens, |action| action.forwarded);
        self.0.insert(at, action(row, plugin, Verdict::SkipText, "", forwarded));
    }

    /// Records that this row drops its tokens, and that its request ends with an error if `ends`.
    pub fn push_terminate(&mut self, row: u32, plugin: &str, message: &str, ends: bool) {
        self.0.push(action(row, plugin, Verdict::Drop, message, 0));
        if ends {
            let (verdict, text) = recorded_end(&failed(message));
            self.0.push(action(row, plugin, verdict, &text, 0));
        }
    }

    /// Records that `rows` held rows of the plugin leave in this row of a frame of Afterbay's own.
    pub fn push_release(&mut self, row: u32, plugin: &str, why: HoldEnd, rows: usize, forwarded: u32) {
        let release = action(row, plugin, Verdict::Release, hold_end_words(why), forwarded);
        self.0.push(PluginAction { ids: vec![rows as i64].into(), ..release });
    }

    /// Records that a released row is held again, because the batch could not be written with it. Removes the verdicts that
    /// the row is held again without: an end of the request, and each change after the release by `plugin`.
    pub fn push_hold_again(&mut self, row: u32, plugin: &str) {
        let of_row = self.of_row(row);
        let mut is_released = false;
        let undone = self.0.extract_if(of_row, |action| {
            is_released |= action.verdict == Verdict::Release && action.plugin == plugin;
            // The plugin may release its rows with other tokens.
            let is_later = is_released && (action.verdict == Verdict::Drop || action.plugin != plugin);
            action.ends_request() || (is_later && matches!(action.verdict, Verdict::Drop | Verdict::Replace))
        });
        undone.for_each(drop);
        let at = self.of_row(row).end;
        self.0.insert(at, action(row, plugin, Verdict::Hold, hold_end_words(HoldEnd::Columns), 0));
    }
}
