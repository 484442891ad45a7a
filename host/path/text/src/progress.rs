//! The state of one request's text, updated by each of its rows, and whether its first tool call has begun.

use crate::calls::CallRole;
use crate::effect::{BROKEN, CHANGED, SHOWN, STATE};
use crate::utf8::TextState;
use crate::vocabulary::Vocabulary;

/// The state of one request's text. The default is a request's start: whole.
///
/// It is updated with the ids that the detokenizer decodes: `decode_ids` of every row in order. A request's first row
/// has the prompt's tail before the first output ids. The tail may be included or left out: the state is certain again
/// at the next character, and the reader drops the prompt's unfinished text in single and in joined rows alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextProgress {
    /// A [`TextState`].
    state: u8,
    /// [`BROKEN`] and [`SHOWN`] of the rows since the last one that ended whole.
    since_whole: u8,
}

/// The end of a row, for joining.
///
/// A joined row begins anywhere, ends with a `Whole` row, and may contain `Open` rows but no `Broken` one. `Open` rows
/// without a `Whole` one after them, before a `Broken` one or the end of the backlog, are sent singly. A request's last
/// row may end a joined row unless it is `Broken` or follows a `Broken` one: nothing is decoded after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum TextEnd {
    /// The text is whole after this row: a joined row may end with it.
    Whole,
    /// The row ends inside a character, or after U+FFFD: a joined row may continue over it, but not end with it.
    Open,
    /// The row is sent singly, joined with no row before or after it.
    Broken,
}

impl TextEnd {
    /// Whether a joined row may end here.
    pub fn is_whole(self) -> bool {
        self == TextEnd::Whole
    }
}

impl TextProgress {
    /// Updates the state with the request's next `decode_ids`. It takes a few ns per token and allocates nothing.
    pub fn advance(&mut self, vocabulary: &Vocabulary, ids: &[i64]) -> TextEnd {
        let was_whole = self.is_whole();
        let (mut state, mut seen) = (self.state, 0);
        for id in ids {
            let step = vocabulary.effect(*id)[usize::from(state & STATE)];
            state = step & STATE;
            seen |= step;
        }
        self.state = state;
        if self.is_whole() {
            self.since_whole = 0;
            return if seen & BROKEN == 0 { TextEnd::Whole } else { TextEnd::Broken };
        }
        // The text that the reader sent of open rows may shrink if the text changes and stays open. The reader then
        // repeats text, and single rows must look the same as without Afterbay.
        let unsteady = !was_whole && seen & CHANGED != 0 && self.since_whole & SHOWN != 0;
        self.since_whole |= seen & (BROKEN | SHOWN);
        if unsteady {
            self.since_whole |= BROKEN;
        }
        if self.since_whole & BROKEN == 0 { TextEnd::Open } else { TextEnd::Broken }
    }

    /// Whether the text is whole after the rows so far: the reader's `decode` of them does not end with U+FFFD.
    pub fn is_whole(self) -> bool {
        TextState::is_whole(self.state)
    }
}

/// A request's output before its first tool call.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallProgress {
    /// Whether the text has begun, so that a bracket is text.
    is_text: bool,
}

impl CallProgress {
    /// Takes the request's next output ids. Returns whether a tool call may begin in them.
    pub fn advance(&mut self, vocabulary: &Vocabulary, ids: &[i64]) -> bool {
        for id in ids {
            match vocabulary.call_role(*id) {
                Some(CallRole::Marker) => return true,
                Some(CallRole::Bracket) if !self.is_text => return true,
                Some(CallRole::Start) => self.is_text = false,
                Some(CallRole::Blank) => {}
                Some(CallRole::Bracket) | None => self.is_text = true,
            }
        }
        false
    }
}
