//! Writes the columns of a BatchStrOutput from rows of a BatchTokenIDOutput, as the detokenizer would.

use crate::pickle::SourceId;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::WritePlan;
use crate::batch::EngineBatch;
use crate::bounds::MAX_EXPANSION;
use crate::error::RowsError;
use crate::sglang::joining::ColumnRule;
use crate::sglang::layouts::{ColumnSource, KnownField};
use crate::sglang::value_writer::ValueWriter;
use crate::tensor;
use crate::value::ColumnView;

impl<'a> WritePlan<'a> {
    /// Writes a column of a BatchStrOutput from the rows of a BatchTokenIDOutput.
    pub(super) fn without_text<S: ValueWriter<'a>>(
        &self,
        out: &mut S,
        sources: &[Option<SourceId>],
        from: ColumnSource,
    ) -> Result<(), RowsError> {
        let (_, batch) = self.first()?;
        let name = |at: usize| batch.layout.fields[at].name.to_string();
        match from {
            ColumnSource::Column(at) => {
                self.column(out, sources, at, ColumnRule::new(&batch.layout.fields[at]))
            }
            ColumnSource::Unknown(at) if batch.is_nil_or_empty(at) => out.copy(batch.raw(at), sources[0]),
            ColumnSource::Unknown(at) => Err(RowsError::NotByDetokenizer { name: name(at) }),
            ColumnSource::Nil => {
                out.nil();
                Ok(())
            }
            ColumnSource::NoText => self.each(out, |out, _| {
                out.str("");
                Ok(())
            }),
            ColumnSource::Ids(at) if batch.plain_rows(at).is_some() => {
                self.column(out, sources, at, ColumnRule::new(&batch.layout.fields[at]))
            }
            ColumnSource::Ids(_) => self.each(out, |out, row| {
                let mut ids = Vec::new();
                batch.ids(row, &mut ids);
                out.ids(&ids, batch.cell(KnownField::DecodeIds, row))
            }),
            ColumnSource::Base64(at) => match batch.view(at)? {
                ColumnView::Cells(cells) => {
                    let mut left = MAX_EXPANSION * batch.frame.len();
                    self.each(out, |out, row| {
                        let cell = cells.get(row);
                        if cell.is_nil() || cell.str().is_some() {
                            return out.copy(cell, sources[0]);
                        }
                        let items = tensor::items(cell);
                        let items = items.ok_or_else(|| RowsError::NotByDetokenizer { name: name(at) })?;
                        left = left
                            .checked_sub(items.len())
                            .ok_or_else(|| RowsError::Expands { name: name(at) })?;
                        out.str(&STANDARD.encode(items));
                        Ok(())
                    })
                }
                ColumnView::Nil | ColumnView::Empty => out.copy(batch.raw(at), sources[0]),
                _ => Err(RowsError::NotByDetokenizer { name: name(at) }),
            },
        }
    }

    /// Writes a list of what `cell` writes for each row. The plan must have unchanged rows only.
    fn each<S: ValueWriter<'a>>(
        &self,
        out: &mut S,
        mut cell: impl FnMut(&mut S, u32) -> Result<(), RowsError>,
    ) -> Result<(), RowsError> {
        let mut rows = self.firsts.iter().flat_map(|run| run.rows.clone());
        out.list(self.rows, |out| rows.try_for_each(|row| cell(out, row)))
    }
}
