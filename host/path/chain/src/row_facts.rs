//! One row's facts as the contract has them, read from the engine's batch.

use afterbay_runtime::{ColumnSet, PlainValues, RowFacts};
use afterbay_wire as wire;

/// The wanted facts of a received row.
pub fn row_facts(batch: &wire::Batch, row: u32, wants: ColumnSet) -> RowFacts {
    let mut facts = RowFacts::default();
    if wants.contains(ColumnSet::LOGPROBS) {
        batch.logprobs(row, &mut facts.logprobs);
    }
    if wants.contains(ColumnSet::TOP_LOGPROBS) {
        batch.top_logprobs(row, &mut facts.top_logprobs);
    }
    if wants.contains(ColumnSet::WEIGHT_VERSIONS) {
        batch.weight_version(row).unwrap_or_default().clone_into(&mut facts.weight_version);
    }
    facts
}

/// The counts of a received row, in the plain columns of the same names. The others have their default.
pub fn row_counts(batch: &wire::Batch, row: u32) -> PlainValues {
    let wire::Drafts { drafted, accepted } = batch.drafts(row);
    PlainValues {
        cached_tokens: batch.cached_tokens(row).unwrap_or(0),
        reasoning_tokens: batch.reasoning_tokens(row).unwrap_or(0),
        drafted_tokens: drafted.unwrap_or(0),
        accepted_tokens: accepted.unwrap_or(0),
        ..PlainValues::default()
    }
}
