//! Writes msgpack in the shortest form, like msgspec.

use super::{EXT_ARRAY, EXT_IDS};

/// Writes the header of an array of `len` items.
pub(crate) fn array(out: &mut Vec<u8>, len: usize) {
    sized(out, len, Some((0x90, 15)), [None, Some(0xdc), Some(0xdd)]);
}

/// Writes the header of a map of `len` entries.
pub(crate) fn map(out: &mut Vec<u8>, len: usize) {
    sized(out, len, Some((0x80, 15)), [None, Some(0xde), Some(0xdf)]);
}

pub(crate) fn nil(out: &mut Vec<u8>) {
    out.push(0xc0);
}

pub(crate) fn str(out: &mut Vec<u8>, text: &str) {
    sized(out, text.len(), Some((0xa0, 31)), [Some(0xd9), Some(0xda), Some(0xdb)]);
    out.extend_from_slice(text.as_bytes());
}

/// Writes the header of a byte string of `len` bytes.
pub(crate) fn bin(out: &mut Vec<u8>, len: usize) {
    sized(out, len, None, [Some(0xc4), Some(0xc5), Some(0xc6)]);
}

pub(crate) fn float(out: &mut Vec<u8>, value: f64) {
    out.push(0xcb);
    out.extend_from_slice(&value.to_be_bytes());
}

pub(crate) fn int(out: &mut Vec<u8>, value: i64) {
    let (marker, width) = match value {
        -32..=127 => return out.push(value as u8),
        128..=0xff => (0xcc, 1),
        0x100..=0xffff => (0xcd, 2),
        0x1_0000..=0xffff_ffff => (0xce, 4),
        0x1_0000_0000.. => (0xcf, 8),
        -128..=-33 => (0xd0, 1),
        -32768..=-129 => (0xd1, 2),
        -2_147_483_648..=-32769 => (0xd2, 4),
        _ => (0xd3, 8),
    };
    out.push(marker);
    out.extend_from_slice(&value.to_be_bytes()[8 - width..]);
}

/// Writes the header of an extension of `len` bytes.
pub(crate) fn ext(out: &mut Vec<u8>, code: u8, len: usize) {
    match len {
        1 | 2 | 4 | 8 | 16 => out.push(0xd4 + len.trailing_zeros() as u8),
        _ => sized(out, len, None, [Some(0xc7), Some(0xc8), Some(0xc9)]),
    }
    out.push(code);
}

/// Writes an `array('q')` of these ids, which are little-endian, as extension 1.
pub(crate) fn id_bytes(out: &mut Vec<u8>, ids: &[&[u8]]) {
    let bytes = ids.iter().map(|ids| ids.len()).sum::<usize>();
    out.reserve(16 + bytes);
    ext(out, EXT_ARRAY, EXT_IDS.len() + bytes);
    out.extend_from_slice(&EXT_IDS);
    for ids in ids {
        match <[u8; 8]>::try_from(*ids) {
            Ok(one) => out.extend_from_slice(&one),
            Err(_) => out.extend_from_slice(ids),
        }
    }
}

/// Writes an `array('q')` as extension 1, or as `["q", bin]`.
pub(crate) fn ids(out: &mut Vec<u8>, ids: &[i64], as_ext: bool) {
    if as_ext {
        ext(out, EXT_ARRAY, EXT_IDS.len() + 8 * ids.len());
        out.extend_from_slice(&EXT_IDS);
    } else {
        out.extend_from_slice(&[0x92, 0xa1, b'q']);
        bin(out, 8 * ids.len());
    }
    for id in ids {
        out.extend_from_slice(&id.to_le_bytes());
    }
}

/// Writes a length in the shortest form: in the type byte, or in one, two or four bytes after it. Lengths past `u32`
/// exceed the limit of a frame and do not occur.
fn sized(out: &mut Vec<u8>, len: usize, fix: Option<(u8, usize)>, markers: [Option<u8>; 3]) {
    match (fix, markers) {
        (Some((marker, most)), _) if len <= most => out.push(marker | len as u8),
        (_, [Some(marker), _, _]) if len <= 0xff => out.extend_from_slice(&[marker, len as u8]),
        (_, [_, Some(marker), _]) if len <= 0xffff => {
            out.push(marker);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        (_, [_, _, marker]) => {
            out.extend(marker);
            out.extend_from_slice(&(len as u32).to_be_bytes());
        }
    }
}
