//! Escapes of JSON: text may be serialized, once or several times, and nothing says so.
//!
//! An escape is a run of backslashes and one of `"/bfnrt`, or `u` and four hexadecimal digits. The number of
//! backslashes does not matter: a newline is `\n`, and `\\n` if it is escaped twice. A plain text may have the same
//! characters (`C:\new`). Therefore a border of words stands behind an escape in either reading, and a match
//! neither begins nor ends inside of an escape. The digits behind `\u` are never read as text.

use std::borrow::Cow;

use regex_syntax::hir::{
    Class, ClassBytes, ClassBytesRange, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Repetition,
};

use crate::automaton::joins_words;

/// The bytes before a position in which an escape is looked for. Of a longer run of backslashes the end counts.
pub const ESCAPE_BYTES_MAX: usize = 16;
/// The most ranges of a class that are written as escapes one by one. A larger class has all escapes.
const RANGES_MAX: usize = 32;
/// The characters that have a letter, and the letter.
const LETTERS: [(char, u8); 8] = [
    ('\u{8}', b'b'),
    ('\t', b't'),
    ('\n', b'n'),
    ('\u{c}', b'f'),
    ('\r', b'r'),
    ('"', b'"'),
    ('/', b'/'),
    ('\\', b'\\'),
];
/// The characters that serializers write as `\u` and four digits: control characters, those of HTML, and all outside of ASCII.
const NUMBERED: [(char, char); 8] = [
    ('\0', '\u{1f}'),
    ('"', '"'),
    ('&', '\''),
    ('+', '+'),
    ('<', '<'),
    ('>', '>'),
    ('`', '`'),
    ('\u{7f}', '\u{ffff}'),
];

/// The place of a byte in an escape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Escape {
    /// No escape ends or goes on before this byte.
    #[default]
    None,
    /// Backslashes are before this byte.
    Backslash,
    /// A number is before this byte, without this many of its digits.
    Unicode { left: u8, number: u16 },
    /// An escape ends before this byte.
    Behind {
        /// Its character is part of a word.
        joins: bool,
        is_newline: bool,
    },
}

impl Escape {
    /// The place of the byte after `byte`.
    pub fn step(self, byte: u8) -> Self {
        let behind = |joins, is_newline| Self::Behind { joins, is_newline };
        match (self, byte) {
            (_, b'\\') => Self::Backslash,
            (Self::Backslash, b'u') => Self::Unicode { left: 4, number: 0 },
            (Self::Backslash, b'n') => behind(false, true),
            (Self::Backslash, b'"' | b'/' | b'b' | b'f' | b'r' | b't') => behind(false, false),
            (Self::Unicode { left, number }, _) => match (byte as char).to_digit(16) {
                Some(digit) => {
                    let number = same_for_words((number << 4) | digit as u16, left - 1);
                    if left == 1 {
                        behind(number_joins(number), number == u16::from(b'\n'))
                    } else {
                        Self::Unicode { left: left - 1, number }
                    }
                }
                None => Self::None,
            },
            _ => Self::None,
        }
    }

    /// The place of the byte after this text.
    pub fn after(text: &[u8]) -> Self {
        text.iter().fold(Self::None, |escape, byte| escape.step(*byte))
    }

    /// Whether the byte between this place and the one before begins an escape.
    fn begins_after(self, before: Self) -> bool {
        self == Self::Backslash && before != Self::Backslash
    }

    /// Whether the byte between this place and the one before belongs to an escape that has begun before it.
    pub fn goes_on_from(self, before: Self) -> bool {
        before.is_open() && self != Self::None && !self.begins_after(before)
    }

    /// Whether an escape with a number ends between this place and the one before.
    pub fn is_behind_number(self, before: Self) -> bool {
        matches!((before, self), (Self::Unicode { .. }, Self::Behind { .. }))
    }

    /// Bytes with the same number are the same to every escape.
    pub fn class(byte: u8) -> u8 {
        match byte {
            b'\\' => 1,
            b'u' => 2,
            b'n' => 3,
            b'"' | b'/' | b'r' | b't' => 4,
            // The digits, of which some are letters of escapes.
            _ if byte.is_ascii_hexdigit() => byte,
            _ => 0,
        }
    }

    /// Whether the escape goes on with this byte.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Backslash | Self::Unicode { .. })
    }
}

