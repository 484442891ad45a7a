//! Reads torch tensors. In a pickle, a tensor is a call of `_rebuild_tensor_v2` on bytes that `torch.save` wrote in its
//! old format (three headers and a storage, each a pickle, then the number of items and the items).

use std::borrow::Cow;

use crate::pickle::{Node, NodeId, Tree};

use crate::pack::{self, PackValue};
use crate::value::RawValue;

/// A tensor's type in torch's notation, its shape, and its items in C order, little-endian.
pub(crate) struct Tensor<'a> {
    pub(crate) dtype: Cow<'static, str>,
    pub(crate) shape: Vec<i64>,
    pub(crate) bytes: &'a [u8],
}

/// The storage's class is named within the first bytes of the saved ones.
const HEAD_BYTES: usize = 1024;

/// The storage classes of torch, the type of their items, and an item's width in bytes.
const STORAGES: [(&str, &str, usize); 9] = [
    ("FloatStorage", "float32", 4),
    ("DoubleStorage", "float64", 8),
    ("HalfStorage", "float16", 2),
    ("BFloat16Storage", "bfloat16", 2),
    ("LongStorage", "int64", 8),
    ("IntStorage", "int32", 4),
    ("ShortStorage", "int16", 2),
    ("CharStorage", "int8", 1),
    ("ByteStorage", "uint8", 1),
];

/// The msgpack extension type that SGLang gives to `torch.Tensor` (0.5.19 and later).
const EXT_TENSOR: u8 = 2;

/// A tensor in any form, whose items are as `tensor.numpy().tobytes()` returns them. `None`: not a tensor, or of an unknown form.
pub(crate) fn of_value(value: RawValue<'_>) -> Option<Tensor<'_>> {
    match value {
        RawValue::Tree(tree, id) => read(tree, id),
        RawValue::Packed(bytes) => match pack::item(bytes)? {
            PackValue::Ext(EXT_TENSOR, payload) => of_ext(payload),
            // `[shape, dtype, items]`, up to 0.5.18.
            PackValue::Array(3, _) => match value.list()?[..] {
                [shape, dtype, RawValue::Packed(items)] => match pack::item(items)? {
                    PackValue::Bin(items) => packed(shape, dtype, items),
                    _ => None,
                },
                _ => None,
            },
            _ => None,
        },
    }
}

/// A tensor or an ndarray in an extension: the length of a header, the header `[shape, dtype, …]`, and the items.
pub(crate) fn of_ext(payload: &[u8]) -> Option<Tensor<'_>> {
    let (length, rest) = payload.split_first_chunk()?;
    let (header, items) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    let header = RawValue::Packed(header.get(..pack::skip(header, 0).ok()?)?).list()?;
    packed(*header.first()?, *header.get(1)?, items)
}

fn packed<'a>(shape: RawValue<'_>, dtype: RawValue<'_>, bytes: &'a [u8]) -> Option<Tensor<'a>> {
    let shape = shape.list()?.into_iter().map(RawValue::int).collect::<Option<_>>()?;
    Some(Tensor { dtype: dtype.str()?.to_owned().into(), shape, bytes })
}

/// The items of a tensor.
pub(crate) fn items(value: RawValue<'_>) -> Option<&[u8]> {
    of_value(value).map(|tensor| tensor.bytes)
}

/// Reads a pickled tensor. `None`: not a tensor, or its items are not contiguous from the storage's start.
pub(crate) fn read(tree: &Tree, id: NodeId) -> Option<Tensor<'_>> {
    let args = call(tree, id, "torch._utils", "_rebuild_tensor_v2")?;
    let [storage, offset, shape, strides, ..] = *tree.items(args)? else { return None };
    let ints = |id| tree.items(id)?.iter().map(|&int| tree.int(int)).collect::<Option<Vec<i64>>>();
    let (shape, strides) = (ints(shape)?, ints(strides)?);
    let mut items = 1i64;
    for (size, stride) in shape.iter().zip(&strides).rev() {
        if *size > 1 && *stride != items {
            return None;
        }
        items = items.checked_mul(*size)?;
    }
    let saved = tree.items(call(tree, storage, "torch.storage", "_load_from_bytes")?)?.first()?;
    let saved = tree.bytes(*saved)?;
    let head = &saved[..saved.len().min(HEAD_BYTES)];
    let &(_, dtype, width) = STORAGES.iter().find(|(storage, ..)| {
        let class = format!("ctorch\n{storage}\n");
        head.windows(class.len()).any(|window| window == class.as_bytes())
    })?;
    let bytes = width.checked_mul(usize::try_from(items).ok()?)?;
    let (head, items_bytes) = saved.split_at_checked(saved.len().checked_sub(bytes)?)?;
    let whole = tree.int(offset) == Some(0) && head.ends_with(&items.to_le_bytes());
    whole.then_some(Tensor { dtype: dtype.into(), shape, bytes: items_bytes })
}

/// The arguments of a call of this function.
fn call(tree: &Tree, id: NodeId, of_module: &str, of_name: &str) -> Option<NodeId> {
    let Node::Reduce { callable, args } = tree.node(id) else { return None };
    let Node::Global { module, name } = tree.node(callable) else { return None };
    (module == of_module && name == of_name).then_some(args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_is_read_in_the_form_of_each_version() {
        // [[2, 2], "int16", 8 bytes], and the same as an extension with its header and device.
        let old = [b"\x93\x92\x02\x02\xa5int16\xc4\x08".as_slice(), &[1, 0, 2, 0, 3, 0, 4, 0]].concat();
        assert_eq!(items(RawValue::Packed(&old)), Some([1, 0, 2, 0, 3, 0, 4, 0].as_slice()));
        let head = b"\x93\x92\x02\x02\xa5int16\xa3cpu";
        let payload = [[0, 0, 0, head.len() as u8].as_slice(), head, &[1, 0, 2, 0, 3, 0, 4, 0]].concat();
        let new = [[0xc7, payload.len() as u8, EXT_TENSOR].as_slice(), &payload].concat();
        assert_eq!(items(RawValue::Packed(&new)), Some([1, 0, 2, 0, 3, 0, 4, 0].as_slice()));
        // A header longer than the rest, another extension, another list.
        for wrong in [b"\xc7\x04\x02\0\0\0\x09".as_slice(), b"\xc7\x04\x03\0\0\0\0", b"\x93\x01\x02\x03"] {
            assert_eq!(items(RawValue::Packed(wrong)), None);
        }
    }
}
