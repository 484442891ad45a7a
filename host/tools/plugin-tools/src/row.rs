//! Rows as a plugin sees them, and batches of them.

use crate::updates::Updates;
use afterbay_runtime::{PlainValues, RowFacts, TokenId};
use anyhow::{bail, ensure};

/// The rows of one scheduler step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch {
    /// The origin, for people: `frame 7`.
    pub(crate) from: String,
    /// The time of receipt, in milliseconds since 1970. 0 if it is unknown.
    pub(crate) time_ms: u64,
    pub(crate) rows: Vec<Row>,
    /// The plugin gets these before the rows.
    pub(crate) updates: Updates,
}

/// A row as a plugin sees it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) rid: String,
    pub(crate) ids: Vec<TokenId>,
    /// Only rows behind a detokenizer have a text.
    pub(crate) text: Option<String>,
    /// The row's values in the plain columns. The player counts the held rows (`waiting`).
    pub(crate) values: PlainValues,
    pub(crate) facts: RowFacts,
    pub(crate) prompt_tokens: u64,
    /// The front end that waits for the request. Empty if there is only one.
    pub(crate) front_end: String,
    /// The sink that the request goes to; empty if unknown, because frames do not name it.
    pub(crate) sink: String,
}

/// Checks that a request has at most one row in the batch, and that all rows or none have a text.
pub(crate) fn check(batch: &Batch) -> anyhow::Result<()> {
    let mut rids: Vec<&str> = batch.rows.iter().map(|row| row.rid.as_str()).collect();
    rids.sort_unstable();
    if let Some(pair) = rids.windows(2).find(|pair| pair[0] == pair[1]) {
        bail!("{}: two rows of request {:?}, a batch has at most one", batch.from, pair[0]);
    }
    let texts = batch.rows.iter().filter(|row| row.text.is_some()).count();
    ensure!(
        texts == 0 || texts == batch.rows.len(),
        "{}: {texts} of {} rows have a text, all or none must",
        batch.from,
        batch.rows.len()
    );
    Ok(())
}
