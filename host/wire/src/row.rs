//! What a row says: its request's name, its ids, whether it is the last.

use crate::value::Value;

/// Why a request ended, if it did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Finish<'a> {
    /// The row is not its request's last.
    Running,
    /// `{"type": "stop"}`: a stop token, stop text or end of text.
    Stop {
        /// What was met.
        matched: Matched<'a>,
    },
    /// `{"type": "length"}`: the limit of tokens.
    Length,
    /// `{"type": "abort"}`: by its client or by an error.
    Abort,
    /// A reason that this version does not know.
    Other,
}

/// What a request's output met that ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matched<'a> {
    /// It was not said.
    None,
    /// A token, the row's last. The detokenizer leaves it out of the text unless `no_stop_trim`.
    Token(i64),
    /// A text.
    Text(&'a str),
    /// Several tokens.
    Tokens,
}

/// The new ids of all rows of a batch, as two columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ids {
    /// All rows' ids, one row after another.
    pub values: Vec<i64>,
    /// Where each row's ids end in `values`.
    pub ends: Vec<u32>,
}

impl Ids {
    /// The ids of one row.
    pub fn row(&self, row: u32) -> &[i64] {
        let end = |row: usize| self.ends.get(row).map_or(self.values.len(), |&end| end as usize);
        let start = (row as usize).checked_sub(1).map_or(0, end);
        self.values.get(start..end(row as usize)).unwrap_or_default()
    }
}

/// Reads a finish reason.
#[inline]
pub(crate) fn finish(reason: Value<'_>) -> Finish<'_> {
    if reason.is_nil() { Finish::Running } else { ended(reason) }
}

fn ended(reason: Value<'_>) -> Finish<'_> {
    match reason.get("type").and_then(Value::str) {
        Some("stop") => Finish::Stop { matched: matched(reason.get("matched")) },
        Some("length") => Finish::Length,
        Some("abort") => Finish::Abort,
        _ => Finish::Other,
    }
}

fn matched(value: Option<Value<'_>>) -> Matched<'_> {
    let Some(value) = value.filter(|value| !value.is_nil()) else { return Matched::None };
    match (value.int(), value.str()) {
        (Some(token), _) => Matched::Token(token),
        (_, Some(text)) => Matched::Text(text),
        _ => Matched::Tokens,
    }
}