fn number_joins(number: u16) -> bool {
    match u8::try_from(number) {
        Ok(byte) if byte.is_ascii() => joins_words(byte, false),
        _ => (0xC0..=0x1FFF).contains(&number),
    }
}

/// The same number for all numbers that begin in this way if they agree on words: an automaton needs fewer states.
fn same_for_words(number: u16, left: u8) -> u16 {
    let bits = 4 * u32::from(left);
    let (low, high) = (u32::from(number) << bits, (u32::from(number) + 1) << bits);
    match (low, high) {
        (0xC0.., ..=0x2000) => 0x1FFF >> bits,
        (0x2000.., _) | (0x80.., ..=0xC0) => 0xFFFF >> bits,
        _ => number,
    }
}

/// The number of bytes at the end of the text that belong to an escape which goes on.
pub fn open_bytes(text: &[u8]) -> usize {
    let from = text.len().saturating_sub(ESCAPE_BYTES_MAX);
    let (mut escape, mut start) = (Escape::None, 0);
    for (at, &byte) in text.iter().enumerate().skip(from) {
        let next = escape.step(byte);
        if next.begins_after(escape) {
            start = at;
        }
        escape = next;
    }
    if escape.is_open() { text.len() - start } else { 0 }
}

/// Whether the text is one escape and nothing else.
pub fn is_escape(text: &[u8]) -> bool {
    text.split_last().is_some_and(|(last, before)| {
        open_bytes(before) == before.len()
            && matches!(Escape::after(before).step(*last), Escape::Behind { .. })
    })
}

/// The text with characters in place of its escapes, and with ASCII in place of characters of full width.
pub fn plain(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.iter().any(|byte| matches!(byte, b'\\' | 0xEF)) {
        return Cow::Borrowed(text);
    }
    let (mut plain, mut escape, mut start) = (Vec::with_capacity(text.len()), Escape::None, 0);
    for &byte in text {
        let next = escape.step(byte);
        if next.begins_after(escape) {
            start = plain.len();
        }
        plain.push(byte);
        if let Escape::Behind { .. } = next {
            let character = character(&plain[start..]);
            plain.truncate(start);
            plain.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        }
        escape = next;
    }
    let text = String::from_utf8_lossy(&plain);
    Cow::Owned(text.chars().map(narrow).collect::<String>().into_bytes())
}

/// The character of a whole escape.
fn character(escape: &[u8]) -> char {
    let last = escape.last().copied().unwrap_or_default();
    let letter = LETTERS.into_iter().find(|(_, letter)| *letter == last);
    match (escape.rsplit(|byte| *byte == b'u').next(), letter) {
        // Digits may be letters of escapes, too.
        (Some(digits), _) if digits.len() == 4 && escape.contains(&b'u') => {
            let number = str::from_utf8(digits).ok().and_then(|digits| u32::from_str_radix(digits, 16).ok());
            number.and_then(char::from_u32).unwrap_or(char::REPLACEMENT_CHARACTER)
        }
        (_, Some((character, _))) => character,
        (_, None) => char::REPLACEMENT_CHARACTER,
    }
}

/// The character of ASCII in place of one of full width.
fn narrow(character: char) -> char {
    match character {
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(u32::from(character) - 0xFEE0).unwrap_or(character),
        character => character,
    }
}

/// The pattern, with the escapes of each character beside the character. With `is_wide`, characters of ASCII stand
/// for those of full width, too.
pub fn with_escapes(hir: Hir, is_wide: bool) -> Hir {
    let of = |hir| with_escapes(hir, is_wide);
    match hir.into_kind() {
        HirKind::Empty => Hir::empty(),
        HirKind::Look(look) => Hir::look(look),
        HirKind::Literal(literal) => match str::from_utf8(&literal.0) {
            Ok(text) => Hir::concat(text.chars().map(|character| of_range(character, is_wide)).collect()),
            Err(_) => Hir::literal(literal.0),
        },
        HirKind::Class(Class::Unicode(class)) => of_class(class, is_wide),
        HirKind::Class(Class::Bytes(class)) => match class.to_unicode_class() {
            Some(class) => of_class(class, is_wide),
            None => Hir::class(Class::Bytes(class)),
        },
        HirKind::Repetition(Repetition { min, max, greedy, sub }) => {
            Hir::repetition(Repetition { min, max, greedy, sub: Box::new(of(*sub)) })
        }
        HirKind::Capture(capture) => of(*capture.sub),
        HirKind::Concat(parts) => Hir::concat(parts.into_iter().map(of).collect()),
        HirKind::Alternation(parts) => Hir::alternation(parts.into_iter().map(of).collect()),
    }
}

