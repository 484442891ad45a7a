//! The effect of a token on a text: for every state before it, the state after it, and whether rows may be joined over
//! it. Effects are computed once, when a vocabulary is loaded; rows look them up.

use crate::spelling::TokenText;
use crate::utf8::{self, ByteStep, Lossy, TextState};

/// For each state before, the state after in the low four bits, with [`CHANGED`], [`BROKEN`] and [`SHOWN`].
pub(crate) type TokenEffect = [u8; TextState::VALUES];

/// The mask of the state after.
pub(crate) const STATE: u8 = 0x0f;
/// The text so far changes, beyond continuing an open character.
pub(crate) const CHANGED: u8 = 0x10;
/// Rows must not be joined over the token: the reader's text is unknown, or its final text would change.
pub(crate) const BROKEN: u8 = 0x20;
/// The token completes characters that the reader may have sent already.
pub(crate) const SHOWN: u8 = 0x40;

const LOST: u8 = TextState::Unsure as u8 | CHANGED | BROKEN;

/// The effect of an id outside the vocabulary. (SGLang 0.5.23 decodes such an id as token 0.)
pub(crate) const UNKNOWN: TokenEffect = [LOST; TextState::VALUES];

/// The effect of a token. An `added` token may be text or skipped: each row of SGLang's batches decides, not the
/// vocabulary.
pub(crate) fn effect(spelled: &TokenText, added: bool) -> TokenEffect {
    let certain = |from| match spelled {
        TokenText::Bytes(bytes) => of_bytes(bytes, from),
        TokenText::Byte(byte) => of_byte_token(*byte, from),
        TokenText::Text { replaced } => of_text(*replaced),
        TokenText::Blank => optional(TextState::Whole as u8, from),
    };
    let of = |from| if added { optional(certain(TextState::Whole), from) } else { certain(from) };
    let mut effect = UNKNOWN;
    for from in TextState::ALL {
        effect[from as usize] = of(from);
    }
    effect
}

/// The effect of a byte-level token.
fn of_bytes(bytes: &[u8], from: TextState) -> u8 {
    if bytes.is_empty() {
        return optional(TextState::Whole as u8, from);
    }
    if from == TextState::Unsure {
        // Keeps only a state that is the same for all states before.
        let before = TextState::ALL.into_iter().filter(|state| state.is_open() || *state == TextState::Whole);
        let mut ends = before.map(|state| Lossy::new(state).feed(bytes).state);
        let first = ends.next().unwrap_or(TextState::Unsure);
        let end = if ends.all(|end| end == first) { first } else { TextState::Unsure };
        return end as u8 | CHANGED | SHOWN;
    }
    let read = Lossy::new(from).feed(bytes);
    flags(read.state, read.changed, read.finished)
}

/// The effect of a byte token. The reader decodes a run of them together: if the run is not UTF-8, each of its bytes
/// becomes U+FFFD, also those of complete characters. So a run is trusted only while nothing in it could be undone: a
/// single character, or ASCII (as many bytes as characters, so that nothing moves in a window that starts inside).
fn of_byte_token(byte: u8, from: TextState) -> u8 {
    let step = match from {
        // A space may be cut from the front of a window, leaving one character fewer than bytes.
        _ if byte == b' ' => ByteStep::Stray,
        TextState::Whole | TextState::Replaced => utf8::begin(byte),
        TextState::AsciiRun if byte.is_ascii() => ByteStep::Char,
        _ if from.is_open() => utf8::go_on(from, byte),
        _ => ByteStep::Stray,
    };
    match step {
        ByteStep::Char if byte.is_ascii() => flags(TextState::AsciiRun, true, true),
        ByteStep::Char => flags(TextState::CharRun, true, true),
        // Every further byte adds one U+FFFD.
        ByteStep::Open(state) => flags(state, true, false),
        ByteStep::Replacement | ByteStep::Stray => LOST,
    }
}

/// The effect of a text token, which ends every run.
fn of_text(replaced: bool) -> u8 {
    flags(if replaced { TextState::Replaced } else { TextState::Whole }, true, true)
}

/// The effect of a token that is either nothing or `text`: certain only if the text is whole before and after.
fn optional(text: u8, from: TextState) -> u8 {
    let stays = TextState::is_whole(from as u8) && text & STATE == TextState::Whole as u8;
    if stays { from as u8 | CHANGED | SHOWN } else { LOST }
}

fn flags(state: TextState, changed: bool, shown: bool) -> u8 {
    state as u8 | if changed { CHANGED } else { 0 } | if shown { SHOWN } else { 0 }
}
