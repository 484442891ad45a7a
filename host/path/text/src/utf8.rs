//! The states of a text, and the effect of one byte of UTF-8 on them.
//!
//! Invalid bytes become U+FFFD as in Python's and Rust's lossy decoders: one for the longest start of a character, then
//! decoding continues with the byte that did not fit. Text after a complete character never depends on the text before
//! it.

/// The state of a text, in four bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum TextState {
    /// At the start, or after a character.
    Whole = 0,
    /// After U+FFFD, with no open character.
    Replaced = 1,
    /// Inside a character: one continuation byte is missing.
    One = 2,
    /// Two continuation bytes are missing.
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
    /// After EF: two more, which may spell U+FFFD itself.
    Ef = 9,
    /// After EF BF: one more; BD spells U+FFFD.
    EfBf = 10,
    /// Unknown, until text that ends whole after any state.
    Unsure = 11,
    /// After ASCII byte tokens: whole, but an invalid byte would undo them.
    AsciiRun = 12,
    /// After byte tokens of one longer character: whole, but another byte token could undo it.
    CharRun = 13,
}

impl TextState {
    /// The number of values of four bits: an effect has an entry for each.
    pub const VALUES: usize = 16;

    pub const ALL: [TextState; 14] = [
        TextState::Whole,
        TextState::Replaced,
        TextState::One,
        TextState::Two,
        TextState::E0,
        TextState::Ed,
        TextState::Three,
        TextState::F0,
        TextState::F4,
        TextState::Ef,
        TextState::EfBf,
        TextState::Unsure,
        TextState::AsciiRun,
        TextState::CharRun,
    ];

    const WHOLE: u16 =
        1 << TextState::Whole as u8 | 1 << TextState::AsciiRun as u8 | 1 << TextState::CharRun as u8;

    /// Whether the state in these four bits is whole.
    pub const fn is_whole(bits: u8) -> bool {
        TextState::WHOLE >> (bits & 0x0f) & 1 == 1
    }

    /// Whether the text ends inside a character.
    pub const fn is_open(self) -> bool {
        matches!(self as u8, 2..=10)
    }
}

/// The effect of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByteStep {
    /// It completes a character.
    Char,
    /// It completes a spelled-out U+FFFD.
    Replacement,
    /// It leaves a character open.
    Open(TextState),
    /// It does not fit.
    Stray,
}

/// Reads a byte when no character is open.
pub(crate) const fn begin(byte: u8) -> ByteStep {
    match byte {
        0x00..=0x7f => ByteStep::Char,
        0xc2..=0xdf => ByteStep::Open(TextState::One),
        0xe0 => ByteStep::Open(TextState::E0),
        0xed => ByteStep::Open(TextState::Ed),
        0xef => ByteStep::Open(TextState::Ef),
        0xe1..=0xee => ByteStep::Open(TextState::Two),
        0xf0 => ByteStep::Open(TextState::F0),
        0xf1..=0xf3 => ByteStep::Open(TextState::Three),
        0xf4 => ByteStep::Open(TextState::F4),
        0x80..=0xc1 | 0xf5..=0xff => ByteStep::Stray,
    }
}

/// Reads a byte inside the character `open`.
pub(crate) const fn go_on(open: TextState, byte: u8) -> ByteStep {
    match (open, byte) {
        (TextState::EfBf, 0xbd) => ByteStep::Replacement,
        (TextState::One | TextState::EfBf, 0x80..=0xbf) => ByteStep::Char,
        (TextState::Ef, 0xbf) => ByteStep::Open(TextState::EfBf),
        (TextState::Two | TextState::Ef, 0x80..=0xbf)
        | (TextState::E0, 0xa0..=0xbf)
        | (TextState::Ed, 0x80..=0x9f) => ByteStep::Open(TextState::One),
        (TextState::Three, 0x80..=0xbf) | (TextState::F0, 0x90..=0xbf) | (TextState::F4, 0x80..=0x8f) => {
            ByteStep::Open(TextState::Two)
        }
        _ => ByteStep::Stray,
    }
}

/// Reads bytes like a lossy decoder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lossy {
    pub state: TextState,
    /// Whether the text changed, beyond continuing an open character.
    pub changed: bool,
    /// Whether a character was completed.
    pub finished: bool,
}

impl Lossy {
    /// Starts from a known state.
    pub fn new(state: TextState) -> Lossy {
        Lossy { state, changed: false, finished: false }
    }

    pub fn feed(mut self, bytes: &[u8]) -> Lossy {
        for byte in bytes {
            let mut step = if self.state.is_open() { go_on(self.state, *byte) } else { begin(*byte) };
            self.changed |= !self.state.is_open() || !matches!(step, ByteStep::Open(_));
            if self.state.is_open() && step == ByteStep::Stray {
                step = begin(*byte);
            }
            self.finished |= step == ByteStep::Char;
            self.state = match step {
                ByteStep::Char => TextState::Whole,
                ByteStep::Open(state) => state,
                ByteStep::Replacement | ByteStep::Stray => TextState::Replaced,
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
            let read = Lossy::new(TextState::Whole).feed(&bytes);
            prop_assert_eq!(TextState::is_whole(read.state as u8), ends, "{:x?} {:?}", bytes, read);
        }

        #[test]
        fn bytes_that_report_no_change_change_nothing(before in bytes(), bytes in bytes()) {
            let first = Lossy::new(TextState::Whole).feed(&before);
            let then = Lossy::new(first.state).feed(&bytes);
            let all = [before.clone(), bytes].concat();
            if !then.changed {
                prop_assert_eq!(String::from_utf8_lossy(&before), String::from_utf8_lossy(&all));
            }
        }
    }
}
