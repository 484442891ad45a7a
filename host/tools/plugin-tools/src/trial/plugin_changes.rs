//! The changes that plugins made to a request, from the outcomes of its rows: recorded ones, or those of a trial.

use afterbay_journal::{PluginAction, RowEffect, Verdict, row_effects};
use serde_json::json;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The end of a request that a plugin or an operator made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EarlyEnd {
    /// Tokens received for the request up to its last row for the reader, the row included.
    pub(crate) token: u64,
    /// The frame of that row in the journal.
    pub(crate) frame: u64,
    pub(crate) plugin: String,
    /// The finish reason that the reader gets: `stop`, `length` or `abort`.
    pub(crate) reason: &'static str,
    /// The matched text, or the message of an abort.
    pub(crate) text: String,
}

/// The changes that plugins made to a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct PluginChanges {
    pub(crate) end: Option<EarlyEnd>,
    /// Tokens, without those of rows after the end.
    pub(crate) dropped: u64,
    pub(crate) replaced: u64,
    /// Tokens of rows that were received after the end.
    pub(crate) swallowed: u64,
    pub(crate) rows_held: u64,
    /// A hash of the verdicts that change what the reader gets, in order.
    verdicts: u64,
}

/// A row as an outcome has it.
pub(crate) struct RowOfOutcome<'a> {
    /// The frame in the journal.
    pub(crate) frame: u64,
    /// Tokens received with the row; 0 in a release marker.
    pub(crate) tokens: u64,
    /// Tokens received for the request up to the row, the row included.
    pub(crate) received: u64,
    /// The actions on the row.
    pub(crate) actions: &'a [PluginAction<'static>],
}

impl PluginChanges {
    /// Adds a row.
    pub(crate) fn add(&mut self, row: &RowOfOutcome<'_>) {
        if row.actions.iter().any(PluginAction::is_swallowed) {
            self.swallowed += row.tokens;
            return;
        }
        let effect = row_effects(row.actions).next();
        let (dropped, replaced) = effect.map_or((0, 0), |it: RowEffect| it.dropped_and_replaced(row.tokens));
        (self.dropped, self.replaced) = (self.dropped + dropped, self.replaced + replaced);
        let mut is_held = false;
        for action in row.actions {
            match action.verdict {
                Verdict::Hold => is_held = true,
                // The moment of a release is no change: the reader gets the same tokens.
                Verdict::Release | Verdict::Annotate | Verdict::Fault => {}
                _ => self.change(action),
            }
            if let Some(reason) = action.verdict.finish_reason()
                && self.end.is_none()
            {
                self.end = Some(EarlyEnd {
                    token: row.received,
                    frame: row.frame,
                    plugin: action.plugin.to_string(),
                    reason,
                    text: action.text.to_string(),
                });
            }
        }
        // A row without tokens of its own was counted when it was received.
        self.rows_held += u64::from(is_held && row.tokens > 0);
    }

    fn change(&mut self, action: &PluginAction<'_>) {
        let mut hasher = DefaultHasher::new();
        // A plugin of another name may do the same.
        let kind = std::mem::discriminant(&action.verdict);
        (self.verdicts, kind, &*action.text, &*action.ids).hash(&mut hasher);
        self.verdicts = hasher.finish();
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        let end = self.end.as_ref().map(|EarlyEnd { token, frame, plugin, reason, text }| {
            json!({"token": token, "frame": frame, "plugin": plugin, "finish_reason": reason, "text": text})
        });
        json!({
            "end": end,
            "tokens_dropped": self.dropped,
            "tokens_replaced": self.replaced,
            "tokens_swallowed": self.swallowed,
            "rows_held": self.rows_held,
        })
    }
}

/// A way in which the changes to a request differ between then and the trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Difference {
    /// The request ends at an earlier token.
    EndsEarlier,
    /// The request ends at a later token, or not before the scheduler ends it.
    EndsLater,
    /// The request ends at the same token with another finish reason or text.
    EndsOtherwise,
    /// Other tokens are dropped or replaced, or rows go to other readers.
    Changed,
    /// Another number of rows is held.
    Held,
}

