//! A msgpack batch as columns: the positions of its fields and of their cells. One pass checks the whole structure;
//! cells are parsed on demand. Engines whose messages are structs of columns share it.

use bytes::Bytes;

use crate::error::{PackError, WireError};
use crate::pack::{self, CellSpans, PackValue};
use crate::value::ColumnCells;

/// The tag of a pickle inside msgpack, with its header.
const PICKLE_WRAPPER: &[u8] = b"\xadPickleWrapper";

/// The form of a column.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ColumnShape {
    Nil,
    Empty,
    /// One cell per row.
    Cells(CellSpans),
    /// A pickle in place of the column, and its position in the frame.
    Wrapped {
        start: u32,
        end: u32,
    },
    /// Any other value.
    Whole,
}

/// A column's position in the frame, and its form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ColumnSpan {
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) shape: ColumnShape,
}

/// The columns of a frame, in the order of its layout.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) columns: Vec<ColumnSpan>,
    /// The starts of the cells of several widths, of all columns.
    pub(crate) starts: Vec<u32>,
}

/// The head of a msgpack frame: an array whose first element is a class name. Its fields begin at `body`.
pub(crate) struct Tagged<'a> {
    pub(crate) tag: &'a str,
    pub(crate) elements: u64,
    pub(crate) body: usize,
}

/// Reads the head of a frame. `None`: the frame is not an array.
pub(crate) fn tagged(frame: &[u8]) -> Result<Option<Tagged<'_>>, PackError> {
    let Some((elements, at)) = pack::array_at(frame, 0)? else { return Ok(None) };
    let body = if elements == 0 { return Err(PackError::NoTag) } else { pack::skip(frame, at)? };
    match pack::item(&frame[at..body]) {
        Some(PackValue::Str(tag)) => {
            let tag = std::str::from_utf8(tag).map_err(|_| PackError::NoTag)?;
            Ok(Some(Tagged { tag, elements, body }))
        }
        _ => Err(PackError::NoTag),
    }
}

/// Checks that the rest of the frame is exactly `count` values from `at` on.
pub(crate) fn check_rest(frame: &[u8], mut at: usize, count: u64) -> Result<(), PackError> {
    for _ in 0..count {
        at = pack::skip(frame, at)?;
    }
    if at == frame.len() { Ok(()) } else { Err(PackError::Trailing { bytes: frame.len() - at }) }
}

impl Packed {
    /// The memory of the positions in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.columns.capacity() * size_of::<ColumnSpan>() + self.starts.capacity() * size_of::<u32>()
    }

    /// Finds the `fields` columns, which begin at `at`, and the number of rows (`rids` is first; nil means none).
    pub(crate) fn read(frame: &Bytes, fields: usize, mut at: usize) -> Result<(Packed, u32), WireError> {
        let mut packed = Packed { columns: Vec::with_capacity(fields), starts: Vec::new() };
        let mut rows = None;
        for _ in 0..fields {
            let span = packed.column(frame, at, &mut rows)?;
            at = span.end as usize;
            packed.columns.push(span);
        }
        check_rest(frame, at, 0)?;
        Ok((packed, rows.unwrap_or(0)))
    }

    /// The cells of a column, if it has one per row.
    #[inline]
    pub(crate) fn cells<'f>(&'f self, frame: &'f [u8], field: usize) -> Option<ColumnCells<'f>> {
        match self.columns.get(field)?.shape {
            ColumnShape::Cells(cells) => Some(ColumnCells::Packed { frame, starts: &self.starts, cells }),
            _ => None,
        }
    }

    /// Finds the columns of a frame that was written from some rows of this frame. `ends` are the ends of its head and of its
    /// columns. `None`: a column has another form than here.
    pub(crate) fn of_taken(&self, frame: &[u8], ends: &[u32], rows: u32) -> Option<Packed> {
        let mut taken = Packed { columns: Vec::with_capacity(self.columns.len()), starts: Vec::new() };
        for (column, pair) in self.columns.iter().zip(ends.windows(2)) {
            let (start, end) = (pair[0], pair[1]);
            let span = match column.shape {
                ColumnShape::Nil | ColumnShape::Empty => ColumnSpan { start, end, shape: column.shape },
                // Two cells can look like a pickle.
                ColumnShape::Cells(CellSpans::Uniform { width, .. }) if rows != 2 => {
                    let cells = CellSpans::Uniform { start: end - rows * width, width };
                    ColumnSpan { start, end, shape: ColumnShape::Cells(cells) }
                }
                _ => taken.column(frame, start as usize, &mut Some(rows)).ok()?,
            };
            let is_alike = std::mem::discriminant(&span.shape) == std::mem::discriminant(&column.shape);
            if !is_alike || span.end != end {
                return None;
            }
            taken.columns.push(span);
        }
        Some(taken)
    }

    /// Reads the column at `at`. The first column sets the number of rows.
    fn column(&mut self, frame: &[u8], at: usize, rows: &mut Option<u32>) -> Result<ColumnSpan, PackError> {
        let span = |end: usize, shape| ColumnSpan { start: at as u32, end: end as u32, shape };
        if frame.get(at) == Some(&0xc0) {
            rows.get_or_insert(0);
            return Ok(span(at + 1, ColumnShape::Nil));
        }
        let Some((count, body)) = pack::array_at(frame, at)? else {
            return Ok(span(pack::skip(frame, at)?, ColumnShape::Whole));
        };
        // A count is at most the frame's length, which fits into u32.
        let rows = *rows.get_or_insert(count as u32);
        if count == 0 {
            return Ok(span(body, ColumnShape::Empty));
        }
        if count == 2 && frame[body..].starts_with(PICKLE_WRAPPER) {
            let end = pack::skip(frame, at)?;
            return Ok(match pack::item(&frame[body + PICKLE_WRAPPER.len()..end]) {
                Some(PackValue::Bin(pickle)) => {
                    span(end, ColumnShape::Wrapped { start: (end - pickle.len()) as u32, end: end as u32 })
                }
                _ => span(end, ColumnShape::Whole),
            });
        }
        if count != u64::from(rows) {
            return Ok(span(pack::skip(frame, at)?, ColumnShape::Whole));
        }
        let (cells, end) = pack::cells(frame, body, rows, &mut self.starts)?;
        Ok(span(end, ColumnShape::Cells(cells)))
    }
}

/// Writes a pickle in place of a column.
pub(crate) fn write_wrapped(out: &mut Vec<u8>, pickle: &[u8]) {
    pack::write::array(out, 2);
    out.extend_from_slice(PICKLE_WRAPPER);
    pack::write::bin(out, pickle.len());
    out.extend_from_slice(pickle);
}
