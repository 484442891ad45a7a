//! Takes, joins and edits rows of SMG's wire. A frame is written column by column.

use bytes::Bytes;

use super::batch::SlimRows;
use super::columns::{
    COMPLETION_TOKENS, Column, ERR_TYPES, Join, MATCHED, MESSAGES, Neutral, OUTPUT_IDS, REASONS, RIDS, STATUS,
};
use super::decode::read_again;
use super::synth::{self, SlimRow};
use crate::batch::{Batch, BatchPart, PartRow};
use crate::bounds::ID_MAX;
use crate::edit::{BlankRow, Edit, FinishReason, TokenEdit, abort_message, retained};
use crate::error::RowsError;
use crate::pack::{self, NIL, PackValue, TYPES};
use crate::rows::{edited, mixed};
use crate::value::{ColumnCells, RawValue};

/// A row to write: the rows that it is joined from, and what changes.
struct NewRow<'a> {
    from: Vec<PartRow>,
    change: Option<Change<'a>>,
}

/// The changes to a row, which comes from one row.
struct Change<'a> {
    edit: &'a Edit,
    /// The new ids, and for each the position of the id that it retains, if the ids change.
    ids: Option<(Vec<i64>, Vec<Option<usize>>)>,
    /// The number of ids before.
    before: usize,
}

/// Returns some rows.
pub(super) fn take(from: &SlimRows, rows: &[u32]) -> Result<Batch, RowsError> {
    let rows: Vec<_> = rows.iter().map(|row| NewRow { from: vec![(0, *row)], change: None }).collect();
    write(&[from], 0, &rows)
}

/// Joins rows of the parts, of which `requests` are those of each request.
pub(super) fn join(
    parts: &[BatchPart<'_>],
    requests: &mut dyn Iterator<Item = &[PartRow]>,
) -> Result<Batch, RowsError> {
    let parts: Vec<&Batch> = parts.iter().map(|part| part.batch).collect();
    let rows: Vec<_> = requests.map(|from| NewRow { from: from.to_vec(), change: None }).collect();
    write(&of_parts(&parts)?, parts.len() - 1, &rows)
}

/// Edits rows, after replacing some.
pub(super) fn edit(
    parts: &[&Batch],
    edits: &[Edit],
    instead: &[(u32, PartRow)],
) -> Result<Option<Batch>, RowsError> {
    let mut rows = Vec::with_capacity(parts[0].rows as usize);
    edited(parts[0], edits, instead, |from, edit| {
        let change = edit.map(|edit| Change::new(parts[from.0 as usize], from.1, edit)).transpose()?;
        rows.push(NewRow { from: vec![from], change });
        Ok(())
    })?;
    match rows.is_empty() {
        true => Ok(None),
        false => write(&of_parts(parts)?, 0, &rows).map(Some),
    }
}

/// Writes rows without tokens.
pub(super) fn blank(like: &SlimRows, rows: &[BlankRow<'_>]) -> Result<Batch, RowsError> {
    let rows: Vec<SlimRow<'_>> = rows
        .iter()
        .map(|row| SlimRow {
            rid: row.rid,
            ids: &[],
            prompt_tokens: row.prompt_tokens,
            completion_tokens: row.completion_tokens,
            end: None,
        })
        .collect();
    let mut out = Vec::new();
    pack::write::array(&mut out, like.layout.fields.len() + 1);
    pack::write::str(&mut out, like.layout.class);
    for (at, (_, column)) in like.layout.fields.iter().enumerate() {
        if column.join == Join::Frame {
            out.extend_from_slice(like.raw(at));
            continue;
        }
        pack::write::array(&mut out, rows.len());
        rows.iter().for_each(|row| synth::cell(&mut out, row, column.name, column.absent));
    }
    read_again(Bytes::from(out), &like.layouts).map_err(|error| RowsError::Written(Box::new(error)))
}

/// The columns of batches that can share a frame.
fn of_parts<'a>(parts: &[&'a Batch]) -> Result<Vec<&'a SlimRows>, RowsError> {
    let different = parts.iter().enumerate().skip(1).find(|(_, part)| !part.is_like(parts[0]));
    match different {
        Some((at, part)) => Err(mixed(at, part, parts[0])),
        None => parts.iter().map(|part| part.body_of()).collect(),
    }
}

