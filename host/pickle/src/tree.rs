//! What a pickle says, as an arena of nodes: values, names of globals, and what is made of them. A node holds spans
//! of the pickle's bytes, which the tree shares; a node that the pickle refers to twice is in the tree once.

use std::sync::OnceLock;

use bytes::Bytes;

use crate::arena::{Arena, Raw, Tag};

/// A node of one [`Tree`]; it means nothing in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId(pub(crate) u32);

/// A pickle that was read. It shares the pickle's bytes and can be shared itself, by `Arc`.
#[derive(Clone, Debug)]
pub struct Tree {
    pub(crate) pickle: Bytes,
    pub(crate) arena: Arena,
    pub(crate) root: NodeId,
    pub(crate) protocol: u8,
    /// The two globals of an `array.array`, once one was met.
    pub(crate) array_names: OnceLock<[NodeId; 2]>,
}

/// One value, as [`Tree::node`] shows it.
#[derive(Clone, Debug)]
pub enum Node<'t> {
    /// `None`
    None,
    /// `True` or `False`
    Bool(bool),
    /// An int that fits 64 bits.
    Int(i64),
    /// A larger one: two's complement, little endian.
    BigInt(&'t [u8]),
    /// A float.
    Float(f64),
    /// A str.
    Str(&'t str),
    /// A str with lone surrogates, which Rust has no name for: UTF-8 as CPython's `surrogatepass` writes it.
    Surrogates(&'t [u8]),
    /// Bytes.
    Bytes(&'t [u8]),
    /// A bytearray.
    ByteArray(&'t [u8]),
    /// A list.
    List(&'t [NodeId]),
    /// A tuple.
    Tuple(&'t [NodeId]),
    /// A set, its items in the order written.
    Set(&'t [NodeId]),
    /// A frozenset, likewise.
    FrozenSet(&'t [NodeId]),
    /// A dict, in order. A key that is there twice has the later value, as in Python; see [`Tree::get`].
    Dict(Pairs<'t>),
    /// A class or a function, by its names. Never looked up.
    Global {
        /// Dotted name of the module.
        module: &'t str,
        /// Name in the module, dotted where nested.
        name: &'t str,
    },
    /// What `callable(*args)` would return.
    Reduce {
        /// Usually a global.
        callable: NodeId,
        /// A tuple.
        args: NodeId,
    },
    /// What `class.__new__(class, *args)` would return.
    NewObj {
        /// Usually a global.
        class: NodeId,
        /// A tuple.
        args: NodeId,
    },
    /// What `class.__new__(class, *args, **kwargs)` would return.
    NewObjEx {
        /// Usually a global.
        class: NodeId,
        /// A tuple.
        args: NodeId,
        /// A dict.
        kwargs: NodeId,
    },
    /// An object that is then given its state, by `__setstate__` or into its `__dict__`.
    Build {
        /// What was made: a reduce or a new object, perhaps filled already.
        object: NodeId,
        /// For a dataclass a dict of names and values.
        state: NodeId,
    },
    /// An object that is no list and is then appended to, such as a deque.
    Append {
        /// As in `Build`.
        object: NodeId,
        /// A list of what is appended.
        items: NodeId,
    },
    /// An object that is no dict and whose items are then set, such as an `OrderedDict`.
    SetItems {
        /// As in `Build`.
        object: NodeId,
        /// A dict of what is set.
        items: NodeId,
    },
}

/// The keys and values of a dict, in order.
#[derive(Clone, Debug)]
pub struct Pairs<'t>(std::slice::Iter<'t, [NodeId; 2]>);

impl Tree {
    /// The bytes that were read.
    pub fn pickle(&self) -> &Bytes {
        &self.pickle
    }

    /// The protocol that the pickle names, 0 to 5.
    pub fn protocol(&self) -> u8 {
        self.protocol
    }

    /// The pickled value.
    pub fn root(&self) -> NodeId {
        self.root
    }

    /// What the node is.
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

    /// Whether it is `None`.
    pub fn is_none(&self, id: NodeId) -> bool {
        self.raw(id).tag == Tag::None
    }

    /// A bool, else `None`.
    pub fn bool(&self, id: NodeId) -> Option<bool> {
        let raw = self.raw(id);
        (raw.tag == Tag::Bool).then_some(raw.a != 0)
    }

    /// An int of 64 bits, else `None`. A bool is none.
    pub fn int(&self, id: NodeId) -> Option<i64> {
        let raw = self.raw(id);
        (raw.tag == Tag::Int).then_some(raw.word() as i64)
    }

    /// A float, else `None`. An int is none.
    pub fn float(&self, id: NodeId) -> Option<f64> {
        let raw = self.raw(id);
        (raw.tag == Tag::Float).then(|| f64::from_bits(raw.word()))
    }

    /// A str without lone surrogates, else `None`.
    pub fn str(&self, id: NodeId) -> Option<&str> {
        let raw = self.raw(id);
        if raw.tag != Tag::Str {
            return None;
        }
        std::str::from_utf8(self.span(raw)).ok()
    }

    /// Bytes or a bytearray, else `None`.
    pub fn bytes(&self, id: NodeId) -> Option<&[u8]> {
        let raw = self.raw(id);
        matches!(raw.tag, Tag::Bytes | Tag::ByteArray).then(|| self.span(raw))
    }

    /// The items of a list or a tuple, else `None`.
    pub fn items(&self, id: NodeId) -> Option<&[NodeId]> {
        let raw = self.raw(id);
        matches!(raw.tag, Tag::List | Tag::Tuple).then(|| self.arena.children(raw))
    }

    /// The keys and values of a dict, else `None`.
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

    pub(crate) fn raw(&self, id: NodeId) -> Raw {
        self.arena.nodes[id.0 as usize]
    }

    pub(crate) fn span(&self, raw: Raw) -> &[u8] {
        &self.pickle[raw.a as usize..][..raw.b as usize]
    }

    /// The bytes of a str, perhaps with lone surrogates: to be compared or counted, they need not be checked again.
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
