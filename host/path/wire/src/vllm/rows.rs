//! Takes, joins, edits and ends rows of vLLM. A frame has fields beside its rows, and each goes into exactly one frame.

use bytes::Bytes;

use super::layout::CLASS;
use super::outputs::Outputs;
use super::write::OutputsWriter;
use crate::batch::{Batch, BatchPart, PartRow};
use crate::bounds::MAX_FRAME_BYTES;
use crate::edit::{BlankRow, Edit};
use crate::error::{RowsError, WireError};
use crate::rows::{edited, mixed};

/// The row that the fields of the frame go with.
fn is_owner(batch: &Batch, row: Option<&u32>) -> bool {
    row.is_some_and(|row| row + 1 == batch.rows)
}

/// Returns some rows. The frame's fields go with its last row, unless they stay behind.
pub(super) fn take(batch: &Batch, outputs: &Outputs, rows: &[u32], stay: bool) -> Result<Batch, RowsError> {
    if rows.is_empty() {
        return Err(RowsError::NoRows);
    }
    let mut writer = OutputsWriter::new(vec![outputs]).check()?;
    rows.iter().try_for_each(|row| writer.copy((0, *row)))?;
    let owns = !stay && is_owner(batch, rows.last());
    let written = writer.finish(&[0], if owns { &[0] } else { &[] })?;
    match outputs.read_taken(&written, rows).filter(|_| batch.is_readable(&written)) {
        Some(taken) => Ok(taken.into_batch()),
        None => read(outputs, Ok(written), rows.len()),
    }
}

/// Joins rows of the parts, of which `requests` are those of each request. The fields of a frame go with its last row, unless they
/// stay behind.
pub(super) fn join(
    parts: &[BatchPart<'_>],
    requests: &mut dyn Iterator<Item = &[PartRow]>,
    stay: bool,
) -> Result<Batch, RowsError> {
    let has_rows = |part: &BatchPart<'_>| part.rows.is_none_or(|rows| !rows.is_empty());
    let used: Vec<u32> = (0..).zip(parts).filter(|(_, part)| has_rows(part)).map(|(at, _)| at).collect();
    let batches = || used.iter().map(|part| (*part as usize, parts[*part as usize].batch));
    let (_, first) = batches().next().ok_or(RowsError::NoRows)?;
    if let Some((at, other)) = batches().skip(1).find(|(_, batch)| !batch.is_like(first)) {
        return Err(mixed(at, other, first));
    }
    let outputs = parts.iter().map(|part| part.batch.outputs()).collect::<Result<_, _>>()?;
    let mut writer = OutputsWriter::new(outputs).check()?;
    let mut rows = 0;
    for from in requests {
        writer.join(from)?;
        rows += 1;
    }
    let owns = |part: &&u32| {
        let BatchPart { batch, rows } = parts[**part as usize];
        !stay && rows.is_none_or(|rows| is_owner(batch, rows.last()))
    };
    let own: Vec<u32> = used.iter().filter(owns).copied().collect();
    read(first.outputs()?, writer.finish(&used, &own), rows)
}

/// Edits rows, after replacing some. The frame's fields stay.
pub(super) fn edit(
    parts: &[&Batch],
    outputs: &Outputs,
    edits: &[Edit],
    instead: &[(u32, PartRow)],
) -> Result<Option<Batch>, RowsError> {
    let batch = parts[0];
    if let Some((at, other)) = (1..).zip(&parts[1..]).find(|(_, other)| !other.is_like(batch)) {
        return Err(mixed(at, other, batch));
    }
    let parts = parts.iter().map(|part| part.outputs()).collect::<Result<_, _>>()?;
    let mut writer = OutputsWriter::new(parts).check()?;
    let mut rows = 0;
    edited(batch, edits, instead, |from, edit| {
        rows += 1;
        match edit {
            Some(edit) => writer.edit(from, edit),
            None => writer.copy(from),
        }
    })?;
    if rows == 0 {
        return Ok(None);
    }
    read(outputs, writer.finish(&[0], &[0]), rows).map(Some)
}

/// The frame without its rows, if it says anything without them.
pub(super) fn without_rows(outputs: &Outputs) -> Option<Bytes> {
    let names_parts = outputs.aux_parts() > 0 && outputs.is_alone();
    if names_parts || !outputs.has_frame_fields() {
        return None;
    }
    OutputsWriter::new(vec![outputs]).finish(&[0], &[0]).ok()
}

/// Writes rows without tokens.
pub(super) fn blank(outputs: &Outputs, rows: &[BlankRow<'_>]) -> Result<Batch, RowsError> {
    if outputs.aux_parts() > 0 && outputs.is_alone() {
        return Err(RowsError::Split { name: "parts".to_owned() });
    }
    let mut writer = OutputsWriter::new(vec![outputs]);
    rows.iter().for_each(|row| writer.blank(outputs, row.rid));
    read(outputs, writer.finish(&[0], &[0]), rows.len())
}

/// Reads a written frame again, so that sent frames pass the same checks as received ones.
fn read(like: &Outputs, written: Result<Bytes, RowsError>, rows: usize) -> Result<Batch, RowsError> {
    let wrong = |error| RowsError::Written(Box::new(error));
    let written = written?;
    if written.len() > MAX_FRAME_BYTES {
        return Err(wrong(WireError::TooLong { bytes: written.len() }));
    }
    let outputs = Outputs::read(&written, like.layouts()).map_err(wrong)?;
    match outputs.rows.len() == rows {
        true => Ok(outputs.into_batch()),
        false => Err(wrong(WireError::Column { name: CLASS, expected: "a row for each request" })),
    }
}
