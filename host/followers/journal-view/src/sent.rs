//! The rows that were sent in the place of a frame's, by the bytes that the journal has of them.

use afterbay_journal::{Passage, PluginAction, StoredReplacement, stored_rid};
use afterbay_wire::{Batch, DecodedFrame};
use std::collections::HashMap;

/// The id of a token that the journal counts and does not have.
pub const UNKNOWN_ID: i64 = -1;

/// The rows in place of those with actions.
pub(crate) enum Changed {
    /// Every row was sent as it was received.
    AsReceived,
    /// No row was sent.
    Nothing,
    /// The rows that were sent, by the stored form of their rids.
    Rows(Box<Batch>, HashMap<Box<str>, u32>),
    /// Some rows differ, but the journal does not have them.
    Unknown,
}

/// The ids of a row that were sent on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SentIds {
    AsReceived,
    /// These ids.
    Row(Vec<i64>),
    /// These ids, in place of all ids of the request so far.
    Cumulative(Vec<i64>),
}

impl Changed {
    /// The rows of a frame that passed in this way, with the decoded bytes that were sent in its place.
    pub(crate) fn new(passage: &Passage<'_>, changed: Option<DecodedFrame>) -> Changed {
        match (passage, changed) {
            (Passage::Dropped, _) => Changed::Nothing,
            (_, Some(DecodedFrame::Batch(batch))) => {
                let rids = batch.rid_bytes().map(|rid| Box::from(&*stored_rid(rid)));
                let by_rid = rids.zip(0..).collect();
                Changed::Rows(Box::new(batch), by_rid)
            }
            (_, Some(DecodedFrame::Barrier(_))) | (Passage::Changed, None) => Changed::Unknown,
            (_, None) => Changed::AsReceived,
        }
    }

    /// The ids of a row that were sent on. `actions` are those on the row, which received so many tokens.
    pub(crate) fn ids(&self, rid: &str, actions: &[PluginAction<'_>], received: u32) -> SentIds {
        match self {
            Changed::AsReceived => SentIds::AsReceived,
            Changed::Nothing => SentIds::Row(Vec::new()),
            Changed::Unknown => {
                let forwarded = actions.last().map_or(received, |last| last.forwarded);
                SentIds::Row(vec![UNKNOWN_ID; forwarded as usize])
            }
            Changed::Rows(batch, by_rid) => {
                let mut ids = Vec::new();
                if let Some(row) = by_rid.get(rid) {
                    batch.row_ids(*row, &mut ids);
                }
                let replaced = actions.iter().rev().find_map(PluginAction::replaced);
                match replaced {
                    Some(StoredReplacement::Cumulative) if by_rid.contains_key(rid) => {
                        SentIds::Cumulative(ids)
                    }
                    _ => SentIds::Row(ids),
                }
            }
        }
    }

    /// The text of a row that was sent on, if its rows have texts.
    pub(crate) fn text(&self, rid: &str) -> Option<&str> {
        match self {
            Changed::Rows(batch, by_rid) => batch.text(*by_rid.get(rid)?),
            Changed::AsReceived | Changed::Nothing | Changed::Unknown => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_without_an_action_of_which_neither_side_is_stored_is_missing_with_all_its_tokens() {
        let changed = Changed::new(&Passage::Changed, None);
        assert_eq!(changed.ids("r", &[], 3), SentIds::Row(vec![UNKNOWN_ID; 3]));
    }
}
