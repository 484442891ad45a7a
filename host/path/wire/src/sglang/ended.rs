//! Ends requests whose rows must not be forwarded: a new frame in the layout of the received one. It has the rids and
//! counts of the rows, no tokens, and nothing else from the scheduler.
//!
//! It serves frames that cannot be read or edited, so it reads and copies as little of them as possible.

use crate::pickle::PickleWriter;

use super::batch::{ColumnForm, Columns};
use super::decode::read_again;
use crate::batch::Batch;
use crate::error::RowsError;
use crate::pack;
use crate::sglang::layouts::KnownField;
use crate::sglang::pickled;
use crate::sglang::synth::{SynthBatch, SynthFinish, SynthRow};
use crate::sglang::value_writer::{ValueWriter, wait};
use crate::value::RawValue;

/// The fields that are copied from the frame: the receiver of each row.
const TAKEN: [KnownField; 2] = [KnownField::Rids, KnownField::HttpWorkerIpcs];

/// Returns a frame that ends the requests of some rows, at least one.
pub(super) fn ended(
    batch: &Batch,
    columns: &Columns,
    rows: &[u32],
    message: &str,
) -> Result<Batch, RowsError> {
    let ends = SynthBatch { rows: rows.iter().map(|row| end_of(batch, *row, message)).collect() };
    let fields = &columns.layout.fields;
    let bytes = match &columns.form {
        ColumnForm::Packed(_) => {
            let mut out = Vec::new();
            pack::write::array(&mut out, fields.len() + 1);
            pack::write::str(&mut out, columns.layout.kind.class());
            for field in fields {
                match taken(columns, &field.name) {
                    Some(known) => out.list(rows.len(), |out| {
                        rows.iter().try_for_each(|row| take_over(columns, out, known, *row, None))
                    })?,
                    None => ends.end_column(&mut out, &field.name)?,
                }
            }
            out.into()
        }
        ColumnForm::Pickled(pickled) => {
            let model = pickled::model(columns.layout.kind, columns.is_dataclass())
                .map_err(|error| RowsError::Written(Box::new(error.into())))?;
            let mut writer = PickleWriter::new(pickled.protocol());
            let (model_source, source) = (writer.source(&model), writer.source(pickled.tree()));
            let mut failed = None;
            let object = writer.object(model_source, model.root(), |writer| {
                let written = fields.iter().try_for_each(|field| {
                    writer.str(&field.name);
                    match taken(columns, &field.name) {
                        Some(known) => ValueWriter::list(writer, rows.len(), |writer| {
                            rows.iter()
                                .try_for_each(|row| take_over(columns, writer, known, *row, Some(source)))
                        }),
                        None => ends.end_column(writer, &field.name),
                    }
                });
                wait(written, &mut failed)
            });
            failed.map_or(object.map_err(RowsError::from), Err)?;
            writer.finish()?
        }
    };
    read_again(columns, bytes, &columns.layout).map_err(|error| RowsError::Written(Box::new(error)))
}

fn end_of(batch: &Batch, row: u32, message: &str) -> SynthRow {
    SynthRow {
        finish: Some(SynthFinish::Abort(message.to_owned())),
        completion_tokens: batch.completion_tokens(row).unwrap_or(0),
        prompt_tokens: batch.prompt_tokens(row).unwrap_or(0),
        ..SynthRow::default()
    }
}

/// The copied field with this name, if the frame has one cell per row for it.
fn taken(columns: &Columns, name: &str) -> Option<KnownField> {
    let known = TAKEN.into_iter().find(|known| known.name() == name)?;
    columns.cell(known, 0).map(|_| known)
}

fn take_over<'a, S: ValueWriter<'a>>(
    columns: &'a Columns,
    out: &mut S,
    known: KnownField,
    row: u32,
    source: Option<crate::pickle::SourceId>,
) -> Result<(), RowsError> {
    match columns.cell(known, row) {
        // Any other value could be of any size.
        Some(cell) if cell.is_nil() || cell.str_bytes().is_some() => out.copy(cell, source),
        Some(RawValue::Packed(_) | RawValue::Tree(..)) | None => {
            out.nil();
            Ok(())
        }
    }
}

impl SynthBatch {
    /// Writes a column of ended rows, without SGLang's time statistics, whose form differs between versions.
    fn end_column<'a>(&self, out: &mut impl ValueWriter<'a>, name: &str) -> Result<(), RowsError> {
        match name {
            "time_stats" | "load" => {
                out.nil();
                Ok(())
            }
            name => self.column(out, name),
        }
    }
}
