//! A pickled torch tensor, for showing it: what `_rebuild_tensor_v2` is given, and the items out of the bytes that
//! `torch.save` wrote in its old format (three headers and a storage, each a pickle, then the number of items and the
//! items).

use afterbay_pickle::{Node, NodeId, Tree};

/// A tensor's type, as `torch` names it, its shape and its items, in C order and little endian.
pub(crate) struct Tensor<'a> {
    pub(crate) dtype: &'static str,
    pub(crate) shape: Vec<i64>,
    pub(crate) bytes: &'a [u8],
}

/// The storages of `torch`, the type of their items, and their width in bytes.
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

/// `None`: it is no tensor, or none whose items lie one after another from the storage's first.
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
    let &(_, dtype, width) = STORAGES.iter().find(|(storage, ..)| {
        let class = format!("ctorch\n{storage}\n");
        saved.windows(class.len()).any(|window| window == class.as_bytes())
    })?;
    let bytes = width.checked_mul(usize::try_from(items).ok()?)?;
    let (head, items_bytes) = saved.split_at_checked(saved.len().checked_sub(bytes)?)?;
    let whole = tree.int(offset) == Some(0) && head.ends_with(&items.to_le_bytes());
    whole.then_some(Tensor { dtype, shape, bytes: items_bytes })
}

/// The arguments of a call of that function.
fn call(tree: &Tree, id: NodeId, of_module: &str, of_name: &str) -> Option<NodeId> {
    let Node::Reduce { callable, args } = tree.node(id) else { return None };
    let Node::Global { module, name } = tree.node(callable) else { return None };
    (module == of_module && name == of_name).then_some(args)
}
