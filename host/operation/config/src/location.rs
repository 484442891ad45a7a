//! Values with their location in the file, so that every later check can report it.

/// The location of a value in the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Location {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The key, like `stream[0].sink[0].connect`.
    pub key: String,
}

/// A value with its location.
#[derive(Clone, Debug)]
pub(crate) struct Located<T> {
    pub value: T,
    pub location: Location,
}

/// The value of a key, without its location.
pub(crate) fn value<T: Clone>(written: &Option<Located<T>>) -> Option<T> {
    written.as_ref().map(|placed| placed.value.clone())
}

/// The line and column of a byte of `text`, both from 1, the column in characters.
pub(crate) fn line_and_column(text: &str, byte: usize) -> (usize, usize) {
    let before = text.get(..byte).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}
