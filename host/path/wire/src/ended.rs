//! Ends requests whose rows must not be forwarded: a new frame in the layout of the received one. It has the rids and
//! counts of the rows, no tokens, and nothing else from the scheduler.
//!
//! It serves frames that cannot be read or edited, so it reads and copies as little of them as possible.

use crate::pickle::PickleWriter;

use crate::batch::{Batch, BatchBody};
use crate::error::RowsError;
use crate::layouts::KnownField;
use crate::pack;
use crate::pickled;
use crate::rows::vllm;
use crate::synth::{SynthBatch, SynthFinish, SynthRow};
use crate::value::RawValue;
use crate::value_writer::{ValueWriter, wait};

/// The fields that are copied from the frame: the receiver of each row.
const TAKEN: [KnownField; 2] = [KnownField::Rids, KnownField::HttpWorkerIpcs];

impl Batch {
    /// Returns a frame like this one that ends the requests of some rows, ascending: each is aborted with this message
    /// and has no tokens. A frame of vLLM's keeps its other fields.
    ///
    /// The error: there are no rows, or they cannot be written.
    pub fn ended(&self, rows: &[u32], message: &str) -> Result<Batch, RowsError> {
        if let Some(&row) = rows.iter().find(|row| **row >= self.rows) {
            return Err(RowsError::Row { row, rows: self.rows });
        }
        if rows.is_empty() {
            return Err(RowsError::NoRows);
        }
        if let Some(outputs) = self.outputs() {
            return vllm::ended(self, outputs, rows, message);
        }
        let ends = SynthBatch { rows: rows.iter().map(|row| self.end_of(*row, message)).collect() };
        let fields = &self.layout.fields;
        let bytes = match &self.body {
            BatchBody::Packed(_) => {
                let mut out = Vec::new();
                pack::write::array(&mut out, fields.len() + 1);
                pack::write::str(&mut out, self.kind().class());
                for field in fields {
                    match self.taken(&field.name) {
                        Some(known) => out.list(rows.len(), |out| {
                            rows.iter().try_for_each(|row| self.take_over(out, known, *row, None))
                        })?,
                        None => ends.end_column(&mut out, &field.name)?,
                    }
                }
                out.into()
            }
            BatchBody::Outputs(_) => return Err(RowsError::Foreign),
            BatchBody::Pickled(pickled) => {
                let model = pickled::model(self.kind(), self.is_dataclass())
                    .map_err(|error| RowsError::Written(Box::new(error.into())))?;
                let mut writer = PickleWriter::new(pickled.protocol());
                let (model_source, source) = (writer.source(&model), writer.source(pickled.tree()));
                let mut failed = None;
                let object = writer.object(model_source, model.root(), |writer| {
                    let written = fields.iter().try_for_each(|field| {
                        writer.str(&field.name);
                        match self.taken(&field.name) {
                            Some(known) => ValueWriter::list(writer, rows.len(), |writer| {
                                rows.iter()
                                    .try_for_each(|row| self.take_over(writer, known, *row, Some(source)))
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
        self.read_again(bytes, &self.layout).map_err(|error| RowsError::Written(Box::new(error)))
    }

    fn end_of(&self, row: u32, message: &str) -> SynthRow {
        SynthRow {
            finish: Some(SynthFinish::Abort(message.to_owned())),
            completion_tokens: self.completion_tokens(row).unwrap_or(0),
            prompt_tokens: self.prompt_tokens(row).unwrap_or(0),
            ..SynthRow::default()
        }
    }

    /// The copied field with this name, if the frame has one cell per row for it.
    fn taken(&self, name: &str) -> Option<KnownField> {
        let known = TAKEN.into_iter().find(|known| known.name() == name)?;
        self.cell(known, 0).map(|_| known)
    }

    fn take_over<'a, S: ValueWriter<'a>>(
        &'a self,
        out: &mut S,
        known: KnownField,
        row: u32,
        source: Option<crate::pickle::SourceId>,
    ) -> Result<(), RowsError> {
        match self.cell(known, row) {
            // Any other value could be of any size.
            Some(cell) if cell.is_nil() || cell.str_bytes().is_some() => out.copy(cell, source),
            Some(RawValue::Packed(_) | RawValue::Tree(..)) | None => {
                out.nil();
                Ok(())
            }
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
