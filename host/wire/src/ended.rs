//! The end of rows whose contents must not go on: a frame of its own in the layout of the one that came. Of that it takes who the
//! rows are for, and their counts; it has no token, and nothing else that the scheduler said.
//!
//! It is for frames that cannot be read or edited, so it reads and copies as little of them as can be.

use afterbay_pickle::Writer;

use crate::batch::{Batch, Body};
use crate::error::RowsError;
use crate::layouts::Known;
use crate::pack;
use crate::pickled;
use crate::sink::{Sink, wait};
use crate::synth::{SynthBatch, SynthFinish, SynthRow};
use crate::textless::is_dataclass;
use crate::value::Value;

/// Fields of each row that are taken over from the frame: who the row is for.
const TAKEN: [Known; 2] = [Known::Rids, Known::HttpWorkerIpcs];

impl Batch {
    /// A frame like this one in which some rows, ascending, end their requests: each is aborted with this message and has no
    /// tokens.
    ///
    /// The error: there are no rows, or they cannot be written.
    pub fn ended(&self, rows: &[u32], message: &str) -> Result<Batch, RowsError> {
        if let Some(&row) = rows.iter().find(|row| **row >= self.rows) {
            return Err(RowsError::Row { row, rows: self.rows });
        }
        if rows.is_empty() {
            return Err(RowsError::NoRows);
        }
        let ends = SynthBatch { rows: rows.iter().map(|row| self.end_of(*row, message)).collect() };
        let fields = &self.layout.fields;
        let bytes = match &self.body {
            Body::Packed(_) => {
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
            Body::Pickled(pickled) => {
                let model = pickled::model(self.kind(), is_dataclass(self))
                    .map_err(|error| RowsError::Written(Box::new(error.into())))?;
                let mut writer = Writer::new(pickled.tree.protocol());
                let (model_source, source) = (writer.source(&model), writer.source(&pickled.tree));
                let mut failed = None;
                let object = writer.object(model_source, model.root(), |writer| {
                    let written = fields.iter().try_for_each(|field| {
                        writer.str(&field.name);
                        match self.taken(&field.name) {
                            Some(known) => Sink::list(writer, rows.len(), |writer| {
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

    /// Which of the fields that are taken over this is. Where it does not have a cell a row, it is not.
    fn taken(&self, name: &str) -> Option<Known> {
        let known = TAKEN.into_iter().find(|known| known.name() == name)?;
        self.cell(known, 0).map(|_| known)
    }

    fn take_over<'a, S: Sink<'a>>(
        &'a self,
        sink: &mut S,
        known: Known,
        row: u32,
        source: Option<afterbay_pickle::Source>,
    ) -> Result<(), RowsError> {
        match self.cell(known, row) {
            // What is neither could be anything, of any size.
            Some(cell) if cell.is_nil() || cell.str_bytes().is_some() => sink.copy(cell, source),
            Some(Value::Packed(_) | Value::Tree(..)) | None => {
                sink.nil();
                Ok(())
            }
        }
    }
}

impl SynthBatch {
    /// Writes a column of rows that end: nothing of the times that SGLang has measured, which each version has in its own form.
    fn end_column<'a>(&self, sink: &mut impl Sink<'a>, name: &str) -> Result<(), RowsError> {
        match name {
            "time_stats" | "load" => {
                sink.nil();
                Ok(())
            }
            name => self.column(sink, name),
        }
    }
}
