//! The plugin chain's decision for a row.

use afterbay_wire::FinishReason;

/// The chain's decision for a row: the sum of the verdicts of all plugins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The tokens that are sent.
    pub content: RowContent,
    /// The text that replaces the row's text.
    pub text: Option<String>,
    /// The finish reason, if the request ends with this row.
    pub finish: Option<FinishReason>,
    /// The destination, if the row is not sent to its reader.
    pub destination: Option<Destination>,
}

impl Decision {
    /// Sends the row unchanged.
    pub const UNCHANGED: Decision =
        Decision { content: RowContent::Unchanged, text: None, finish: None, destination: None };
}

/// The tokens that are sent for a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowContent {
    /// The tokens received.
    Unchanged,
    /// These tokens, in place of the row's new tokens.
    Delta(Vec<i64>),
    /// These tokens, in place of all tokens of the request so far.
    Cumulative(Vec<i64>),
    /// No token.
    Dropped,
}

/// The destination of a row that is not sent to its reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The sink of this name.
    To(String),
    /// The tokenizer, for this row and all later rows of the request.
    SkipText,
}

/// The abort message of a request with a row that this plugin had to judge and did not.
pub fn not_judged(plugin: &str) -> String {
    format!("afterbay: plugin {plugin:?} did not judge this row")
}

/// The finish reason of a request that a plugin aborts.
pub fn aborted(message: &str) -> FinishReason {
    FinishReason::Abort { message: message.to_owned(), status_code: None, err_type: None }
}
