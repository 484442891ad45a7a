//! Edits of a row: a plugin's verdict changes every value that must stay consistent.

use crate::finish::FinishKind;

/// The changes to one row. Unset fields leave the row unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edit {
    /// The row.
    pub row: u32,
    /// The change of its tokens.
    pub tokens: TokenEdit,
    /// The row's new text in a [`BatchKind::Str`](crate::BatchKind::Str). Ignored elsewhere, where the text is made from the ids.
    pub text: Option<String>,
    /// Makes the row its request's last, with this reason.
    pub finish: Option<FinishReason>,
    /// The request's count of tokens, including this row. The caller keeps it consistent with the tokens replaced in
    /// this row and in those before it.
    pub completion_tokens: Option<u64>,
}

/// A finish reason, as SGLang's classes of the same name write it. vLLM has a number and a `stop_reason`. Its front end
/// leaves the last id of a row that stops out of the text; so a row with ids that is to end with [`FinishReason::Stop`] is
/// written as two, of which the second has no ids. [Reading](crate::Batch) such a frame gives one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// `{"type": "stop", "matched": <this>}`: a stop text was found (`FINISH_MATCHED_STR`). For vLLM it is 0, and the
    /// text is the `stop_reason`.
    Stop(String),
    /// `{"type": "length", "length": …}`: the token limit (`FINISH_LENGTH`). The length is the request's count of tokens,
    /// including the row. For vLLM it is 1.
    Length,
    /// `{"type": "abort", "message": <this>, "status_code": None, "err_type": None}` (`FINISH_ABORT`). The client gets the
    /// output so far. As in SGLang, an empty message becomes `Aborted`. For vLLM it is 2, and the message is the `stop_reason`.
    Abort(String),
    /// [`FinishReason::Abort`] with a `status_code`: the client gets an error in place of the output or behind it. For vLLM it
    /// is 3, of which its server makes the status 500 and a message of its own.
    Error {
        /// The HTTP status of the request's answer, from 400 to 599.
        status: u16,
        /// The message.
        message: String,
    },
}

impl FinishReason {
    /// The kind that a reader of the row sees.
    pub fn kind(&self) -> FinishKind {
        match self {
            FinishReason::Stop(_) => FinishKind::Stop,
            FinishReason::Length => FinishKind::Length,
            FinishReason::Abort(_) => FinishKind::Abort,
            FinishReason::Error { .. } => FinishKind::Error,
        }
    }
}

/// A row without tokens, of a request that goes on.
#[derive(Clone, Copy, Debug)]
pub struct BlankRow<'a> {
    /// The request's name.
    pub rid: &'a str,
    /// The front end that waits for the request, as rows name it.
    pub front_end: Option<&'a str>,
    /// The length of the prompt in tokens; 0 if it is not known.
    pub prompt_tokens: u64,
    /// The request's tokens so far.
    pub completion_tokens: u64,
}

/// The change of a row's tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TokenEdit {
    /// The tokens stay.
    #[default]
    Keep,
    /// Replaces the tokens with these in all columns. In lists with one entry per token, a retained token keeps its
    /// entry and a new one gets a neutral entry ([`crate::sglang::columns::Neutral`]); of vLLM the entry of a new token has the
    /// token alone, with logprob 0 and rank 1, and an id must be at most [`ID_MAX`](crate::bounds::ID_MAX). The text of a
    /// [`BatchKind::Str`](crate::BatchKind::Str) row stays, unless [`Edit::text`] is set.
    ///
    /// A token is retained if the row had it at the same position. If the number of tokens changes, positions count
    /// from the front for the common head and from the end for the common tail.
    Delta(Vec<i64>),
    /// Replaces `output_ids` with all ids of the request so far. Other columns stay. An error for vLLM, whose rows are never
    /// cumulative.
    Cumulative(Vec<i64>),
    /// Removes the tokens in all columns and the text, unless [`Edit::text`] is set. A request's first row keeps the
    /// prompt's tail for the detokenizer.
    Empty,
    /// Removes the row from the batch.
    Drop,
}

impl Edit {
    /// An edit that changes nothing.
    pub fn new(row: u32) -> Edit {
        Edit { row, ..Edit::default() }
    }
}

/// The message of an abort as SGLang writes it.
pub(crate) fn abort_message(message: &str) -> &str {
    if message.is_empty() { "Aborted" } else { message }
}

/// For each new id, the position of the old id that it retains.
pub(crate) fn retained(old: &[i64], new: &[i64]) -> Vec<Option<usize>> {
    if old.len() == new.len() {
        return (0..new.len()).map(|at| (old[at] == new[at]).then_some(at)).collect();
    }
    let shorter = old.len().min(new.len());
    let head = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let tail = old
        .iter()
        .rev()
        .zip(new.iter().rev())
        .take_while(|(old, new)| old == new)
        .count()
        .min(shorter - head);
    (0..new.len())
        .map(|at| match at {
            _ if at < head => Some(at),
            _ if at >= new.len() - tail => Some(at + old.len() - new.len()),
            _ => None,
        })
        .collect()
}
