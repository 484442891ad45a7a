//! Writes rows without tokens in the layout of a received frame. They have rids and counts, and nothing else from the scheduler.

use crate::pickle::PickleWriter;

use super::batch::{ColumnForm, Columns};
use super::decode::read_again;
use crate::batch::Batch;
use crate::edit::BlankRow;
use crate::error::RowsError;
use crate::pack;
use crate::sglang::pickled;
use crate::sglang::synth::{SynthBatch, SynthRow};
use crate::sglang::value_writer::{ValueWriter, wait};

/// Returns a frame of these rows, at least one.
pub(super) fn blank(columns: &Columns, rows: &[BlankRow<'_>]) -> Result<Batch, RowsError> {
    let rows = rows.iter().map(|row| SynthRow {
        rid: row.rid.to_owned(),
        http_worker_ipc: row.front_end.map(str::to_owned),
        completion_tokens: row.completion_tokens,
        prompt_tokens: row.prompt_tokens,
        ..SynthRow::default()
    });
    let blank = SynthBatch { rows: rows.collect() };
    let fields = &columns.layout.fields;
    let bytes = match &columns.form {
        ColumnForm::Packed(_) => {
            let mut out = Vec::new();
            pack::write::array(&mut out, fields.len() + 1);
            pack::write::str(&mut out, columns.layout.kind.class());
            fields.iter().try_for_each(|field| blank.blank_column(&mut out, &field.name))?;
            out.into()
        }
        ColumnForm::Pickled(pickled) => {
            let model = pickled::model(columns.layout.kind, columns.is_dataclass())
                .map_err(|error| RowsError::Written(Box::new(error.into())))?;
            let mut writer = PickleWriter::new(pickled.protocol());
            let source = writer.source(&model);
            let mut failed = None;
            let object = writer.object(source, model.root(), |writer| {
                let written = fields.iter().try_for_each(|field| {
                    writer.str(&field.name);
                    blank.blank_column(writer, &field.name)
                });
                wait(written, &mut failed)
            });
            failed.map_or(object.map_err(RowsError::from), Err)?;
            writer.finish()?
        }
    };
    read_again(columns, bytes, &columns.layout).map_err(|error| RowsError::Written(Box::new(error)))
}

impl SynthBatch {
    /// Writes a column without SGLang's time statistics, whose form differs between versions.
    fn blank_column<'a>(&self, out: &mut impl ValueWriter<'a>, name: &str) -> Result<(), RowsError> {
        match name {
            "time_stats" | "load" => {
                out.nil();
                Ok(())
            }
            name => self.column(out, name),
        }
    }
}
