//! How what belongs to the contract is written for people and scripts: verdicts, columns, faults. A new verdict or column
//! of `wit/transform.wit` has its name here.

use afterbay_runtime::{ColumnSet, IdShape};

/// The columns that a plugin asks for, as the contract names them.
pub(super) fn columns(set: ColumnSet) -> Vec<&'static str> {
    let ColumnSet { output_ids, completion_tokens, finished, texts } = set;
    let all = [
        (output_ids, "output-ids"),
        (completion_tokens, "completion-tokens"),
        (finished, "finished"),
        (texts, "texts"),
    ];
    all.into_iter().filter(|(asked, _)| *asked).map(|(_, name)| name).collect()
}

/// The shape of the ids that it writes.
pub(super) fn shape(shape: IdShape) -> &'static str {
    match shape {
        IdShape::Delta => "delta",
        IdShape::Cumulative => "cumulative",
    }
}
