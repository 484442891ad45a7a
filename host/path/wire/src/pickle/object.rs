//! Forms that several opcodes make together: objects of a class, and token ids.

use crate::pickle::arena::{NodeId, Tag};
use crate::pickle::bounds::MAX_CHANGES;
use crate::pickle::tree::{Node, Tree};

/// An object's class and fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object<'t> {
    /// The dotted name of the class's module.
    pub module: &'t str,
    /// The class's name.
    pub name: &'t str,
    /// The dict of the fields' names and values, in order, for two forms of objects: a dataclass (new object, then
    /// built with a dict), and a keyword-only msgspec struct (`msgspec._utils.rebuild(class, fields)`).
    pub fields: Option<NodeId>,
}

impl Tree {
    /// The class of an object, and its fields if they are named. For other reduces the class is the callable. `None`:
    /// the node is not an object, or its class is not a plain global.
    pub fn object(&self, id: NodeId) -> Option<Object<'_>> {
        let mut base = id;
        for _ in 0..MAX_CHANGES {
            if !self.raw(base).tag.is_change() {
                break;
            }
            base = NodeId(self.raw(base).a);
        }
        let (class, fields) = match self.node(base) {
            Node::Reduce { callable, args } if self.is_global(callable, "msgspec._utils", "rebuild") => {
                let &[class, fields] = self.items(args)? else { return None };
                (class, (id == base).then_some(fields))
            }
            Node::Reduce { callable, .. } => (callable, None),
            Node::NewObj { class, .. } | Node::NewObjEx { class, .. } => {
                let built = self.raw(id);
                (class, (built.tag == Tag::Build && built.a == base.0).then_some(NodeId(built.b)))
            }
            _ => return None,
        };
        let Node::Global { module, name } = self.node(class) else { return None };
        let fields = fields.filter(|fields| self.raw(*fields).tag == Tag::Dict);
        Some(Object { module, name, fields })
    }

    /// Appends the integers of an `array.array` or of a list of ints, and returns their number. `None`, with `out`
    /// unchanged: the node is neither, or an integer does not fit.
    pub fn ids(&self, id: NodeId, out: &mut Vec<i64>) -> Option<usize> {
        let before = out.len();
        let done = match self.raw(id).tag {
            Tag::List => self.items(id)?.iter().try_for_each(|item| {
                out.push(self.int(*item)?);
                Some(())
            }),
            Tag::Reduce => {
                let (format, bytes) = self.array(id)?;
                match format {
                    ArrayFormat::U8 => extend(out, bytes, |[byte]: [u8; 1]| byte.into()),
                    ArrayFormat::I8 => extend(out, bytes, |item| i8::from_le_bytes(item).into()),
                    ArrayFormat::U16Le => extend(out, bytes, |item| u16::from_le_bytes(item).into()),
                    ArrayFormat::U16Be => extend(out, bytes, |item| u16::from_be_bytes(item).into()),
                    ArrayFormat::I16Le => extend(out, bytes, |item| i16::from_le_bytes(item).into()),
                    ArrayFormat::I16Be => extend(out, bytes, |item| i16::from_be_bytes(item).into()),
                    ArrayFormat::U32Le => extend(out, bytes, |item| u32::from_le_bytes(item).into()),
                    ArrayFormat::U32Be => extend(out, bytes, |item| u32::from_be_bytes(item).into()),
                    ArrayFormat::I32Le => extend(out, bytes, |item| i32::from_le_bytes(item).into()),
                    ArrayFormat::I32Be => extend(out, bytes, |item| i32::from_be_bytes(item).into()),
                    ArrayFormat::I64Le => extend(out, bytes, i64::from_le_bytes),
                    ArrayFormat::I64Be => extend(out, bytes, i64::from_be_bytes),
                }
                Some(())
            }
            _ => None,
        };
        if done.is_none() {
            out.truncate(before);
        }
        done.map(|()| out.len() - before)
    }

    /// The number of bytes of each node's items, if all are arrays of one length with little-endian integers of 64 bits.
    /// [`Tree::array_items`] has the items of such an array.
    pub fn equal_id_bytes(&self, nodes: &[NodeId]) -> Option<usize> {
        let bytes = self.id_bytes(*nodes.first()?)?;
        self.equal_ids_len(nodes).map(|_| bytes.len())
    }

    /// The last argument of a call, if it is bytes: the items of an array.
    #[inline]
    pub fn array_items(&self, id: NodeId) -> Option<&[u8]> {
        let args = self.raw(NodeId(self.raw(id).b));
        self.bytes(*self.arena.children(args).last()?)
    }

    /// The items of an `array.array` of little-endian integers of 64 bits.
    pub fn id_bytes(&self, id: NodeId) -> Option<&[u8]> {
        match self.raw(id).tag {
            Tag::Reduce => self.array(id).filter(|(format, _)| matches!(format, ArrayFormat::I64Le)),
            _ => None,
        }
        .map(|(_, bytes)| bytes)
    }

    /// The number of [`Tree::ids`], without reading them. A list counts whatever items it has.
    pub fn ids_len(&self, id: NodeId) -> Option<usize> {
        match self.raw(id).tag {
            Tag::List => self.items(id).map(<[NodeId]>::len),
            Tag::Reduce => self.array(id).map(|(format, bytes)| bytes.len() / format.size()),
            _ => None,
        }
    }

    /// The number of integers of each node, if all are arrays of one format and length, as most columns of ids. `None`: they
    /// are not, or there are none.
    pub fn equal_ids_len(&self, nodes: &[NodeId]) -> Option<usize> {
        let first = self.raw(*nodes.first()?);
        if first.tag != Tag::Reduce {
            return None;
        }
        let &[class, typecode, format, bytes] = self.items(NodeId(first.b))? else { return None };
        let bytes = self.raw(bytes);
        let is_like_first = |id: &NodeId| {
            let raw = self.raw(*id);
            raw.tag == Tag::Reduce
                && raw.a == first.a
                && matches!(self.items(NodeId(raw.b)), Some(&[its_class, its_typecode, its_format, its_bytes])
                    if (its_class, its_typecode, its_format) == (class, typecode, format)
                        && (self.raw(its_bytes).tag, self.raw(its_bytes).b) == (bytes.tag, bytes.b))
        };
        let len = self.ids_len(nodes[0])?;
        let mut rest = nodes;
        while let Some((id, others)) = rest.split_first() {
            if !is_like_first(id) {
                return None;
            }
            // Values alike need no look at each.
            let run = self.runs.binary_search_by_key(&id.0, |run| run.value.0);
            rest = &others[run.map_or(0, |at| self.runs[at].count(others))..];
        }
        Some(len)
    }

    /// The format and bytes of `array._array_reconstructor(array.array, typecode, machine format code, bytes)` with
    /// integers.
    fn array(&self, id: NodeId) -> Option<(ArrayFormat, &[u8])> {
        let raw = self.raw(id);
        let callable = NodeId(raw.a);
        let &[class, typecode, format, bytes] = self.items(NodeId(raw.b))? else { return None };
        // The names are compared once: the pickle's other arrays refer to the same two nodes.
        if self.array_names.get() != Some(&[callable, class]) {
            let is_array = self.is_global(callable, "array", "_array_reconstructor")
                && self.is_global(class, "array", "array");
            if !is_array {
                return None;
            }
            self.array_names.get_or_init(|| [callable, class]);
        }
        let integers = matches!(
            self.text(typecode)?,
            [b'b' | b'B' | b'h' | b'H' | b'i' | b'I' | b'l' | b'L' | b'q' | b'Q']
        );
        if !integers {
            return None;
        }
        let (format, bytes) = (ArrayFormat::of_code(self.int(format)?)?, self.bytes(bytes)?);
        bytes.len().is_multiple_of(format.size()).then_some((format, bytes))
    }

    fn is_global(&self, id: NodeId, module: &str, name: &str) -> bool {
        let raw = self.raw(id);
        raw.tag == Tag::Global
            && self.text(NodeId(raw.b)) == Some(name.as_bytes())
            && self.text(NodeId(raw.a)) == Some(module.as_bytes())
    }
}