fn of_range(character: char, is_wide: bool) -> Hir {
    of_characters(ClassUnicode::new([ClassUnicodeRange::new(character, character)]), is_wide)
}

fn of_class(class: ClassUnicode, is_wide: bool) -> Hir {
    let has_backslash = class.iter().any(|range| (range.start()..=range.end()).contains(&'\\'));
    // Such a class takes an escape as it stands.
    if has_backslash { Hir::class(Class::Unicode(class)) } else { of_characters(class, is_wide) }
}

fn of_characters(mut class: ClassUnicode, is_wide: bool) -> Hir {
    if is_wide {
        widen(&mut class);
    }
    let overlaps =
        |from: char, to: char| class.iter().any(|range| range.start() <= to && from <= range.end());
    let letters = LETTERS.into_iter().filter(|(character, _)| overlaps(*character, *character));
    let letters: Vec<_> = letters.map(|(_, letter)| ClassBytesRange::new(letter, letter)).collect();
    let numbers = NUMBERED.into_iter().filter(|(from, to)| overlaps(*from, *to));
    let mut numbers = ClassUnicode::new(numbers.map(|(from, to)| ClassUnicodeRange::new(from, to)));
    if class.ranges().len() <= RANGES_MAX {
        numbers.intersect(&class);
    }
    let mut escapes = Vec::new();
    if !letters.is_empty() {
        escapes.push(Hir::class(Class::Bytes(ClassBytes::new(letters))));
    }
    for range in numbers.iter() {
        let (from, to) = (u32::from(range.start()), u32::from(range.end()));
        escapes.push(Hir::concat(vec![Hir::literal(*b"u"), hexadecimal(from, to, 4)]));
    }
    let character = Hir::class(Class::Unicode(class));
    if escapes.is_empty() {
        return character;
    }
    let sub = Box::new(Hir::literal(*b"\\"));
    let backslashes = Hir::repetition(Repetition { min: 1, max: None, greedy: true, sub });
    Hir::alternation(vec![character, Hir::concat(vec![backslashes, Hir::alternation(escapes)])])
}

/// Adds the characters of full width.
fn widen(class: &mut ClassUnicode) {
    let wide = class.iter().filter_map(|range| {
        let (from, to) = (range.start().max('!'), range.end().min('~'));
        let of = |character: char| char::from_u32(u32::from(character) + 0xFEE0);
        (from <= to).then_some(())?;
        Some(ClassUnicodeRange::new(of(from)?, of(to)?))
    });
    let wide: Vec<ClassUnicodeRange> = wide.collect();
    wide.into_iter().for_each(|range| class.push(range));
}

/// The hexadecimal numbers of this many digits from `low` to `high`.
fn hexadecimal(low: u32, high: u32, digits: u32) -> Hir {
    let unit = 16_u32.pow(digits.saturating_sub(1));
    if digits == 0 {
        return Hir::empty();
    }
    if (low, high) == (0, unit * 16 - 1) {
        let any = Hir::class(Class::Bytes(ClassBytes::new([
            ClassBytesRange::new(b'0', b'9'),
            ClassBytesRange::new(b'A', b'F'),
            ClassBytesRange::new(b'a', b'f'),
        ])));
        let max = Some(digits);
        return Hir::repetition(Repetition { min: digits, max, greedy: true, sub: Box::new(any) });
    }
    let with_digit = |digit: u32| {
        let (from, to) = (low.max(digit * unit), high.min((digit + 1) * unit - 1));
        let character = char::from_digit(digit, 16).unwrap_or('0');
        let both = [character.to_ascii_lowercase(), character.to_ascii_uppercase()];
        let both = both.map(|character| ClassUnicodeRange::new(character, character));
        let digit_class = Hir::class(Class::Unicode(ClassUnicode::new(both)));
        Hir::concat(vec![digit_class, hexadecimal(from - digit * unit, to - digit * unit, digits - 1)])
    };
    Hir::alternation((low / unit..=high / unit).map(with_digit).collect())
}
