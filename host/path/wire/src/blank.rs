//! Overwrites msgpack values in place: numbers by 0, texts by [`FILLER`]. The structure of a value stays.

use std::ops::Range;

use crate::pack::{self, INT, PackValue, TYPES};

/// The byte that texts are overwritten with.
const FILLER: u8 = b'x';

/// The types of arrays' and tensors' items, which stay beside the overwritten items.
const ITEM_TYPES: [&[u8]; 7] = [b"float", b"bfloat", b"int", b"uint", b"bool", b"<", b"|"];

/// The longest name of an item's type.
const TYPE_BYTES_MAX: usize = 16;

/// Overwrites a value: numbers by 0, texts by [`FILLER`], bytes by zeros. Its structure stays: lengths, keys that are texts, and
/// the types of arrays. With `keeps_first`, the first of its items stays.
pub(crate) fn blank(value: &mut [u8], keeps_first: bool) {
    // The containers around the value: the values left in each, and whether they are keys and values in turn.
    let mut open: Vec<(u64, bool)> = Vec::new();
    let mut at = 0;
    let mut skips_next = false;
    while at < value.len() {
        let is_key = open.last().is_some_and(|(left, is_map)| *is_map && left.is_multiple_of(2));
        if let Some((left, _)) = open.last_mut() {
            *left -= 1;
        }
        let Ok(extent) = pack::extent(value, at) else { return };
        let end = if std::mem::take(&mut skips_next) {
            pack::skip(value, at).unwrap_or(value.len())
        } else if let Some(items) = typed_items(&value[at..]) {
            value[at + items.start..at + items.end].fill(0);
            at + items.end
        } else {
            match TYPES[usize::from(value[at])] {
                pack::LIST | pack::MAP => {
                    let is_map = TYPES[usize::from(value[at])] == pack::MAP;
                    if extent.children > 0 {
                        open.push((extent.children, is_map));
                    }
                    skips_next = keeps_first && at == 0;
                }
                pack::STR if is_key => {}
                pack::NIL => {}
                types => blank_scalar(&mut value[at..extent.end], extent.body - at, types),
            }
            extent.end
        };
        at = end;
        while open.last().is_some_and(|(left, _)| *left == 0) {
            open.pop();
        }
    }
}

/// Overwrites a value that is no container. `header` is the length of its type byte and length.
fn blank_scalar(value: &mut [u8], header: usize, types: pack::Types) {
    let (head, body) = value.split_at_mut(header);
    match (types, head[0]) {
        (pack::STR, _) => body.fill(FILLER),
        (pack::EXT, _) => {
            let Some((_, payload)) = body.split_first_mut() else { return };
            let head = head_of_items(payload);
            payload[head..].fill(0);
        }
        (pack::INT, 0x00..=0x7f | 0xe0..=0xff) => head[0] = 0,
        (_, 0xc3) => head[0] = 0xc2,
        _ => body.fill(0),
    }
}

/// The bytes before the items of SGLang's extensions: the length of a header, and the header with the type of the array or
/// tensor. 0 for another extension.
fn head_of_items(payload: &[u8]) -> usize {
    let header = payload.split_first_chunk().and_then(|(length, rest)| {
        let header = rest.get(..usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
        let is_known =
            matches!(header.first()?, 0xa1 | 0x92 | 0x93) && pack::skip(header, 0) == Ok(header.len());
        is_known.then_some(header)
    });
    header.map_or(0, |header| 4 + header.len())
}

/// The items of an array or a tensor, whose other parts are no content: `["q", items]`, SGLang's `[shape, type, items]` and
/// vLLM's `[type, shape, items]`. Nothing, at the end of the value, if the items are in another part of the message.
fn typed_items(value: &[u8]) -> Option<Range<usize>> {
    let items_at = match value {
        [0x92, 0xa1, b'q' | b'l' | b'i' | b'I', ..] => 3,
        [0x93, 0x90..=0x9f, ..] => item_type(value, shape(value, 1)?)?,
        [0x93, 0xa0..=0xbf, ..] => shape(value, item_type(value, 1)?)?,
        _ => return None,
    };
    let end = pack::skip(value, items_at).ok()?;
    match pack::item(&value[items_at..end])? {
        PackValue::Bin(items) | PackValue::Ext(_, items) => Some(end - items.len()..end),
        PackValue::Int(_) => Some(end..end),
        _ => None,
    }
}

/// The end of a shape: an array of up to 15 ints.
fn shape(value: &[u8], at: usize) -> Option<usize> {
    let Some(axes @ 0x90..=0x9f) = value.get(at) else { return None };
    (0..axes & 0x0f).try_fold(at + 1, |at, _| {
        let is_int = TYPES[usize::from(*value.get(at)?)] == INT;
        is_int.then(|| pack::skip(value, at).ok()).flatten()
    })
}

/// The end of the name of an item's type.
fn item_type(value: &[u8], at: usize) -> Option<usize> {
    let end = pack::skip(value, at).ok()?;
    let name = pack::str_bytes(&value[at..end])?;
    (name.len() <= TYPE_BYTES_MAX && ITEM_TYPES.iter().any(|known| name.starts_with(known))).then_some(end)
}