impl Difference {
    /// The name in JSON.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Difference::EndsEarlier => "ends_earlier",
            Difference::EndsLater => "ends_later",
            Difference::EndsOtherwise => "ends_otherwise",
            Difference::Changed => "changed",
            Difference::Held => "held",
        }
    }

    /// The name in a table.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Difference::EndsEarlier => "ends earlier",
            Difference::EndsLater => "ends later",
            Difference::EndsOtherwise => "ends otherwise",
            Difference::Changed => "other tokens",
            Difference::Held => "other holds",
        }
    }

    /// The differences between what happened and what happens in a trial. `finish`: the token at which the scheduler ended the
    /// request. A request that ends at another token is not compared further: its later rows differ anyway.
    pub(crate) fn between(
        then: &PluginChanges,
        trial: &PluginChanges,
        finish: Option<u64>,
    ) -> Vec<Difference> {
        let token = |changes: &PluginChanges| {
            changes.end.as_ref().map(|end| end.token).or(finish).unwrap_or(u64::MAX)
        };
        match (token(then), token(trial)) {
            (then, trial) if trial < then => return vec![Difference::EndsEarlier],
            (then, trial) if trial > then => return vec![Difference::EndsLater],
            _ => {}
        }
        let said = |changes: &PluginChanges| changes.end.as_ref().map(|end| (end.reason, end.text.clone()));
        let mut found = Vec::new();
        let is_same_end = said(then) == said(trial);
        if !is_same_end {
            found.push(Difference::EndsOtherwise);
        }
        let tokens = |changes: &PluginChanges| (changes.dropped, changes.replaced, changes.swallowed);
        if tokens(then) != tokens(trial) || is_same_end && then.verdicts != trial.verdicts {
            found.push(Difference::Changed);
        }
        if then.rows_held != trial.rows_held {
            found.push(Difference::Held);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterbay_journal::SWALLOWED;

    fn action(plugin: &str, verdict: Verdict, text: &str, ids: &[i64]) -> PluginAction<'static> {
        let (plugin, text) = (plugin.to_owned().into(), text.to_owned().into());
        PluginAction { row: 0, plugin, verdict, text, ids: ids.to_vec().into(), forwarded: 0 }
    }

    /// The changes of a request with rows of two tokens, each with these actions.
    fn changes(rows: &[&[PluginAction<'static>]]) -> PluginChanges {
        let mut changes = PluginChanges::default();
        for (frame, actions) in (1..).zip(rows) {
            changes.add(&RowOfOutcome { frame, tokens: 2, received: frame * 2, actions });
        }
        changes
    }

    fn between(then: &PluginChanges, trial: &PluginChanges) -> Vec<Difference> {
        Difference::between(then, trial, None)
    }

    #[test]
    fn the_same_verdicts_of_a_plugin_with_another_name_are_no_difference() {
        let of = |plugin| changes(&[&[], &[action(plugin, Verdict::Replace, "", &[7])]]);
        assert_eq!(between(&of("a"), &of("b")), []);
    }

    #[test]
    fn an_end_at_another_token_is_the_only_difference() {
        let end = |text| action("loops", Verdict::Finish, text, &[]);
        let swallowed = action("loops", Verdict::Drop, SWALLOWED, &[]);
        let (never, early) = (changes(&[&[], &[], &[]]), changes(&[&[], &[end("loop")], &[swallowed]]));
        let otherwise = changes(&[&[], &[end("other")], &[action("loops", Verdict::Drop, SWALLOWED, &[])]]);
        assert_eq!(between(&never, &early), [Difference::EndsEarlier]);
        assert_eq!(between(&early, &never), [Difference::EndsLater]);
        assert_eq!(between(&early, &otherwise), [Difference::EndsOtherwise]);
        // The scheduler ended the request with the same row.
        assert_eq!(
            Difference::between(&never, &early, Some(4)),
            [Difference::EndsOtherwise, Difference::Changed]
        );
        let EarlyEnd { token, frame, reason, .. } = early.end.unwrap();
        assert_eq!((token, frame, reason, early.swallowed, early.dropped), (4, 2, "stop", 2, 0));
    }

    #[test]
    fn other_ids_and_other_texts_of_a_replacement_are_a_difference() {
        let of = |text, ids| changes(&[&[action("p", Verdict::Replace, text, ids)]]);
        assert_eq!(between(&of("", &[1]), &of("", &[2])), [Difference::Changed]);
        assert_eq!(between(&of("x", &[1]), &of("y", &[1])), [Difference::Changed]);
        assert_eq!(between(&of("x", &[1]), &of("x", &[1])), []);
    }

    #[test]
    fn held_rows_count_once_and_the_moment_of_their_release_does_not_matter() {
        let hold = || action("pii", Verdict::Hold, "for at most 1 s", &[]);
        let release = || action("pii", Verdict::Release, "", &[1]);
        let (by_row, mut by_time) = (changes(&[&[hold()], &[release()]]), changes(&[&[hold()], &[]]));
        let actions = &[release()];
        by_time.add(&RowOfOutcome { frame: 3, tokens: 0, received: 4, actions });
        assert_eq!((by_row.rows_held, by_time.rows_held), (1, 1));
        assert_eq!(between(&by_row, &by_time), []);
        assert_eq!(between(&by_row, &changes(&[&[], &[]])), [Difference::Held]);
    }
}
