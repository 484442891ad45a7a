//! Where one request's text stands, moved on by each of its rows.

use crate::Vocabulary;
use crate::effect::{BROKEN, CHANGED, SHOWN, STATE};
use crate::utf8::State;

/// Where one request's text stands. The default is a request's start: whole.
///
/// It is fed what the detokenizer decodes, `decode_ids` of every row in order, each once. A request's first row holds
/// the prompt's tail before the first output ids; it may be fed or left out: a text finds its place again at the next
/// character, and what SGLang had not taken as final in the prompt it drops in single and in joined rows alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Of [`State`].
    state: u8,
    /// [`BROKEN`] and [`SHOWN`] of the rows since the last that ended whole.
    since_whole: u8,
}

/// How a row ends, and what that means to who joins.
///
/// A joined row begins anywhere, ends with a `Whole` row, holds no `Broken` one, and whatever `Open` rows lie between.
/// `Open` rows that no `Whole` one follows, before a `Broken` one or the end of what waits, go singly. A request's last
/// row ends a joined row in any case but after or as a `Broken` one: nothing is decoded after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Ending {
    /// The text is whole after this row: a joined row may end with it.
    Whole,
    /// The row ends inside a character, or after U+FFFD: a joined row may go on over it, but not end.
    Open,
    /// The row goes singly: it is joined neither to rows before it nor after.
    Broken,
}

impl Ending {
    /// A joined row may end here.
    pub fn is_whole(self) -> bool {
        self == Ending::Whole
    }
}

impl Progress {
    /// The request's next row of ids, those of `decode_ids`. A few ns a token; allocates nothing.
    pub fn advance(&mut self, vocabulary: &Vocabulary, ids: &[i64]) -> Ending {
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
            return if seen & BROKEN == 0 { Ending::Whole } else { Ending::Broken };
        }
        // What the reader let through of open rows may shrink again if the text after it goes on but does not end; it
        // then repeats itself, and single rows are to look as they do without us.
        let unsteady = !was_whole && seen & CHANGED != 0 && self.since_whole & SHOWN != 0;
        self.since_whole |= seen & (BROKEN | SHOWN);
        if unsteady {
            self.since_whole |= BROKEN;
        }
        if self.since_whole & BROKEN == 0 { Ending::Open } else { Ending::Broken }
    }

    /// Whether the text ends whole after the rows so far: the reader's `decode` of them does not end with U+FFFD.
    pub fn is_whole(self) -> bool {
        State::is_whole(self.state)
    }
}
