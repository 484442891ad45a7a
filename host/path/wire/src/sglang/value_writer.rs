//! The output of a batch: msgpack bytes, or a pickle.

use std::iter;
use std::ops::Range;

use crate::pickle::{PickleWriter, SourceId};

use crate::error::RowsError;
use crate::pack::{self, LIST};
use crate::packed;
use crate::sglang::mask::Mask;
use crate::value::{ColumnCells, RawValue};

/// Writes values in order. Copied values must have the output's encoding, as all parts of a batch do.
pub(crate) trait ValueWriter<'a>: Sized {
    fn nil(&mut self);
    fn bool(&mut self, value: bool);
    fn int(&mut self, value: i64);
    fn float(&mut self, value: f64);
    fn str(&mut self, text: &str);

    /// Writes an id array in the form of `like`, or in the form of 0.5.23.
    fn ids(&mut self, ids: &[i64], like: Option<RawValue<'a>>) -> Result<(), RowsError>;

    fn mask(&mut self, mask: &Mask) -> Result<(), RowsError>;

    /// Writes a list of the `len` values that `items` writes.
    fn list(
        &mut self,
        len: usize,
        items: impl FnOnce(&mut Self) -> Result<(), RowsError>,
    ) -> Result<(), RowsError>;

    /// Writes a map of the `len` keys and values that `entries` writes.
    fn map(
        &mut self,
        len: usize,
        entries: impl FnOnce(&mut Self) -> Result<(), RowsError>,
    ) -> Result<(), RowsError>;

    /// Writes a pickle in place of a column. Only msgpack has such columns.
    fn wrapped(&mut self, pickle: &[u8]) -> Result<(), RowsError>;

    /// Copies a value. `source` is the tree of a pickle's value.
    fn copy(&mut self, value: RawValue<'a>, source: Option<SourceId>) -> Result<(), RowsError>;

    /// Writes an id array of these ids, which are little-endian, in the form of 0.5.23.
    fn id_bytes(&mut self, ids: &[&[u8]]);

    /// Copies the cells of these runs of rows. `counts` are their number and that of all cells of the column.
    fn rows(
        &mut self,
        rows: ColumnCells<'a>,
        source: Option<SourceId>,
        counts: (usize, u32),
        runs: impl Iterator<Item = Range<u32>>,
    ) -> Result<(), RowsError>;

    /// Copies adjacent cells of a column.
    fn run(
        &mut self,
        rows: ColumnCells<'a>,
        source: Option<SourceId>,
        run: Range<u32>,
    ) -> Result<(), RowsError>;
}

impl<'a> ValueWriter<'a> for Vec<u8> {
    fn nil(&mut self) {
        pack::write::nil(self);
    }

    fn bool(&mut self, value: bool) {
        self.push(0xc2 + u8::from(value));
    }

    fn int(&mut self, value: i64) {
        pack::write::int(self, value);
    }

    fn float(&mut self, value: f64) {
        pack::write::float(self, value);
    }

    fn str(&mut self, text: &str) {
        pack::write::str(self, text);
    }

    fn ids(&mut self, ids: &[i64], like: Option<RawValue<'a>>) -> Result<(), RowsError> {
        pack::write::ids(self, ids, like.is_none_or(|like| like.types() != LIST));
        Ok(())
    }

    fn mask(&mut self, mask: &Mask) -> Result<(), RowsError> {
        mask.pack(self);
        Ok(())
    }

    fn list(
        &mut self,
        len: usize,
        items: impl FnOnce(&mut Self) -> Result<(), RowsError>,
    ) -> Result<(), RowsError> {
        pack::write::array(self, len);
        items(self)
    }

    fn map(
        &mut self,
        len: usize,
        entries: impl FnOnce(&mut Self) -> Result<(), RowsError>,
    ) -> Result<(), RowsError> {
        pack::write::map(self, len);
        entries(self)
    }

    fn wrapped(&mut self, pickle: &[u8]) -> Result<(), RowsError> {
        packed::write_wrapped(self, pickle);
        Ok(())
    }

    fn copy(&mut self, value: RawValue<'a>, _: Option<SourceId>) -> Result<(), RowsError> {
        let RawValue::Packed(bytes) = value else { return Err(RowsError::Foreign) };
        self.extend_from_slice(bytes);
        Ok(())
    }

    fn id_bytes(&mut self, ids: &[&[u8]]) {
        pack::write::id_bytes(self, ids);
    }

    fn rows(
        &mut self,
        rows: ColumnCells<'a>,
        source: Option<SourceId>,
        (count, of): (usize, u32),
        mut runs: impl Iterator<Item = Range<u32>>,
    ) -> Result<(), RowsError> {
        let Some((bytes, width)) = rows.equal_width(of) else {
            return runs.try_for_each(|run| self.run(rows, source, run));
        };
        match width {
            1 => {
                // Most columns of flags and counts have one value.
                if let Some(value) = pack::equal_bytes(bytes) {
                    self.resize(self.len() + count, value);
                    return Ok(());
                }
                copy_cells::<1>(self, bytes, runs);
            }
            // One token id, and a rid of SGLang's. A copy of a length that the compiler knows takes fewer instructions.
            17 => copy_cells::<17>(self, bytes, runs),
            34 => copy_cells::<34>(self, bytes, runs),
            _ => {
                let spans = runs.map(|run| run.start as usize * width..run.end as usize * width);
                spans.for_each(|span| self.extend_from_slice(&bytes[span]));
            }
        }
        Ok(())
    }

    fn run(&mut self, rows: ColumnCells<'a>, _: Option<SourceId>, run: Range<u32>) -> Result<(), RowsError> {
        self.extend_from_slice(rows.bytes(run).ok_or(RowsError::Foreign)?);
        Ok(())
    }
}

/// Copies cells of this width.
fn copy_cells<const WIDTH: usize>(out: &mut Vec<u8>, cells: &[u8], runs: impl Iterator<Item = Range<u32>>) {
    let (cells, _) = cells.as_chunks::<WIDTH>();
    for run in runs {
        match &cells[run.start as usize..run.end as usize] {
            [one] => out.extend_from_slice(one),
            some => out.extend_from_slice(some.as_flattened()),
        }
    }
}

impl<'a> ValueWriter<'a> for PickleWriter<'a> {
    fn nil(&mut self) {
        self.none();
    }

    fn bool(&mut self, value: bool) {
        PickleWriter::bool(self, value);
    }

    fn int(&mut self, value: i64) {
        PickleWriter::int(self, value);
    }

    fn float(&mut self, value: f64) {
        PickleWriter::float(self, value);
    }

    fn str(&mut self, text: &str) {
        PickleWriter::str(self, text);
    }

    fn ids(&mut self, ids: &[i64], like: Option<RawValue<'a>>) -> Result<(), RowsError> {
        match like {
            Some(like) if like.types() == LIST => Ok(self.id_list(ids)?),
            _ => {
                self.id_array(ids);
                Ok(())
            }
        }
    }

    fn mask(&mut self, _: &Mask) -> Result<(), RowsError> {
        // `WritePlan::masks` has written the mask before.
        Err(RowsError::Foreign)
    }

    fn list(
        &mut self,
        _: usize,
        items: impl FnOnce(&mut Self) -> Result<(), RowsError>,
    ) -> Result<(), RowsError> {
        let mut failed = None;
        let written = PickleWriter::list(self, |writer| wait(items(writer), &mut failed));
        failed.map_or(written.map_err(RowsError::from), Err)
    }

    fn map(
        &mut self,
        _: usize,
        entries: impl FnOnce(&mut Self) -> Result<(), RowsError>,
    ) -> Result<(), RowsError> {
        let mut failed = None;
        let written = self.dict(|writer| wait(entries(writer), &mut failed));
        failed.map_or(written.map_err(RowsError::from), Err)
    }

    fn wrapped(&mut self, _: &[u8]) -> Result<(), RowsError> {
        Err(RowsError::Foreign)
    }

    fn copy(&mut self, value: RawValue<'a>, source: Option<SourceId>) -> Result<(), RowsError> {
        let (RawValue::Tree(_, id), Some(source)) = (value, source) else { return Err(RowsError::Foreign) };
        Ok(PickleWriter::copy(self, source, id)?)
    }

    fn id_bytes(&mut self, ids: &[&[u8]]) {
        self.id_array_of(ids);
    }

    fn rows(
        &mut self,
        rows: ColumnCells<'a>,
        source: Option<SourceId>,
        (count, of): (usize, u32),
        runs: impl Iterator<Item = Range<u32>>,
    ) -> Result<(), RowsError> {
        let (Some(nodes), Some(source)) = (rows.nodes(0..of), source) else { return Err(RowsError::Foreign) };
        Ok(self.copy_ranges(source, nodes, runs, count)?)
    }

    fn run(
        &mut self,
        rows: ColumnCells<'a>,
        source: Option<SourceId>,
        run: Range<u32>,
    ) -> Result<(), RowsError> {
        let (Some(nodes), Some(source)) = (rows.nodes(run), source) else { return Err(RowsError::Foreign) };
        Ok(self.copy_ranges(source, nodes, iter::once(0..nodes.len() as u32), nodes.len())?)
    }
}

/// Keeps an error of this crate in `failed` until the pickle writer's container has returned, because the container
/// knows only its own errors. The kept error takes precedence, and the output is discarded.
pub(crate) fn wait(
    written: Result<(), RowsError>,
    failed: &mut Option<RowsError>,
) -> Result<(), crate::pickle::PickleWriteError> {
    *failed = written.err();
    Ok(())
}
