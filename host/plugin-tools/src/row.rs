//! Rows as a plugin sees them, and the batches that they come in.

use crate::updates::Updates;
use afterbay_runtime::{FinishKind, TokenId};
use anyhow::{bail, ensure};

/// The rows of one scheduler step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch {
    /// Where it is from, for people: `frame 7`.
    pub(crate) from: String,
    pub(crate) rows: Vec<Row>,
    /// Before its rows.
    pub(crate) updates: Updates,
}

/// A row as a plugin sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) rid: String,
    pub(crate) ids: Vec<TokenId>,
    /// Behind a detokenizer.
    pub(crate) text: Option<String>,
    /// The scheduler's count, this row's included.
    pub(crate) completion_tokens: u64,
    pub(crate) prompt_tokens: u64,
    /// Empty: there is one tokenizer worker.
    pub(crate) http_worker_ipc: String,
    /// Its reader; empty where it is not known: frames do not say.
    pub(crate) sink: String,
    pub(crate) finish: FinishKind,
}

/// A request has at most one row in a batch, and rows have a text all or none.
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
