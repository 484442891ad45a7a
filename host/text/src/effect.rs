//! What a token does to a text: for every state before it, the state after, and whether rows may still be joined over
//! it. Made once a token when a vocabulary is loaded; a request's rows only look it up.

use crate::spelling::Spelled;
use crate::utf8::{self, Lossy, State, Step};

/// By the state before: the state after in the low four bits, with [`CHANGED`], [`BROKEN`] and [`SHOWN`].
pub(crate) type Effect = [u8; State::VALUES];

/// The state after.
pub(crate) const STATE: u8 = 0x0f;
/// The text so far is another than before: more than an open character went on.
pub(crate) const CHANGED: u8 = 0x10;
/// Rows are not to be joined over this: the reader's text is not known, or what it has taken as final would change.
pub(crate) const BROKEN: u8 = 0x20;
/// There are characters that the reader may already have let through.
pub(crate) const SHOWN: u8 = 0x40;

const LOST: u8 = State::Unsure as u8 | CHANGED | BROKEN;

/// Of an id that is not of the vocabulary. (SGLang 0.5.23 decodes such an id as token 0.)
pub(crate) const UNKNOWN: Effect = [LOST; State::VALUES];

/// What a token does. An `added` one may be text or, skipped, nothing: which of the two stands in each row of SGLang's
/// batches, not in the vocabulary.
pub(crate) fn effect(spelled: &Spelled, added: bool) -> Effect {
    let certain = |from| match spelled {
        Spelled::Bytes(bytes) => of_bytes(bytes, from),
        Spelled::Byte(byte) => of_byte_token(*byte, from),
        Spelled::Text { replaced } => of_text(*replaced),
        Spelled::Blank => optional(State::Whole as u8, from),
    };
    let of = |from| if added { optional(certain(State::Whole), from) } else { certain(from) };
    let mut effect = UNKNOWN;
    for from in State::ALL {
        effect[from as usize] = of(from);
    }
    effect
}

/// Bytes of a byte-level vocabulary.
fn of_bytes(bytes: &[u8], from: State) -> u8 {
    if bytes.is_empty() {
        return optional(State::Whole as u8, from);
    }
    if from == State::Unsure {
        // Only what comes out the same whatever stood before is known.
        let before = State::ALL.into_iter().filter(|state| state.is_open() || *state == State::Whole);
        let mut ends = before.map(|state| Lossy::new(state).feed(bytes).state);
        let first = ends.next().unwrap_or(State::Unsure);
        let end = if ends.all(|end| end == first) { first } else { State::Unsure };
        return end as u8 | CHANGED | SHOWN;
    }
    let read = Lossy::new(from).feed(bytes);
    flags(read.state, read.changed, read.finished)
}

/// A byte token. The reader's decoder takes a run of them together: if it is not all UTF-8, each byte of it becomes
/// U+FFFD, those of finished characters too. So a run may be trusted only while it has nothing that could be undone: a
/// single character, or ASCII (as many bytes as characters: nothing moves in a window that starts in it).
fn of_byte_token(byte: u8, from: State) -> u8 {
    let step = match from {
        // A space may be cut from the front of a window: one character less than bytes.
        _ if byte == b' ' => Step::Stray,
        State::Whole | State::Replaced => utf8::begin(byte),
        State::AsciiRun if byte.is_ascii() => Step::Char,
        _ if from.is_open() => utf8::go_on(from, byte),
        _ => Step::Stray,
    };
    match step {
        Step::Char if byte.is_ascii() => flags(State::AsciiRun, true, true),
        Step::Char => flags(State::CharRun, true, true),
        // One U+FFFD more with every byte.
        Step::Open(state) => flags(state, true, false),
        Step::Replacement | Step::Stray => LOST,
    }
}

/// A token of text ends every run.
fn of_text(replaced: bool) -> u8 {
    flags(if replaced { State::Replaced } else { State::Whole }, true, true)
}

/// Either nothing, or what `text` is from the start: the same only where the text is whole before and after.
fn optional(text: u8, from: State) -> u8 {
    let stays = State::is_whole(from as u8) && text & STATE == State::Whole as u8;
    if stays { from as u8 | CHANGED | SHOWN } else { LOST }
}

fn flags(state: State, changed: bool, shown: bool) -> u8 {
    state as u8 | if changed { CHANGED } else { 0 } | if shown { SHOWN } else { 0 }
}
