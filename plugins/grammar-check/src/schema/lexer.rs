//! The lexemes of JSON that consist of several bytes: strings, numbers, `true`, `false` and `null`.

use super::Types;

/// The place in a lexeme.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Lexer {
    #[default]
    Between,
    /// Before the first byte of a lexeme that [`Lexer::begin`] has seen.
    Before,
    String(InString),
    Number(InNumber),
    /// The rest of `true`, `false` or `null`.
    Word(&'static [u8]),
}

/// A lexeme that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    String,
    Other,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum InString {
    Text,
    /// Behind a backslash.
    Escape,
    /// This many hexadecimal digits of `\u` are missing.
    Hex(u8),
    /// In a character of several bytes: so many are missing, and the next one is in these bounds.
    Char {
        missing: u8,
        low: u8,
        high: u8,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum InNumber {
    Minus,
    Zero,
    Integer,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

impl Lexer {
    pub(crate) fn is_between(&self) -> bool {
        matches!(self, Lexer::Between)
    }

    pub(crate) fn is_string(&self) -> bool {
        matches!(self, Lexer::String(_))
    }

    /// Whether the text stands in a string, between two characters.
    pub(crate) fn is_in_text(&self) -> bool {
        matches!(self, Lexer::String(InString::Text))
    }

    /// Whether the lexeme may end here: only a number has no end of its own.
    pub(crate) fn may_end(&self) -> bool {
        matches!(self, Lexer::Number(state) if state.may_end())
    }

    /// Begins a lexeme with its first byte, which is read later. Returns the type of the value.
    pub(crate) fn begin(&mut self, byte: u8) -> Option<Types> {
        *self = Lexer::Before;
        match byte {
            b'"' => Some(Types::STRING),
            b'-' | b'0'..=b'9' => Some(Types::NUMBER),
            b't' | b'f' => Some(Types::BOOLEAN),
            b'n' => Some(Types::NULL),
            _ => None,
        }
    }

    /// Reads bytes of a lexeme. Returns their number, and the lexeme if it has ended. `None` if a byte is not
    /// allowed.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Option<(usize, Option<Token>)> {
        for (index, byte) in bytes.iter().copied().enumerate() {
            match self {
                Lexer::Between => return Some((index, None)),
                Lexer::Before => {
                    *self = match byte {
                        b'"' => Lexer::String(InString::Text),
                        b'-' => Lexer::Number(InNumber::Minus),
                        b'0' => Lexer::Number(InNumber::Zero),
                        b'1'..=b'9' => Lexer::Number(InNumber::Integer),
                        b't' => Lexer::Word(b"rue"),
                        b'f' => Lexer::Word(b"alse"),
                        b'n' => Lexer::Word(b"ull"),
                        _ => return None,
                    };
                }
                Lexer::String(InString::Text) if byte == b'"' => {
                    *self = Lexer::Between;
                    return Some((index + 1, Some(Token::String)));
                }
                Lexer::String(state) => *state = state.next(byte)?,
                Lexer::Number(state) => match state.next(byte) {
                    Some(next) => *state = next,
                    None if state.may_end() => {
                        *self = Lexer::Between;
                        return Some((index, Some(Token::Other)));
                    }
                    None => return None,
                },
                Lexer::Word(rest) => {
                    let after = rest.strip_prefix(&[byte])?;
                    if after.is_empty() {
                        *self = Lexer::Between;
                        return Some((index + 1, Some(Token::Other)));
                    }
                    *rest = after;
                }
            }
        }
        Some((bytes.len(), None))
    }
}

impl InString {
    fn next(self, byte: u8) -> Option<InString> {
        let char = |missing, low, high| Some(InString::Char { missing, low, high });
        match self {
            InString::Text => match byte {
                b'\\' => Some(InString::Escape),
                0x20..=0x7f => Some(InString::Text),
                // UTF-8, without overlong forms and surrogates.
                0xc2..=0xdf => char(1, 0x80, 0xbf),
                0xe0 => char(2, 0xa0, 0xbf),
                0xed => char(2, 0x80, 0x9f),
                0xe1..=0xef => char(2, 0x80, 0xbf),
                0xf0 => char(3, 0x90, 0xbf),
                0xf1..=0xf3 => char(3, 0x80, 0xbf),
                0xf4 => char(3, 0x80, 0x8f),
                _ => None,
            },
            InString::Escape => match byte {
                b'u' => Some(InString::Hex(4)),
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(InString::Text),
                _ => None,
            },
            InString::Hex(missing) if byte.is_ascii_hexdigit() => match missing {
                1 => Some(InString::Text),
                more => Some(InString::Hex(more - 1)),
            },
            InString::Char { missing, low, high } if (low..=high).contains(&byte) => match missing {
                1 => Some(InString::Text),
                more => char(more - 1, 0x80, 0xbf),
            },
            InString::Hex(_) | InString::Char { .. } => None,
        }
    }
}

impl InNumber {
    fn may_end(self) -> bool {
        matches!(self, InNumber::Zero | InNumber::Integer | InNumber::Fraction | InNumber::ExponentDigits)
    }

    fn next(self, byte: u8) -> Option<InNumber> {
        match (self, byte) {
            (InNumber::Minus, b'0') => Some(InNumber::Zero),
            (InNumber::Minus | InNumber::Integer, b'0'..=b'9') => Some(InNumber::Integer),
            (InNumber::Zero | InNumber::Integer, b'.') => Some(InNumber::Point),
            (InNumber::Point | InNumber::Fraction, b'0'..=b'9') => Some(InNumber::Fraction),
            (InNumber::Zero | InNumber::Integer | InNumber::Fraction, b'e' | b'E') => {
                Some(InNumber::Exponent)
            }
            (InNumber::Exponent, b'+' | b'-') => Some(InNumber::ExponentSign),
            (InNumber::Exponent | InNumber::ExponentSign | InNumber::ExponentDigits, b'0'..=b'9') => {
                Some(InNumber::ExponentDigits)
            }
            _ => None,
        }
    }
}
