//! The finish reason of a row.

use crate::value::RawValue;

/// Whether and why a request ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Finish<'a> {
    /// The request continues.
    Running,
    /// `{"type": "stop"}`, of vLLM 0: a stop token, a stop text or the end of text.
    Stop {
        /// The stop token or text.
        matched: Matched<'a>,
    },
    /// `{"type": "length"}`, of vLLM 1: the token limit.
    Length,
    /// `{"type": "abort"}`, of vLLM 2: the client left, or asked for what the engine refuses.
    Abort,
    /// An abort with a `status_code` from 500, of vLLM 3: an error of the engine.
    Error,
    /// A reason that is none of these, as vLLM's 4 (repetition), or that this version does not know.
    Other,
}

/// Whether, and how, a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishKind {
    /// [`Finish::Running`].
    Running,
    /// [`Finish::Stop`].
    Stop,
    /// [`Finish::Length`].
    Length,
    /// [`Finish::Abort`].
    Abort,
    /// [`Finish::Error`].
    Error,
    /// [`Finish::Other`].
    Other,
}

impl Finish<'_> {
    /// The reason without the part of the output that ended the request.
    #[inline]
    pub fn kind(&self) -> FinishKind {
        match self {
            Finish::Running => FinishKind::Running,
            Finish::Stop { .. } => FinishKind::Stop,
            Finish::Length => FinishKind::Length,
            Finish::Abort => FinishKind::Abort,
            Finish::Error => FinishKind::Error,
            Finish::Other => FinishKind::Other,
        }
    }
}

impl FinishKind {
    /// The word for the reason, as the journal has it.
    pub fn word(self) -> &'static str {
        match self {
            FinishKind::Running => "running",
            FinishKind::Stop => "stop",
            FinishKind::Length => "length",
            FinishKind::Abort => "abort",
            FinishKind::Error => "error",
            FinishKind::Other => "other",
        }
    }
}

/// The part of a request's output that ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matched<'a> {
    /// The reason does not say.
    None,
    /// A token, the row's last. The detokenizer leaves it out of the text unless the request asks for it.
    Token(i64),
    /// A text.
    Text(&'a str),
    /// Several tokens.
    Tokens,
}

/// The least HTTP status by which a server blames itself.
const SERVER_ERROR: i64 = 500;

/// Reads a finish reason.
#[inline]
pub(crate) fn finish(reason: RawValue<'_>) -> Finish<'_> {
    if reason.is_nil() { Finish::Running } else { ended(reason) }
}

fn ended(reason: RawValue<'_>) -> Finish<'_> {
    match reason.get("type").and_then(RawValue::str) {
        Some("stop") => Finish::Stop { matched: matched(reason.get("matched")) },
        Some("length") => Finish::Length,
        Some("abort") => match reason.get("status_code").and_then(RawValue::int) {
            Some(SERVER_ERROR..) => Finish::Error,
            _ => Finish::Abort,
        },
        _ => Finish::Other,
    }
}

/// Reads the part that ended a request.
pub(crate) fn matched(value: Option<RawValue<'_>>) -> Matched<'_> {
    let Some(value) = value.filter(|value| !value.is_nil()) else { return Matched::None };
    match (value.int(), value.str()) {
        (Some(token), _) => Matched::Token(token),
        (_, Some(text)) => Matched::Text(text),
        _ => Matched::Tokens,
    }
}
