//! Names that an operator gives. A name becomes a directory, a metric label and a word in log lines, so its characters are few.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::Arc;

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// The name of a stream, a sink, a tap or a plugin: 1 to [`NAME_BYTES_MAX`] of `a-z 0-9 - _ .`, beginning with a letter or
/// a digit. Clones share the text.
///
/// [`FromStr`] checks a text. The conversions from text do not: they are for names that were checked before, such as names in
/// the journal.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Arc<str>);

impl Name {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The reason why a text is not a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text is empty or too long.
    #[error("name of {0} bytes, must have 1 to {NAME_BYTES_MAX}")]
    Length(usize),
    /// A character is not allowed.
    #[error("{0:?} in the name, allowed are a-z 0-9 - _ .")]
    Character(char),
    /// The text begins with `.`, `-` or `_`, as hidden files and options do.
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
            _ => Ok(Name(text.into())),
        }
    }
}

impl From<&str> for Name {
    fn from(text: &str) -> Name {
        Name(text.into())
    }
}

impl From<String> for Name {
    fn from(text: String) -> Name {
        Name(text.into())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

/// The name in quotes, as sentences show it.
impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        self
    }
}

impl PartialEq<str> for Name {
    fn eq(&self, text: &str) -> bool {
        self.as_str() == text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_1_to_64_plain_characters() {
        for text in ["a", "0", "decode-0", "a_b.c", &"a".repeat(64)] {
            assert_eq!(text.parse::<Name>().unwrap().to_string(), text);
        }
        for text in ["", ".", "..", "-a", "_a", "A", "a/b", "a b", "ä", "a\n", &"a".repeat(65)] {
            assert!(text.parse::<Name>().is_err(), "{text:?}");
        }
    }
}
