//! The states that a text can be in, and what one byte of UTF-8 does to them.
//!
//! Bytes that are no character become U+FFFD as Python's and Rust's lossy decoders have it: one for the longest start
//! of a character, then on with the byte that did not belong. What follows a finished character never depends on what
//! stood before it.

/// Where a text stands. Fits in four bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// At the start, or after a character.
    Whole = 0,
    /// After U+FFFD; nothing is open.
    Replaced = 1,
    /// Inside a character: one more byte, any that continues.
    One = 2,
    /// Two more, any that continue.
    Two = 3,
    /// After E0: A0..BF, then one more.
    E0 = 4,
    /// After ED: 80..9F (no surrogates), then one more.
    Ed = 5,
    /// After F1..F3: three more.
    Three = 6,
    /// After F0: 90..BF, then two more.
    F0 = 7,
    /// After F4: 80..8F, then two more.
    F4 = 8,
    /// After EF: two more, that may spell U+FFFD itself.
    Ef = 9,
    /// After EF BF: one more; BD spells U+FFFD.
    EfBf = 10,
    /// Not known, until what ends whole whatever stood before.
    Unsure = 11,
    /// After byte tokens that are ASCII: whole, but a byte that does not belong would undo them.
    AsciiRun = 12,
    /// After byte tokens that are one longer character: whole, but another byte token could undo it.
    CharRun = 13,
}

impl State {
    /// How many values four bits have: an effect has an entry for each.
    pub const VALUES: usize = 16;

    pub const ALL: [State; 14] = [
        State::Whole,
        State::Replaced,
        State::One,
        State::Two,
        State::E0,
        State::Ed,
        State::Three,
        State::F0,
        State::F4,
        State::Ef,
        State::EfBf,
        State::Unsure,
        State::AsciiRun,
        State::CharRun,
    ];

    const WHOLE: u16 = 1 << State::Whole as u8 | 1 << State::AsciiRun as u8 | 1 << State::CharRun as u8;

    /// Whether a state of these four bits is whole.
    pub const fn is_whole(bits: u8) -> bool {
        State::WHOLE >> (bits & 0x0f) & 1 == 1
    }

    /// Inside a character.
    pub const fn is_open(self) -> bool {
        matches!(self as u8, 2..=10)
    }
}

/// What a byte makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A character is finished.
    Char,
    /// U+FFFD, spelled out, is.
    Replacement,
    /// Inside a character.
    Open(State),
    /// It does not belong here.
    Stray,
}

/// A byte where no character is open.
pub(crate) const fn begin(byte: u8) -> Step {
    match byte {
        0x00..=0x7f => Step::Char,
        0xc2..=0xdf => Step::Open(State::One),
        0xe0 => Step::Open(State::E0),
        0xed => Step::Open(State::Ed),
        0xef => Step::Open(State::Ef),
        0xe1..=0xee => Step::Open(State::Two),
        0xf0 => Step::Open(State::F0),
        0xf1..=0xf3 => Step::Open(State::Three),
        0xf4 => Step::Open(State::F4),
        0x80..=0xc1 | 0xf5..=0xff => Step::Stray,
    }
}

/// A byte inside the character that `open` says.
pub(crate) const fn go_on(open: State, byte: u8) -> Step {
    match (open, byte) {
        (State::EfBf, 0xbd) => Step::Replacement,
        (State::One | State::EfBf, 0x80..=0xbf) => Step::Char,
        (State::Ef, 0xbf) => Step::Open(State::EfBf),
        (State::Two | State::Ef, 0x80..=0xbf) | (State::E0, 0xa0..=0xbf) | (State::Ed, 0x80..=0x9f) => {
            Step::Open(State::One)
        }
        (State::Three, 0x80..=0xbf) | (State::F0, 0x90..=0xbf) | (State::F4, 0x80..=0x8f) => {
            Step::Open(State::Two)
        }
        _ => Step::Stray,
    }
}

/// Bytes read one after another, as a lossy decoder does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lossy {
    pub state: State,
    /// The text is another than before: more than an open character has gone on.
    pub changed: bool,
    /// A character was finished.
    pub finished: bool,
}

impl Lossy {
    /// From a state that is known.
    pub fn new(state: State) -> Lossy {
        Lossy { state, changed: false, finished: false }
    }

    pub fn feed(mut self, bytes: &[u8]) -> Lossy {
        for byte in bytes {
            let mut step = if self.state.is_open() { go_on(self.state, *byte) } else { begin(*byte) };
            self.changed |= !self.state.is_open() || !matches!(step, Step::Open(_));
            if self.state.is_open() && step == Step::Stray {
                step = begin(*byte);
            }
            self.finished |= step == Step::Char;
            self.state = match step {
                Step::Char => State::Whole,
                Step::Open(state) => state,
                Step::Replacement | Step::Stray => State::Replaced,
            };
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes that meet every rule often.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let edges = proptest::sample::select(vec![
            b'a', 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbd, 0xbf, 0xc1, 0xc2, 0xe0, 0xe6, 0xed, 0xef, 0xf0, 0xf1,
            0xf4, 0xf5,
        ]);
        proptest::collection::vec(prop_oneof![3 => edges, 1 => any::<u8>()], 0..12)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        #[test]
        fn a_text_is_whole_where_the_lossy_decoder_does_not_end_with_a_replacement(bytes in bytes()) {
            let ends = !String::from_utf8_lossy(&bytes).ends_with('\u{fffd}');
            let read = Lossy::new(State::Whole).feed(&bytes);
            prop_assert_eq!(State::is_whole(read.state as u8), ends, "{:x?} {:?}", bytes, read);
        }

        #[test]
        fn what_does_not_change_the_text_does_not(before in bytes(), bytes in bytes()) {
            let first = Lossy::new(State::Whole).feed(&before);
            let then = Lossy::new(first.state).feed(&bytes);
            let all = [before.clone(), bytes].concat();
            if !then.changed {
                prop_assert_eq!(String::from_utf8_lossy(&before), String::from_utf8_lossy(&all));
            }
        }
    }
}
