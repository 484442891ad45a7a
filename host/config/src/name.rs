//! Names an operator gives. They become directory names, labels and words of a log line, so they are few and plain.

use std::fmt;
use std::str::FromStr;

use crate::bounds::NAME_BYTES_MAX;

/// The name of a stream, a sink or a plugin: 1 to 64 of `a-z 0-9 - _ .`, beginning with a letter or a digit.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(String);

impl Name {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of the sink that [`Stream::new`](crate::Stream::new) makes.
    pub(crate) fn reader() -> Name {
        Name("reader".to_owned())
    }
}

/// Why a text is not a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing, or too much.
    #[error("name of {0} bytes, must have 1 to {NAME_BYTES_MAX}")]
    Length(usize),
    /// A character that is not allowed.
    #[error("{0:?} in the name, allowed are a-z 0-9 - _ .")]
    Character(char),
    /// `.`, `-` or `_` in front: hidden files, options.
    #[error("name begins with {0:?}, must begin with a letter or a digit")]
    First(char),
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Name, NameError> {
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.');
        if let Some(c) = text.chars().find(|&c| !allowed(c)) {
            return Err(NameError::Character(c));
        }
        if text.is_empty() || text.len() > NAME_BYTES_MAX {
            return Err(NameError::Length(text.len()));
        }
        match text.chars().next() {
            Some(first) if !first.is_ascii_alphanumeric() => Err(NameError::First(first)),
            _ => Ok(Name(text.to_owned())),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_to_64_plain_characters() {
        for text in ["a", "0", "decode-0", "a_b.c", &"a".repeat(64)] {
            assert_eq!(text.parse::<Name>().unwrap().to_string(), text);
        }
        for text in ["", ".", "..", "-a", "_a", "A", "a/b", "a b", "ä", "a\n", &"a".repeat(65)] {
            assert!(text.parse::<Name>().is_err(), "{text:?}");
        }
    }
}
