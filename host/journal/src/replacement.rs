//! What [`Verdict::Replace`] put in the place of a row's tokens, as the text and the ids of an action say it.

use crate::bounds::TEXT_BYTES_MAX;
use crate::outcome::Verdict;
use crate::stored::Action;

/// How the action's text begins where all ids so far are others.
const CUMULATIVE: &str = "cumulative";
/// How it begins where the row's text is another; that follows.
const TEXT: &str = "text: ";

/// What a row has in the place of its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement<'a> {
    /// These ids; and this text, where that is another and is kept.
    Row {
        /// In place of the row's.
        ids: &'a [i64],
        /// In place of the row's.
        text: Option<&'a str>,
    },
    /// Other ids than all so far. They stand in the journal already, in the request's rows.
    Cumulative,
}

impl Replacement<'_> {
    /// The text of an action that gives a row this text. `None`: it is too long to be kept, and is left out.
    pub fn with_text(text: &str) -> Option<String> {
        (TEXT.len() + text.len() <= TEXT_BYTES_MAX).then(|| format!("{TEXT}{text}"))
    }

    /// The text of an action that gives a request so many other ids than all so far.
    pub fn cumulative(ids: usize) -> String {
        format!("{CUMULATIVE}, {ids} ids")
    }
}

impl Action {
    /// What it put in the place of the row's tokens. `None`: it is of another kind.
    pub fn replaced(&self) -> Option<Replacement<'_>> {
        if self.verdict != Verdict::Replace {
            return None;
        }
        Some(match self.text.starts_with(CUMULATIVE) {
            true => Replacement::Cumulative,
            false => Replacement::Row { ids: &self.ids, text: self.text.strip_prefix(TEXT) },
        })
    }

    /// How many rows that waited it let go with this one. `None`: it is of another kind, or does not say.
    pub fn released(&self) -> Option<usize> {
        let count = self.ids.first().filter(|_| self.verdict == Verdict::Release)?;
        usize::try_from(*count).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(verdict: Verdict, text: String) -> Action {
        Action { row: 0, plugin: "p".to_owned(), verdict, text, ids: vec![7], forwarded: 1 }
    }

    #[test]
    fn a_replacement_is_read_as_it_was_written() {
        let ids = &[7][..];
        let replaced = |text: Option<&str>| {
            let text = text.map_or_else(String::new, |text| Replacement::with_text(text).unwrap());
            action(Verdict::Replace, text)
        };
        assert_eq!(replaced(None).replaced(), Some(Replacement::Row { ids, text: None }));
        for text in ["", "cumulative", "text: "] {
            assert_eq!(replaced(Some(text)).replaced(), Some(Replacement::Row { ids, text: Some(text) }));
        }
        let all = action(Verdict::Replace, Replacement::cumulative(12));
        assert_eq!(all.replaced(), Some(Replacement::Cumulative));
        assert_eq!(action(Verdict::Drop, "text: a".to_owned()).replaced(), None);
    }

    #[test]
    fn a_text_is_stored_completely_or_not_at_all() {
        let longest = TEXT_BYTES_MAX - TEXT.len();
        assert_eq!(Replacement::with_text(&"x".repeat(longest)).map(|text| text.len()), Some(TEXT_BYTES_MAX));
        assert_eq!(Replacement::with_text(&"x".repeat(longest + 1)), None);
    }
}
