//! Joins and edits of rows of SGLang. Each makes a plan and writes it.

use super::plan::WritePlan;
use super::row_change::RowChange;
use crate::batch::{Batch, BatchPart, PartRow};
use crate::edit::Edit;
use crate::error::RowsError;
use crate::rows::edited;

/// Joins rows of the parts, of which `requests` are those of each request.
pub(super) fn join(
    parts: &[BatchPart<'_>],
    requests: &mut dyn Iterator<Item = &[PartRow]>,
) -> Result<Batch, RowsError> {
    let mut plan = WritePlan::new(parts.iter().map(|part| part.batch).collect())?;
    requests.for_each(|rows| plan.push(rows, None));
    plan.write()
}

/// Edits rows, after replacing some.
pub(super) fn edit(
    parts: Vec<&Batch>,
    edits: &[Edit],
    instead: &[(u32, PartRow)],
) -> Result<Option<Batch>, RowsError> {
    let mut changes = Vec::with_capacity(edits.len());
    for edit in edits {
        let at = instead.binary_search_by_key(&edit.row, |(row, _)| *row);
        let (part, row) = at.map_or((0, edit.row), |at| instead[at].1);
        changes.push(RowChange::new(parts[part as usize], row, edit)?);
    }
    let batch = parts[0];
    let mut plan = WritePlan::new(parts)?;
    let mut changes = edits.iter().zip(&changes);
    edited(batch, edits, instead, |from, edit| {
        let change = edit.and_then(|edit| changes.find(|(of, _)| of.row == edit.row));
        plan.push(&[from], change.map(|(_, change)| change));
        Ok(())
    })?;
    match plan.write() {
        Ok(batch) => Ok(Some(batch)),
        Err(RowsError::NoRows) => Ok(None),
        Err(error) => Err(error),
    }
}
