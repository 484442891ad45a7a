//! A msgpack batch as columns: which field stands where in the frame, and where its cells are. One pass over the
//! bytes, which checks all of the structure; what cells say is read from their bytes when somebody asks.

use std::sync::Arc;

use bytes::Bytes;

use crate::error::{PackError, WireError};
use crate::layouts::Layout;
use crate::pack::{self, Cells, Item};

/// The tag of a pickle inside msgpack, with its header.
const PICKLE_WRAPPER: &[u8] = b"\xadPickleWrapper";

/// What a column is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    Nil,
    Empty,
    /// One cell a row.
    Rows(Cells),
    /// A pickle that stands for the column: where in the frame.
    Wrapped {
        start: u32,
        end: u32,
    },
    /// Anything else.
    Whole,
}

/// A column: where its value stands in the frame, and what it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) shape: Shape,
}

/// The columns of a frame, by position in its layout.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) columns: Vec<Span>,
    /// The starts of cells of several widths, all columns' one after another.
    pub(crate) starts: Vec<u32>,
}

/// What a msgpack frame begins with: an array of so many elements, the first a class name; its fields begin at `body`.
pub(crate) struct Tagged<'a> {
    pub(crate) tag: &'a str,
    pub(crate) elements: u64,
    pub(crate) body: usize,
}

/// Reads the beginning of a frame. `None`: it is no array.
pub(crate) fn tagged(frame: &[u8]) -> Result<Option<Tagged<'_>>, PackError> {
    let Some((elements, at)) = pack::array_at(frame, 0)? else { return Ok(None) };
    let body = if elements == 0 { return Err(PackError::NoTag) } else { pack::skip(frame, at)? };
    match pack::item(&frame[at..body]) {
        Some(Item::Str(tag)) => {
            let tag = std::str::from_utf8(tag).map_err(|_| PackError::NoTag)?;
            Ok(Some(Tagged { tag, elements, body }))
        }
        _ => Err(PackError::NoTag),
    }
}

/// Checks that the frame is one value, from `at` on `count` more values.
pub(crate) fn check_rest(frame: &[u8], mut at: usize, count: u64) -> Result<(), PackError> {
    for _ in 0..count {
        at = pack::skip(frame, at)?;
    }
    if at == frame.len() { Ok(()) } else { Err(PackError::Trailing { bytes: frame.len() - at }) }
}

impl Packed {
    /// Finds the columns, which begin at `at`, and how many rows there are (`rids` comes first; nil counts as none).
    pub(crate) fn read(
        frame: &Bytes,
        layout: &Arc<Layout>,
        mut at: usize,
    ) -> Result<(Packed, u32), WireError> {
        let mut packed = Packed { columns: Vec::with_capacity(layout.fields.len()), starts: Vec::new() };
        let mut rows = None;
        for _ in &layout.fields {
            let span = packed.column(frame, at, &mut rows)?;
            at = span.end as usize;
            packed.columns.push(span);
        }
        check_rest(frame, at, 0)?;
        Ok((packed, rows.unwrap_or(0)))
    }

    /// Reads the column at `at`; the first one that is read says how many rows there are.
    fn column(&mut self, frame: &[u8], at: usize, rows: &mut Option<u32>) -> Result<Span, PackError> {
        let span = |end: usize, shape| Span { start: at as u32, end: end as u32, shape };
        if frame.get(at) == Some(&0xc0) {
            rows.get_or_insert(0);
            return Ok(span(at + 1, Shape::Nil));
        }
        let Some((count, body)) = pack::array_at(frame, at)? else {
            return Ok(span(pack::skip(frame, at)?, Shape::Whole));
        };
        // A count is at most the frame's length, which is within u32.
        let rows = *rows.get_or_insert(count as u32);
        if count == 0 {
            return Ok(span(body, Shape::Empty));
        }
        if count == 2 && frame[body..].starts_with(PICKLE_WRAPPER) {
            let end = pack::skip(frame, at)?;
            return Ok(match pack::item(&frame[body + PICKLE_WRAPPER.len()..end]) {
                Some(Item::Bin(pickle)) => {
                    span(end, Shape::Wrapped { start: (end - pickle.len()) as u32, end: end as u32 })
                }
                _ => span(end, Shape::Whole),
            });
        }
        if count != u64::from(rows) {
            return Ok(span(pack::skip(frame, at)?, Shape::Whole));
        }
        let (cells, end) = pack::cells(frame, body, rows, &mut self.starts)?;
        Ok(span(end, Shape::Rows(cells)))
    }
}

/// Writes a pickle that stands for a column.
pub(crate) fn write_wrapped(out: &mut Vec<u8>, pickle: &[u8]) {
    pack::write::array(out, 2);
    out.extend_from_slice(PICKLE_WRAPPER);
    pack::write::bin(out, pickle.len());
    out.extend_from_slice(pickle);
}
