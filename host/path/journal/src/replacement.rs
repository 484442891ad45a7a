//! StoredReplacement of a row's tokens, as the text and the ids of an action encode it.

use crate::bounds::TEXT_BYTES_MAX;
use crate::outcome::{CUMULATIVE, NEW_TEXT, PluginAction, Verdict};

/// StoredReplacement of a row's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredReplacement<'a> {
    /// Replaces the tokens of the row.
    Row {
        /// New ids.
        ids: &'a [i64],
        /// New text, if it differs and was stored.
        text: Option<&'a str>,
    },
    /// Replaces all ids of the request so far. The rows of the request hold them.
    Cumulative,
}

impl StoredReplacement<'_> {
    /// Text of an action that gives a row this text. Returns `None` if the text is too long to be stored.
    pub fn with_text(text: &str) -> Option<String> {
        (NEW_TEXT.len() + text.len() <= TEXT_BYTES_MAX).then(|| format!("{NEW_TEXT}{text}"))
    }

    /// Text of an action that replaces all ids of a request so far with this number of ids.
    pub fn cumulative(ids: usize) -> String {
        format!("{CUMULATIVE}, {ids} ids")
    }
}

impl PluginAction<'_> {
    /// StoredReplacement of the row's tokens, for `Replace`.
    pub fn replaced(&self) -> Option<StoredReplacement<'_>> {
        if self.verdict != Verdict::Replace {
            return None;
        }
        Some(match self.text.starts_with(CUMULATIVE) {
            true => StoredReplacement::Cumulative,
            false => StoredReplacement::Row { ids: &self.ids, text: self.text.strip_prefix(NEW_TEXT) },
        })
    }

    /// Number of held rows that the action released, for `Release`.
    pub fn released(&self) -> Option<usize> {
        let count = self.ids.first().filter(|_| self.verdict == Verdict::Release)?;
        usize::try_from(*count).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(verdict: Verdict, text: String) -> PluginAction<'static> {
        let (plugin, ids) = ("p".into(), vec![7].into());
        PluginAction { row: 0, plugin, verdict, text: text.into(), ids, forwarded: 1 }
    }

    #[test]
    fn a_replacement_is_read_as_it_was_written() {
        let ids = &[7][..];
        let replaced = |text: Option<&str>| {
            let text = text.map_or_else(String::new, |text| StoredReplacement::with_text(text).unwrap());
            action(Verdict::Replace, text)
        };
        assert_eq!(replaced(None).replaced(), Some(StoredReplacement::Row { ids, text: None }));
        for text in ["", "cumulative", "text: "] {
            assert_eq!(
                replaced(Some(text)).replaced(),
                Some(StoredReplacement::Row { ids, text: Some(text) })
            );
        }
        let all = action(Verdict::Replace, StoredReplacement::cumulative(12));
        assert_eq!(all.replaced(), Some(StoredReplacement::Cumulative));
        assert_eq!(action(Verdict::Drop, "text: a".to_owned()).replaced(), None);
    }

    #[test]
    fn a_text_is_stored_completely_or_not_at_all() {
        let longest = TEXT_BYTES_MAX - NEW_TEXT.len();
        assert_eq!(
            StoredReplacement::with_text(&"x".repeat(longest)).map(|text| text.len()),
            Some(TEXT_BYTES_MAX)
        );
        assert_eq!(StoredReplacement::with_text(&"x".repeat(longest + 1)), None);
    }
}