impl<'a> Change<'a> {
    fn new(batch: &Batch, row: u32, edit: &'a Edit) -> Result<Change<'a>, RowsError> {
        let mut old = Vec::new();
        batch.row_ids(row, &mut old);
        let new = match &edit.tokens {
            TokenEdit::Keep | TokenEdit::Drop => None,
            TokenEdit::Delta(ids) => Some(ids.clone()),
            TokenEdit::Empty => Some(Vec::new()),
            TokenEdit::Cumulative(_) => return Err(RowsError::NoColumn { name: OUTPUT_IDS }),
        };
        let ids = new.map(|new| {
            let kept = retained(&old, &new);
            (new, kept)
        });
        if let Some(&id) = ids.iter().flat_map(|(new, _)| new).find(|id| !(0..=ID_MAX).contains(*id)) {
            return Err(RowsError::TokenId { id });
        }
        Ok(Change { edit, ids, before: old.len() })
    }

    /// Writes the row's cell of a column that the change touches. Returns false, with nothing written, for another one.
    fn write(&self, out: &mut Vec<u8>, column: &Column, cell: Option<&[u8]>) -> bool {
        let int = |out: &mut Vec<u8>, value: Option<i64>| match value {
            Some(value) => pack::write::int(out, value),
            None => out.push(column.absent),
        };
        let text = |out: &mut Vec<u8>, value: Option<&str>| match value {
            Some(value) => pack::write::str(out, value),
            None => out.push(column.absent),
        };
        match (column.name, &self.edit.finish, &self.ids, column.per_token) {
            (OUTPUT_IDS, _, Some((ids, _)), _) => {
                pack::write::array(out, ids.len());
                ids.iter().for_each(|id| pack::write::int(out, *id));
            }
            (COMPLETION_TOKENS, ..) if let Some(count) = self.edit.completion_tokens => {
                int(out, Some(i64::try_from(count).unwrap_or(i64::MAX)));
            }
            (REASONS, Some(reason), ..) => text(
                out,
                Some(match reason {
                    FinishReason::Stop(_) => "stop",
                    FinishReason::Length => "length",
                    FinishReason::Abort(_) | FinishReason::Error { .. } => "abort",
                }),
            ),
            (MATCHED, Some(FinishReason::Stop(matched)), ..) => text(out, Some(matched)),
            (MESSAGES, Some(FinishReason::Abort(message) | FinishReason::Error { message, .. }), ..) => {
                text(out, Some(abort_message(message)))
            }
            (STATUS, Some(FinishReason::Error { status, .. }), ..) => int(out, Some((*status).into())),
            // Other reasons have no value here.
            (MATCHED | MESSAGES | STATUS | ERR_TYPES, Some(_), ..) => out.push(column.absent),
            (_, _, Some((ids, kept)), Some(neutral)) => self.write_list(out, ids, kept, neutral, cell),
            _ => return false,
        }
        true
    }

    /// Writes a list with one entry per token. An empty list stays: the request did not ask for the column.
    fn write_list(
        &self,
        out: &mut Vec<u8>,
        ids: &[i64],
        kept: &[Option<usize>],
        neutral: Neutral,
        cell: Option<&[u8]>,
    ) {
        let (count, body) = match cell.and_then(pack::item) {
            Some(PackValue::Array(count, body)) if count > 0 => (count, body),
            _ => return pack::write::array(out, 0),
        };
        // If the list's length differs from the number of old tokens, no entry is retained.
        let is_whole = count == self.before as u64;
        let entries: Vec<&[u8]> = pack::items(body, count).collect();
        pack::write::array(out, ids.len());
        for (id, kept) in ids.iter().zip(kept) {
            match (kept.filter(|_| is_whole), neutral) {
                (Some(at), _) => out.extend_from_slice(entries[at]),
                (None, Neutral::Zero) => pack::write::float(out, 0.0),
                (None, Neutral::Id) => pack::write::int(out, *id),
                (None, Neutral::Empty) => pack::write::array(out, 0),
            }
        }
    }
}

/// Writes the rows as a frame in the layout of the first part, with the frame's fields of one of the parts, and reads it again.
fn write(parts: &[&SlimRows], fields_of: usize, rows: &[NewRow<'_>]) -> Result<Batch, RowsError> {
    let first = parts.first().filter(|_| !rows.is_empty()).ok_or(RowsError::NoRows)?;
    let bytes: usize = parts.iter().map(|part| part.frame.len()).sum();
    let mut out = Vec::with_capacity(bytes + 16 * rows.len());
    pack::write::array(&mut out, first.layout.fields.len() + 1);
    pack::write::str(&mut out, first.layout.class);
    for (at, (name, column)) in first.layout.fields.iter().enumerate() {
        if column.join == Join::Frame {
            out.extend_from_slice(parts[fields_of].raw(at));
            continue;
        }
        let cells: Vec<Option<ColumnCells<'_>>> =
            parts.iter().map(|part| part.packed.cells(&part.frame, at)).collect();
        let is_absent = |(part, cells): (&&SlimRows, &Option<_>)| cells.is_none() && is_nothing(part.raw(at));
        let has_cells = cells.iter().any(Option::is_some);
        if !parts.iter().zip(&cells).all(|(part, cells)| cells.is_some() || is_absent((part, cells))) {
            return Err(RowsError::Split { name: name.to_string() });
        }
        let gives = |row: &NewRow<'_>| {
            let change = row.change.as_ref().filter(|_| matches!(column.name, STATUS | ERR_TYPES));
            change.is_some_and(|change| change.edit.finish.is_some())
        };
        if !has_cells && !rows.iter().any(gives) {
            out.extend_from_slice(first.raw(at));
            continue;
        }
        pack::write::array(&mut out, rows.len());
        for row in rows {
            let found = row.from.iter().map(|(part, row)| {
                cells[*part as usize].and_then(|cells| match cells.get(*row) {
                    RawValue::Packed(cell) => Some(cell),
                    RawValue::Tree(..) => None,
                })
            });
            let found: Vec<Option<&[u8]>> = found.collect();
            write_cell(&mut out, column, row, &found)
                .map_err(|()| RowsError::Column { name: name.to_string(), rid: rid_of(parts, row) })?;
        }
    }
    read_again(Bytes::from(out), &first.layouts).map_err(|error| RowsError::Written(Box::new(error)))
}

/// Writes a row's cell. The error: the cells cannot be joined.
fn write_cell(
    out: &mut Vec<u8>,
    column: &Column,
    row: &NewRow<'_>,
    cells: &[Option<&[u8]>],
) -> Result<(), ()> {
    let last = cells.last().copied().flatten();
    if let Some(change) = &row.change
        && change.write(out, column, last)
    {
        return Ok(());
    }
    let has_value = |cell: &&[u8]| TYPES[usize::from(cell[0])] != NIL;
    match (column.join, cells) {
        (_, [cell]) => write_or_absent(out, column, *cell),
        (Join::Concat, _) => {
            let lists: Option<Vec<(u64, &[u8])>> = cells
                .iter()
                .flatten()
                .filter(|cell| has_value(cell))
                .map(|cell| match pack::item(cell) {
                    Some(PackValue::Array(count, body)) => Some((count, body)),
                    _ => None,
                })
                .collect();
            let lists = lists.ok_or(())?;
            if lists.is_empty() {
                out.push(column.absent);
                return Ok(());
            }
            pack::write::array(out, lists.iter().map(|(count, _)| *count as usize).sum());
            for (count, body) in lists {
                pack::items(body, count).for_each(|item| out.extend_from_slice(item));
            }
        }
        (Join::Never, _) if cells.iter().flatten().any(has_value) => return Err(()),
        _ => write_or_absent(out, column, last),
    }
    Ok(())
}

fn write_or_absent(out: &mut Vec<u8>, column: &Column, cell: Option<&[u8]>) {
    match cell {
        Some(cell) => out.extend_from_slice(cell),
        None => out.push(column.absent),
    }
}

/// Whether the column is nil or has no entries.
fn is_nothing(column: &[u8]) -> bool {
    matches!(column, [0xc0 | 0x90])
}

fn rid_of(parts: &[&SlimRows], row: &NewRow<'_>) -> String {
    let first = row.from.first().and_then(|(part, row)| {
        let rids = parts[*part as usize].cells(RIDS)?;
        rids.get(*row).str().map(str::to_owned)
    });
    first.unwrap_or_default()
}
