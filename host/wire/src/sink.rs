//! Where a batch is written to: msgpack bytes, or a pickle.

use std::ops::Range;

use afterbay_pickle::{Source, Writer};

use crate::error::RowsError;
use crate::mask::Mask;
use crate::pack::{self, LIST};
use crate::packed;
use crate::value::{Rows, Value};

/// Writes values one after another. What is copied is of the sink's own encoding: a batch's parts are of one.
pub(crate) trait Sink<'a>: Sized {
    fn nil(&mut self);
    fn bool(&mut self, value: bool);
    fn int(&mut self, value: i64);
    fn float(&mut self, value: f64);
    fn str(&mut self, text: &str);

    /// An id array, in the form of another one or else in that of 0.5.23.
    fn ids(&mut self, ids: &[i64], like: Option<Value<'a>>) -> Result<(), RowsError>;

    fn mask(&mut self, mask: &Mask) -> Result<(), RowsError>;

    /// A list of the `len` values that `items` writes.
    fn list(
        &mut self,
        len: usize,
        items: impl FnOnce(&mut Self) -> Result<(), RowsError>,
    ) -> Result<(), RowsError>;

    /// A map of the `len` keys and values that `entries` writes.
    fn map(
        &mut self,
        len: usize,
        entries: impl FnOnce(&mut Self) -> Result<(), RowsError>,
    ) -> Result<(), RowsError>;

    /// A pickle that stands for a column; in a pickle none does.
    fn wrapped(&mut self, pickle: &[u8]) -> Result<(), RowsError>;

    /// A value as it is; `source` is its tree, of a pickle.
    fn copy(&mut self, value: Value<'a>, source: Option<Source>) -> Result<(), RowsError>;

    /// Several cells of a column that follow each other.
    fn run(&mut self, rows: Rows<'a>, source: Option<Source>, run: Range<u32>) -> Result<(), RowsError>;
}

impl<'a> Sink<'a> for Vec<u8> {
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

    fn ids(&mut self, ids: &[i64], like: Option<Value<'a>>) -> Result<(), RowsError> {
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

    fn copy(&mut self, value: Value<'a>, _: Option<Source>) -> Result<(), RowsError> {
        let Value::Packed(bytes) = value else { return Err(RowsError::Foreign) };
        self.extend_from_slice(bytes);
        Ok(())
    }

    fn run(&mut self, rows: Rows<'a>, _: Option<Source>, run: Range<u32>) -> Result<(), RowsError> {
        self.extend_from_slice(rows.bytes(run).ok_or(RowsError::Foreign)?);
        Ok(())
    }
}

impl<'a> Sink<'a> for Writer<'a> {
    fn nil(&mut self) {
        self.none();
    }

    fn bool(&mut self, value: bool) {
        Writer::bool(self, value);
    }

    fn int(&mut self, value: i64) {
        Writer::int(self, value);
    }

    fn float(&mut self, value: f64) {
        Writer::float(self, value);
    }

    fn str(&mut self, text: &str) {
        Writer::str(self, text);
    }

    fn ids(&mut self, ids: &[i64], like: Option<Value<'a>>) -> Result<(), RowsError> {
        match like {
            Some(like) if like.types() == LIST => Ok(self.id_list(ids)?),
            _ => {
                self.id_array(ids);
                Ok(())
            }
        }
    }

    fn mask(&mut self, _: &Mask) -> Result<(), RowsError> {
        // `Plan::masks` has written it before.
        Err(RowsError::Foreign)
    }

    fn list(
        &mut self,
        _: usize,
        items: impl FnOnce(&mut Self) -> Result<(), RowsError>,
    ) -> Result<(), RowsError> {
        let mut failed = None;
        let written = Writer::list(self, |writer| wait(items(writer), &mut failed));
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

    fn copy(&mut self, value: Value<'a>, source: Option<Source>) -> Result<(), RowsError> {
        let (Value::Tree(_, id), Some(source)) = (value, source) else { return Err(RowsError::Foreign) };
        Ok(Writer::copy(self, source, id)?)
    }

    fn run(&mut self, rows: Rows<'a>, source: Option<Source>, run: Range<u32>) -> Result<(), RowsError> {
        let (Some(nodes), Some(source)) = (rows.nodes(run), source) else { return Err(RowsError::Foreign) };
        Ok(nodes.iter().try_for_each(|&id| Writer::copy(self, source, id))?)
    }
}

/// The pickle writer's containers know only errors of their own. One of this crate waits in `failed` until they have
/// returned, and counts before what they say of values that were left out; what was written until then is thrown away.
pub(crate) fn wait(
    written: Result<(), RowsError>,
    failed: &mut Option<RowsError>,
) -> Result<(), afterbay_pickle::WriteError> {
    *failed = written.err();
    Ok(())
}
