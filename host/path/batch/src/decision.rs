//! The plugin chain's decision for a row.

use afterbay_journal::{Verdict, split_error};
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

/// The HTTP status of a request that Afterbay ends because a plugin failed.
const FAULT_STATUS: u16 = 500;

/// The finish reason of a request that Afterbay ends because a plugin failed.
pub fn failed(message: &str) -> FinishReason {
    FinishReason::Error { status: FAULT_STATUS, message: message.to_owned() }
}

/// The journal's verdict and text for a finish reason.
pub fn recorded_end(finish: &FinishReason) -> (Verdict, String) {
    match finish {
        FinishReason::Stop(matched) => (Verdict::Finish, matched.clone()),
        FinishReason::Length => (Verdict::Length, String::new()),
        FinishReason::Abort(message) => (Verdict::Abort, message.clone()),
        FinishReason::Error { status, message } => (Verdict::Error, format!("{status} {message}")),
    }
}

/// The finish reason of [`recorded_end`]. `None`: the verdict ends no request.
pub fn end_of_record(verdict: Verdict, text: &str) -> Option<FinishReason> {
    Some(match verdict {
        Verdict::Finish => FinishReason::Stop(text.to_owned()),
        Verdict::Length => FinishReason::Length,
        Verdict::Abort => FinishReason::Abort(text.to_owned()),
        Verdict::Error => {
            let (status, message) = split_error(text);
            let status = status.parse().unwrap_or(FAULT_STATUS);
            FinishReason::Error { status, message: message.to_owned() }
        }
        _ => return None,
    })
}
