//! What the plugin chain decided for a row.

use crate::recorded::{RecordedVerdict, RecordedVerdicts};
use afterbay_journal as journal;
use afterbay_runtime::TokenId;
use afterbay_wire::FinishReason;

/// What the chain has made of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub written: RowContent,
    /// The row's text is another.
    pub text: Option<String>,
    /// The request ends with this row.
    pub finish: Option<FinishReason>,
    /// It does not go to its reader.
    pub way: Option<Destination>,
}

impl Decision {
    pub const KEEP: Decision =
        Decision { written: RowContent::Unchanged, text: None, finish: None, way: None };
}

/// What is written in place of a row's tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowContent {
    Unchanged,
    Delta(Vec<TokenId>),
    Cumulative(Vec<TokenId>),
    Dropped,
}

/// Where a row goes that does not go to its reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To the sink of this name.
    To(String),
    /// To the tokenizer, with all later rows of its request.
    SkipDetokenizer,
}

/// Why a request is ended of which a plugin has not judged a row.
pub fn not_judged(plugin: &str) -> String {
    format!("afterbay: plugin {plugin:?} did not judge this row")
}

/// Ends the request of a row: nothing of it goes on that `plugin` has not judged.
pub fn terminate(
    row: u32,
    message: &str,
    plugin: &str,
    decision: &mut Decision,
    actions: &mut RecordedVerdicts,
) {
    let mut say = |verdict| {
        let (plugin, text) = (plugin.to_owned(), message.to_owned());
        actions.0.push(RecordedVerdict { row, plugin, verdict, text, ids: Vec::new(), forwarded: 0 });
    };
    say(journal::Verdict::Drop);
    (decision.written, decision.text) = (RowContent::Dropped, None);
    // A plugin before may have ended it.
    if decision.finish.is_none() {
        say(journal::Verdict::Abort);
        decision.finish = Some(aborted(message));
    }
}

/// How a request ends that a plugin aborts.
pub fn aborted(message: &str) -> FinishReason {
    FinishReason::Abort { message: message.to_owned(), status_code: None, err_type: None }
}