/// The storage of an array's items: CPython's `enum machine_format_code` (Modules/arraymodule.c). Unsigned 64 bits (10
/// and 11), which may not fit, and floats and text (14 to 21) are unsupported.
#[derive(Clone, Copy)]
enum ArrayFormat {
    U8,
    I8,
    U16Le,
    U16Be,
    I16Le,
    I16Be,
    U32Le,
    U32Be,
    I32Le,
    I32Be,
    I64Le,
    I64Be,
}

impl ArrayFormat {
    fn of_code(code: i64) -> Option<ArrayFormat> {
        Some(match code {
            0 => ArrayFormat::U8,
            1 => ArrayFormat::I8,
            2 => ArrayFormat::U16Le,
            3 => ArrayFormat::U16Be,
            4 => ArrayFormat::I16Le,
            5 => ArrayFormat::I16Be,
            6 => ArrayFormat::U32Le,
            7 => ArrayFormat::U32Be,
            8 => ArrayFormat::I32Le,
            9 => ArrayFormat::I32Be,
            12 => ArrayFormat::I64Le,
            13 => ArrayFormat::I64Be,
            _ => return None,
        })
    }

    fn size(self) -> usize {
        match self {
            ArrayFormat::U8 | ArrayFormat::I8 => 1,
            ArrayFormat::U16Le | ArrayFormat::U16Be | ArrayFormat::I16Le | ArrayFormat::I16Be => 2,
            ArrayFormat::U32Le | ArrayFormat::U32Be | ArrayFormat::I32Le | ArrayFormat::I32Be => 4,
            ArrayFormat::I64Le | ArrayFormat::I64Be => 8,
        }
    }
}

fn extend<const N: usize>(out: &mut Vec<i64>, bytes: &[u8], read: impl Fn([u8; N]) -> i64) {
    out.extend(bytes.as_chunks().0.iter().map(|item| read(*item)));
}
