//! Joins and edits of rows of SGLang. Each makes a plan and writes it.

use std::iter;

use super::plan::WritePlan;
use super::row_change::RowChange;
use crate::batch::{Batch, BatchPart, PartRow};
use crate::edit::{Edit, TokenEdit};
use crate::error::RowsError;

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
    batch: &Batch,
    edits: &[Edit],
    instead: &[(u32, &Batch)],
) -> Result<Option<Batch>, RowsError> {
    let mut changes = Vec::with_capacity(edits.len());
    for edit in edits {
        changes.push(match instead.binary_search_by_key(&edit.row, |(row, _)| *row) {
            Ok(at) => RowChange::new(instead[at].1, 0, edit)?,
            Err(_) => RowChange::new(batch, edit.row, edit)?,
        });
    }
    let others = instead.iter().map(|(_, other)| *other);
    let mut plan = WritePlan::new(iter::once(batch).chain(others).collect())?;
    let mut changes = edits.iter().zip(&changes).peekable();
    let mut instead = (1..).zip(instead).peekable();
    for row in 0..batch.rows {
        let change = changes.next_if(|(edit, _)| edit.row == row);
        let other = instead.next_if(|(_, (of, _))| *of == row);
        if change.is_none_or(|(edit, _)| edit.tokens != TokenEdit::Drop) {
            let from = other.map_or((0, row), |(part, _)| (part, 0));
            plan.push(&[from], change.map(|(_, change)| change));
        }
    }
    if let Some((_, (row, _))) = instead.next() {
        return Err(RowsError::Row { row: *row, rows: batch.rows });
    }
    match plan.write() {
        Ok(batch) => Ok(Some(batch)),
        Err(RowsError::NoRows) => Ok(None),
        Err(error) => Err(error),
    }
}
