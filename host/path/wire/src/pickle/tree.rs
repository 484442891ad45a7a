//! The content of a pickle as an arena of nodes: values, names of globals, and objects. A node has spans of the
//! pickle's bytes, which the tree shares. A node that the pickle refers to twice is in the tree once.

use std::sync::OnceLock;

use bytes::Bytes;

use crate::pickle::arena::{Arena, NONE, NodeId, RawNode, Tag};
use crate::pickle::repeat::AlikeRun;

/// A parsed pickle. It shares the pickle's bytes.
#[derive(Clone, Debug)]
pub struct Tree {
    pub(crate) pickle: Bytes,
    pub(crate) arena: Arena,
    /// Values alike, in order of their nodes.
    pub(crate) runs: Vec<AlikeRun>,
    pub(crate) root: NodeId,
    pub(crate) protocol: u8,
    /// The two globals of an `array.array`, after the first one was found.
    pub(crate) array_names: OnceLock<[NodeId; 2]>,
}

/// A value, returned by [`Tree::node`].
#[derive(Clone, Debug)]
pub enum Node<'t> {
    /// `None`
    None,
    /// `True` or `False`
    Bool(bool),
    /// An int that fits into 64 bits.
    Int(i64),
    /// A larger int: two's complement, little-endian.
    BigInt(&'t [u8]),
    /// A float.
    Float(f64),
    /// A str.
    Str(&'t str),
    /// A str with lone surrogates, encoded as CPython's `surrogatepass` does. It is not a Rust str.
    Surrogates(&'t [u8]),
    /// Bytes.
    Bytes(&'t [u8]),
    /// A bytearray.
    ByteArray(&'t [u8]),
    /// A list.
    List(&'t [NodeId]),
    /// A tuple.
    Tuple(&'t [NodeId]),
    /// A set, in the order written.
    Set(&'t [NodeId]),
    /// A frozenset, in the order written.
    FrozenSet(&'t [NodeId]),
    /// A dict, in order. If a key occurs twice, the later value counts, as in Python; see [`Tree::get`].
    Dict(Pairs<'t>),
    /// A class or a function, by name. It is never looked up.
    Global {
        /// The dotted name of the module.
        module: &'t str,
        /// The name in the module, dotted if nested.
        name: &'t str,
    },
    /// The result of `callable(*args)`.
    Reduce {
        /// Usually a global.
        callable: NodeId,
        /// A tuple.
        args: NodeId,
    },
    /// The result of `class.__new__(class, *args)`.
    NewObj {
        /// Usually a global.
        class: NodeId,
        /// A tuple.
        args: NodeId,
    },
    /// The result of `class.__new__(class, *args, **kwargs)`.
    NewObjEx {
        /// Usually a global.
        class: NodeId,
        /// A tuple.
        args: NodeId,
        /// A dict.
        kwargs: NodeId,
    },
    /// An object that gets a state, through `__setstate__` or in its `__dict__`.
    Build {
        /// The object before: a reduce or a new object, which may have a state or items already.
        object: NodeId,
        /// The state. For a dataclass a dict of field names and values.
        state: NodeId,
    },
    /// An object other than a list that gets items appended, such as a deque.
    Append {
        /// The object before, as in `Build`.
        object: NodeId,
        /// The list of the appended items.
        items: NodeId,
    },
    /// An object other than a dict that gets items set, such as an `OrderedDict`.
    SetItems {
        /// The object before, as in `Build`.
        object: NodeId,
        /// The dict of the items.
        items: NodeId,
    },
}

/// The keys and values of a dict, in order.
#[derive(Clone, Debug)]
pub struct Pairs<'t>(std::slice::Iter<'t, [NodeId; 2]>);

impl Tree {
    /// The memory of the nodes in bytes, without the pickle itself.
    pub fn memory(&self) -> usize {
        let Arena { nodes, children, .. } = &self.arena;
        nodes.capacity() * size_of::<RawNode>()
            + children.capacity() * size_of::<NodeId>()
            + self.runs.capacity() * size_of::<AlikeRun>()
    }

    /// The pickle's bytes.
    pub fn pickle(&self) -> &Bytes {
        &self.pickle
    }

    /// The protocol that the pickle declares: 4 or 5, or 0 if it declares none.
    pub fn protocol(&self) -> u8 {
        self.protocol
    }

    /// The pickled value.
    pub fn root(&self) -> NodeId {
        self.root
    }

    /// The node's value.
    pub fn node(&self, id: NodeId) -> Node<'_> {
        let raw = self.raw(id);
        let (a, b) = (NodeId(raw.a), NodeId(raw.b));
        match raw.tag {
            Tag::None => Node::None,
            Tag::Bool => Node::Bool(raw.a != 0),
            Tag::Int => Node::Int(raw.word() as i64),
            Tag::BigInt => Node::BigInt(self.span(raw)),
            Tag::Float => Node::Float(f64::from_bits(raw.word())),
            Tag::Str => match std::str::from_utf8(self.span(raw)) {
                Ok(text) => Node::Str(text),
                Err(_) => Node::Surrogates(self.span(raw)),
            },
            Tag::Bytes => Node::Bytes(self.span(raw)),
            Tag::ByteArray => Node::ByteArray(self.span(raw)),
            Tag::List => Node::List(self.arena.children(raw)),
            Tag::Tuple => Node::Tuple(self.arena.children(raw)),
            Tag::Set => Node::Set(self.arena.children(raw)),
            Tag::FrozenSet => Node::FrozenSet(self.arena.children(raw)),
            Tag::Dict => Node::Dict(Pairs(self.arena.children(raw).as_chunks().0.iter())),
            Tag::Global => Node::Global {
                module: self.str(a).unwrap_or_default(),
                name: self.str(b).unwrap_or_default(),
            },
            Tag::Reduce => Node::Reduce { callable: a, args: b },
            Tag::NewObj => Node::NewObj { class: a, args: b },
            Tag::NewObjEx => {
                let kwargs = self.arena.children[raw.b as usize + 1];
                Node::NewObjEx { class: a, args: self.arena.children[raw.b as usize], kwargs }
            }
            Tag::Build => Node::Build { object: a, state: b },
            Tag::Append => Node::Append { object: a, items: b },
            Tag::SetItems => Node::SetItems { object: a, items: b },
        }
    }

    /// Whether the node is `None`.
    pub fn is_none(&self, id: NodeId) -> bool {
        self.raw(id).tag == Tag::None
    }

    /// Whether all nodes are `None`.
    pub fn are_none(&self, ids: &[NodeId]) -> bool {
        are_all(ids, NONE)
    }

    /// The bytes of all nodes together. `None`: a node is not an ASCII str.
    pub fn ascii_len(&self, ids: &[NodeId]) -> Option<usize> {
        ids.iter().try_fold(0, |bytes, id| {
            let raw = self.raw(*id);
            raw.is_ascii.then_some(bytes + raw.b as usize)
        })
    }

    /// The value of a bool.
    pub fn bool(&self, id: NodeId) -> Option<bool> {
        let raw = self.raw(id);
        (raw.tag == Tag::Bool).then_some(raw.a != 0)
    }

    /// The value of an int of 64 bits. A bool is not an int.
    pub fn int(&self, id: NodeId) -> Option<i64> {
        let raw = self.raw(id);
        (raw.tag == Tag::Int).then_some(raw.word() as i64)
    }

    /// The value of a float. An int is not a float.
    pub fn float(&self, id: NodeId) -> Option<f64> {
        let raw = self.raw(id);
        (raw.tag == Tag::Float).then(|| f64::from_bits(raw.word()))
    }

    /// The text of a str without lone surrogates.
    pub fn str(&self, id: NodeId) -> Option<&str> {
        let raw = self.raw(id);
        if raw.tag != Tag::Str {
            return None;
        }
        std::str::from_utf8(self.span(raw)).ok()
    }

    /// The content of bytes or a bytearray.
    #[inline]
    pub fn bytes(&self, id: NodeId) -> Option<&[u8]> {
        let raw = self.raw(id);
        matches!(raw.tag, Tag::Bytes | Tag::ByteArray).then(|| self.span(raw))
    }

    /// The items of a list or a tuple.
    pub fn items(&self, id: NodeId) -> Option<&[NodeId]> {
        let raw = self.raw(id);
        matches!(raw.tag, Tag::List | Tag::Tuple).then(|| self.arena.children(raw))
    }

    /// The keys and values of a dict.
    pub fn pairs(&self, id: NodeId) -> Option<Pairs<'_>> {
        match self.node(id) {
            Node::Dict(pairs) => Some(pairs),
            _ => None,
        }
    }

    /// The value of a str key in a dict.
    pub fn get(&self, dict: NodeId, key: &str) -> Option<NodeId> {
        self.pairs(dict)?.rfind(|(name, _)| self.text(*name) == Some(key.as_bytes())).map(|(_, value)| value)
    }

    #[inline]
    pub(crate) fn raw(&self, id: NodeId) -> RawNode {
        self.arena.nodes[id.0 as usize]
    }

    #[inline]
    pub(crate) fn span(&self, raw: RawNode) -> &[u8] {
        &self.pickle[raw.a as usize..][..raw.b as usize]
    }

    /// The bytes of a str, which may have lone surrogates. Comparing or counting them skips the UTF-8 check.
    #[inline]
    pub fn text(&self, id: NodeId) -> Option<&[u8]> {
        let raw = self.raw(id);
        (raw.tag == Tag::Str).then(|| self.span(raw))
    }
}

impl Iterator for Pairs<'_> {
    type Item = (NodeId, NodeId);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|[key, value]| (*key, *value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl DoubleEndedIterator for Pairs<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.next_back().map(|[key, value]| (*key, *value))
    }
}

impl ExactSizeIterator for Pairs<'_> {}

/// Whether every node is this one. Whole chunks are compared without an early exit, so that the compiler can compare many at a time.
pub(crate) fn are_all(ids: &[NodeId], node: NodeId) -> bool {
    ids.chunks(32).all(|ids| ids.iter().fold(true, |all, id| all & (*id == node)))
}
