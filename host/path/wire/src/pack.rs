//! Reads msgpack in place: the ends of values, the positions of a column's cells, and the values of cells. It checks
//! structure (lengths, types, nesting), and allocates only the positions of cells. The meaning of columns is elsewhere.

pub(crate) mod write;

use crate::error::PackError;

/// The msgpack extension type that SGLang gives to `array.array` (0.5.19 and later).
const EXT_ARRAY: u8 = 1;
/// The bytes before the items of an `array('q')`: the length of its msgpack header, and the header `"q"`.
const EXT_IDS: [u8; 6] = [0, 0, 0, 2, 0xa1, b'q'];

/// The extent of a value: up to its end for a scalar, up to the first child for a container.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    /// The end of the type byte and the length.
    pub(crate) body: usize,
    /// The end of a scalar; for a container, the same as `body`.
    pub(crate) end: usize,
    /// The number of values inside: an array's items, or a map's keys and values.
    pub(crate) children: u64,
}

/// A parsed value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum PackValue<'a> {
    Nil,
    Bool(bool),
    Int(i64),
    /// An unsigned integer over `i64::MAX`.
    Big(u64),
    Float(f64),
    /// A string's bytes, not checked for UTF-8.
    Str(&'a [u8]),
    Bin(&'a [u8]),
    Ext(u8, &'a [u8]),
    /// An array's length, and its items.
    Array(u64, &'a [u8]),
    /// A map's length, and its keys and values in turn.
    Map(u64, &'a [u8]),
}

/// The positions of a column's cells in the frame.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CellSpans {
    /// All cells have the same width, the usual case.
    Uniform { start: u32, width: u32 },
    /// The cells have several widths. Their starts and the last end are `starts[first..]`.
    Indexed { first: u32 },
}

/// A big-endian unsigned integer of up to 8 bytes.
pub(crate) fn big_endian(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

/// The width of a value by its first byte, or 0 if the first byte does not determine it.
const WIDTHS: [u8; 256] = {
    let mut widths = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        widths[byte] = match byte {
            0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 | 0x80 | 0x90 => 1,
            0xa0..=0xbf => 1 + (byte as u8 & 0x1f),
            0xcc | 0xd0 => 2,
            0xcd | 0xd1 => 3,
            0xca | 0xce | 0xd2 => 5,
            0xcb | 0xcf | 0xd3 => 9,
            _ => 0,
        };
        byte += 1;
    }
    widths
};

/// A set of value types, as far as this crate distinguishes them.
pub(crate) type Types = u8;
pub(crate) const NIL: Types = 1;
pub(crate) const INT: Types = 2;
pub(crate) const STR: Types = 4;
pub(crate) const EXT: Types = 8;
pub(crate) const LIST: Types = 16;
pub(crate) const MAP: Types = 32;
pub(crate) const OTHER: Types = 64;

/// The type of a value by its first byte.
pub(crate) const TYPES: [Types; 256] = {
    let mut types = [OTHER; 256];
    let mut byte = 0;
    while byte < 256 {
        types[byte] = match byte {
            0xc0 => NIL,
            0x00..=0x7f | 0xe0..=0xff | 0xcc..=0xd3 => INT,
            0xa0..=0xbf | 0xd9..=0xdb => STR,
            0xc7..=0xc9 | 0xd4..=0xd8 => EXT,
            0x90..=0x9f | 0xdc | 0xdd => LIST,
            0x80..=0x8f | 0xde | 0xdf => MAP,
            _ => OTHER,
        };
        byte += 1;
    }
    types
};

/// Whether a value has one byte: a small int, nil, a bool or an empty text. Without branches, because it is called for many
/// bytes.
fn one_byte(byte: u8) -> bool {
    !(0x80..0xe0).contains(&byte) | (byte == 0xc0) | (byte & 0xfe == 0xc2) | (byte == 0xa0)
}

pub(crate) fn extent(bytes: &[u8], at: usize) -> Result<Extent, PackError> {
    let rest = bytes.get(at..).unwrap_or_default();
    let cut = |needed: u64| PackError::Cut { at, needed, left: rest.len() };
    let Some(&first) = rest.first() else { return Err(cut(1)) };
    // The width of the length after the type byte, the fixed bytes besides it, and the children per entry.
    let (length_bytes, fixed, per_child) = match first {
        0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => (0, 0, 0),
        0x80..=0x8f => return container(bytes, at, 1, 2 * u64::from(first & 0x0f)),
        0x90..=0x9f => return container(bytes, at, 1, u64::from(first & 0x0f)),
        0xa0..=0xbf => (0, u64::from(first & 0x1f), 0),
        0xc1 => return Err(PackError::Unused { at }),
        0xc4 | 0xd9 => (1, 0, 0),
        0xc5 | 0xda => (2, 0, 0),
        0xc6 | 0xdb => (4, 0, 0),
        0xc7 => (1, 1, 0),
        0xc8 => (2, 1, 0),
        0xc9 => (4, 1, 0),
        0xcc | 0xd0 => (0, 1, 0),
        0xcd | 0xd1 => (0, 2, 0),
        0xca | 0xce | 0xd2 => (0, 4, 0),
        0xcb | 0xcf | 0xd3 => (0, 8, 0),
        0xd4..=0xd8 => (0, 1 + (1 << (first - 0xd4)), 0),
        0xdc => (2, 0, 1),
        0xdd => (4, 0, 1),
        0xde => (2, 0, 2),
        0xdf => (4, 0, 2),
    };
    let header = 1 + length_bytes;
    let declared = big_endian(rest.get(1..header).ok_or_else(|| cut(header as u64))?);
    if per_child > 0 {
        return container(bytes, at, header, declared * per_child);
    }
    let needed = header as u64 + fixed + declared;
    if needed > rest.len() as u64 {
        return Err(cut(needed));
    }
    Ok(Extent { body: at + header, end: at + needed as usize, children: 0 })
}

/// A container's extent. Each child takes at least one byte, so an impossible count is an error here.
fn container(bytes: &[u8], at: usize, header: usize, children: u64) -> Result<Extent, PackError> {
    let left = bytes.len() - at;
    let needed = header as u64 + children;
    if needed > left as u64 {
        return Err(PackError::Cut { at, needed, left });
    }
    Ok(Extent { body: at + header, end: at + header, children })
}

/// The end of the value at `at`.
pub(crate) fn skip(bytes: &[u8], at: usize) -> Result<usize, PackError> {
    let value = extent(bytes, at)?;
    if value.children == 0 { Ok(value.end) } else { skip_container(bytes, value) }
}

/// The end of a container. One counter of missing values is enough for any nesting. It cannot overflow: a container has
/// at most as many children as there are bytes, fewer than 2^31.
fn skip_container(bytes: &[u8], container: Extent) -> Result<usize, PackError> {
    let (mut left, mut at) = (container.children, container.end);
    while left > 0 {
        let value = extent(bytes, at)?;
        (left, at) = (left - 1 + value.children, value.end);
    }
    Ok(at)
}

/// The length and the start of the items of the array at `at`. `None`: the value is not an array.
pub(crate) fn array_at(bytes: &[u8], at: usize) -> Result<Option<(u64, usize)>, PackError> {
    let array = match bytes.get(at) {
        Some(first @ 0x90..=0x9f) => container(bytes, at, 1, u64::from(first & 0x0f))?,
        Some(0xdc | 0xdd) => extent(bytes, at)?,
        _ => return Ok(None),
    };
    Ok(Some((array.children, array.body)))
}

/// Finds the `count` cells that begin at `at`, and the end of the last one. Appends the starts of cells of several
/// widths to `starts`.
pub(crate) fn cells(
    bytes: &[u8],
    at: usize,
    count: u32,
    starts: &mut Vec<u32>,
) -> Result<(CellSpans, usize), PackError> {
    if let Some(width) = uniform_width(bytes, at, count as usize) {
        let cells = CellSpans::Uniform { start: at as u32, width: width as u32 };
        return Ok((cells, at + width * count as usize));
    }
    let first = starts.len() as u32;
    starts.reserve(count as usize + 1);
    let mut end = at;
    for _ in 0..count {
        starts.push(end as u32);
        end = match bytes.get(end).map_or(0, |&byte| WIDTHS[byte as usize]) {
            0 => skip(bytes, end)?,
            width => end + width as usize,
        };
    }
    starts.push(end as u32);
    if end > bytes.len() {
        // The last cell is cut: its width came from its first byte.
        return Err(PackError::Cut { at, needed: (end - at) as u64, left: bytes.len() - at });
    }
    Ok((CellSpans::Indexed { first }, end))
}

/// The value of all bytes, if it is the same and there are any.
pub(crate) fn equal_bytes(bytes: &[u8]) -> Option<u8> {
    let first = *bytes.first()?;
    // Compares whole chunks without an early exit, so that the compiler can compare many bytes at a time.
    let is_equal = |chunk: &[u8]| chunk.iter().fold(true, |all, byte| all & (*byte == first));
    bytes.chunks(64).all(is_equal).then_some(first)
}

/// The number of bytes that are not ASCII.
pub(crate) fn non_ascii(bytes: &[u8]) -> usize {
    // A sum of at most 240 fits a byte, so that the compiler can add many at a time.
    let of_chunk = |chunk: &[u8]| usize::from(chunk.iter().fold(0, |sum, byte| sum + (byte >> 7)));
    let (chunks, rest) = bytes.as_chunks::<240>();
    chunks.iter().map(|chunk| of_chunk(chunk)).sum::<usize>() + of_chunk(rest)
}

/// The common width of `count` cells from `at`, if they have one: one-byte cells, or scalars with equal headers.
fn uniform_width(bytes: &[u8], at: usize, count: usize) -> Option<usize> {
    if one_byte(*bytes.get(at)?) {
        let run = bytes.get(at..at.checked_add(count)?)?;
        // Compares whole chunks without an early exit, so that the compiler can compare many bytes at a time.
        let uniform = run.chunks(64).all(|chunk| chunk.iter().fold(true, |all, &byte| all & one_byte(byte)));
        return uniform.then_some(1);
    }
    let value = extent(bytes, at).ok()?;
    let width = value.end - at;
    // An extension's type byte is not part of its length, but must be equal too.
    let header = value.body - at + usize::from(matches!(bytes[at], 0xc7..=0xc9 | 0xd4..=0xd8));
    if value.children > 0 || header > 3 || matches!(bytes[at], 0x80..=0x9f | 0xdc..=0xdf) {
        return None;
    }
    let run = bytes.get(at..at.checked_add(width.checked_mul(count)?)?)?;
    let same = match header {
        _ if width >= HEADS => same_heads(run, width, header),
        1 => run.chunks_exact(width).all(|cell| cell[0] == run[0]),
        2 => run.chunks_exact(width).all(|cell| cell[..2] == run[..2]),
        _ => run.chunks_exact(width).all(|cell| cell[..3] == run[..3]),
    };
    same.then_some(width)
}

/// The bytes that [`same_heads`] reads of a cell.
const HEADS: usize = size_of::<u128>();

/// Whether cells of this width begin with the same `head` bytes, at most [`HEADS`]. Without an early exit, because it is called
/// for many cells.
fn same_heads(cells: &[u8], width: usize, head: usize) -> bool {
    let word = |cell: &[u8]| cell.first_chunk().map_or(0, |head| u128::from_le_bytes(*head));
    let first = word(cells);
    let differences = cells.chunks_exact(width).fold(0, |all, cell| all | (word(cell) ^ first));
    differences << (8 * (HEADS - head)) == 0
}

impl CellSpans {
    /// The start and end of the cells of rows `from..to`.
    #[inline]
    pub(crate) fn span(self, starts: &[u32], from: u32, to: u32) -> (usize, usize) {
        match self {
            CellSpans::Uniform { start, width } => {
                ((start + from * width) as usize, (start + to * width) as usize)
            }
            CellSpans::Indexed { first } => {
                let at = |row: u32| starts.get((first + row) as usize).map_or(0, |&start| start as usize);
                (at(from), at(to))
            }
        }
    }
}

/// Parses the value at the start of `bytes`, up to a container's first child. `None`: the value is incomplete, which
/// [`skip`] rules out.
pub(crate) fn item(bytes: &[u8]) -> Option<PackValue<'_>> {
    let value = extent(bytes, 0).ok()?;
    let body = &bytes[value.body..value.end];
    Some(match bytes[0] {
        byte @ 0x00..=0x7f => PackValue::Int(i64::from(byte)),
        byte @ 0xe0..=0xff => PackValue::Int(i64::from(byte as i8)),
        0xc0 => PackValue::Nil,
        0xc1 => return None,
        byte @ (0xc2 | 0xc3) => PackValue::Bool(byte == 0xc3),
        0xca => PackValue::Float(f64::from(f32::from_bits(big_endian(body) as u32))),
        0xcb => PackValue::Float(f64::from_bits(big_endian(body))),
        0xcc..=0xcf => match i64::try_from(big_endian(body)) {
            Ok(int) => PackValue::Int(int),
            Err(_) => PackValue::Big(big_endian(body)),
        },
        0xd0..=0xd3 => {
            let unused = 64 - 8 * body.len() as u32;
            PackValue::Int((big_endian(body) << unused) as i64 >> unused)
        }
        0xa0..=0xbf | 0xd9..=0xdb => PackValue::Str(body),
        0xc4..=0xc6 => PackValue::Bin(body),
        0xc7..=0xc9 | 0xd4..=0xd8 => PackValue::Ext(body[0], &body[1..]),
        0x90..=0x9f | 0xdc | 0xdd => PackValue::Array(value.children, &bytes[value.body..]),
        0x80..=0x8f | 0xde | 0xdf => PackValue::Map(value.children / 2, &bytes[value.body..]),
    })
}

/// The `count` values in `bytes`, each as its own bytes.
pub(crate) fn items(mut bytes: &[u8], count: u64) -> impl Iterator<Item = &[u8]> + Clone {
    let mut left = count;
    std::iter::from_fn(move || {
        left = left.checked_sub(1)?;
        let (value, rest) = bytes.split_at(skip(bytes, 0).ok()?);
        bytes = rest;
        Some(value)
    })
}

/// The bytes of a string.
#[inline]
pub(crate) fn str_bytes(cell: &[u8]) -> Option<&[u8]> {
    match cell {
        [0xa0..=0xbf, text @ ..] | [0xd9, _, text @ ..] => Some(text),
        [0xda, _, _, text @ ..] | [0xdb, _, _, _, _, text @ ..] => Some(text),
        _ => None,
    }
}

/// An integer that fits into an i64.
#[inline]
pub(crate) fn int(cell: &[u8]) -> Option<i64> {
    match *cell {
        [small @ 0x00..=0x7f] => Some(i64::from(small)),
        [0xcc, byte] => Some(i64::from(byte)),
        [0xcd, high, low] => Some(i64::from(u16::from_be_bytes([high, low]))),
        _ => match item(cell)? {
            PackValue::Int(int) => Some(int),
            _ => None,
        },
    }
}

/// The ids of an array, little-endian like the memory of an `array.array`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdItems<'a> {
    /// Type codes `q` and `l`.
    I64(&'a [u8]),
    /// Type code `i`.
    I32(&'a [u8]),
    /// Type code `I`.
    U32(&'a [u8]),
}

impl IdItems<'_> {
    /// The number of ids.
    #[inline]
    pub(crate) fn count(self) -> usize {
        match self {
            IdItems::I64(ids) => ids.len() / 8,
            IdItems::I32(ids) | IdItems::U32(ids) => ids.len() / 4,
        }
    }

    /// Appends the ids to `out`.
    #[inline]
    pub(crate) fn push_to(self, out: &mut Vec<i64>) {
        match self {
            IdItems::I64(ids) => out.extend(ids.as_chunks().0.iter().map(|id| i64::from_le_bytes(*id))),
            IdItems::I32(ids) => {
                out.extend(ids.as_chunks().0.iter().map(|id| i64::from(i32::from_le_bytes(*id))))
            }
            IdItems::U32(ids) => {
                out.extend(ids.as_chunks().0.iter().map(|id| i64::from(u32::from_le_bytes(*id))))
            }
        }
    }
}

/// The items of an id array: extension 1 (0.5.19 and later) or `["q", bin]`.
#[inline]
pub(crate) fn id_items(cell: &[u8]) -> Option<IdItems<'_>> {
    // The usual case is small, so that a loop over cells has no calls.
    usual_ids(cell).map(IdItems::I64).or_else(|| other_id_items(cell))
}

/// Whether all cells of this width are id arrays in the usual form. Their lengths are the same.
pub(crate) fn are_usual_ids(cells: &[u8], width: usize) -> bool {
    let is_usual = |cell: &[u8]| usual_ids(cell).is_some();
    match width >= HEADS {
        true => is_usual(&cells[..width]) && same_heads(cells, width, USUAL_IDS_HEAD),
        false => cells.chunks_exact(width).all(is_usual),
    }
}

/// The bytes of an id array in the usual form before its ids.
const USUAL_IDS_HEAD: usize = 9;

/// The items of an id array in the usual form: 8 bytes each, fewer than 32 ids.
#[inline]
pub(crate) fn usual_ids(cell: &[u8]) -> Option<&[u8]> {
    match cell {
        [0xc7, _, EXT_ARRAY, 0, 0, 0, 2, 0xa1, b'q', ids @ ..] if ids.len().is_multiple_of(8) => Some(ids),
        _ => None,
    }
}

#[inline(never)]
fn other_id_items(cell: &[u8]) -> Option<IdItems<'_>> {
    let (code, ids) = match item(cell)? {
        PackValue::Ext(EXT_ARRAY, [0, 0, 0, 2, 0xa1, code, ids @ ..]) => (*code, ids),
        PackValue::Array(2, [0xa1, code, bin @ ..]) => match item(bin)? {
            PackValue::Bin(ids) => (*code, ids),
            _ => return None,
        },
        _ => return None,
    };
    match code {
        b'q' | b'l' if ids.len().is_multiple_of(8) => Some(IdItems::I64(ids)),
        b'i' if ids.len().is_multiple_of(4) => Some(IdItems::I32(ids)),
        b'I' if ids.len().is_multiple_of(4) => Some(IdItems::U32(ids)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
