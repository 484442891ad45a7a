//! A value and where it stands, so that whatever is found wrong with it later can say so.

/// Where something stands in the file.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// Like `stream[0].sink[0].connect`.
    pub key: String,
}

/// A value as written, at its place.
#[derive(Clone, Debug)]
pub(crate) struct Placed<T> {
    pub value: T,
    pub place: Place,
}

/// Line and column of a byte of `text`, both from 1, the column in characters.
pub(crate) fn line_and_column(text: &str, byte: usize) -> (usize, usize) {
    let before = text.get(..byte).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}
