//! Stored nodes: 16 bytes each, with the children of all nodes in one vector.

/// A node of one [`Tree`](crate::pickle::Tree).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId(pub(crate) u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Tag {
    None,
    /// a: 0 or 1
    Bool,
    /// a, b: the low and the high half; the same for `Float`
    Int,
    Float,
    /// a, b: start and length in the pickle; the same for the next three
    BigInt,
    Str,
    Bytes,
    ByteArray,
    /// a, b: start and length in the children, the same for the next four. A dict has key, value, key, …
    List,
    Tuple,
    Set,
    FrozenSet,
    Dict,
    /// a, b: module and name, both `Str`
    Global,
    /// a, b: the two nodes
    Reduce,
    NewObj,
    /// a: class; b: the position of args and kwargs in the children
    NewObjEx,
    /// a, b: the two nodes
    Build,
    Append,
    SetItems,
}

impl Tag {
    /// Whether later opcodes may give it a state and items.
    pub fn is_object(self) -> bool {
        matches!(self, Tag::Reduce | Tag::NewObj | Tag::NewObjEx | Tag::Build | Tag::Append | Tag::SetItems)
    }

    /// Whether it gives an object a state or items.
    pub fn is_change(self) -> bool {
        matches!(self, Tag::Build | Tag::Append | Tag::SetItems)
    }
}

/// A stored node. `Tag` defines the meaning of `a` and `b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawNode {
    pub tag: Tag,
    /// Whether the children have moved to a place with room for the next power of two; see `Arena::extend`.
    pub moved: bool,
    /// Whether a str is ASCII.
    pub is_ascii: bool,
    /// The node's number among those that the pickle refers to again, from 1. 0: no reference. Only these are memoized.
    pub shared: u32,
    pub a: u32,
    pub b: u32,
}

impl RawNode {
    pub const fn new(tag: Tag, a: u32, b: u32) -> RawNode {
        RawNode { tag, moved: false, is_ascii: false, shared: 0, a, b }
    }

    /// An ASCII str.
    pub const fn ascii(start: u32, length: u32) -> RawNode {
        RawNode { is_ascii: true, ..RawNode::new(Tag::Str, start, length) }
    }

    pub const fn of_word(tag: Tag, word: u64) -> RawNode {
        RawNode::new(tag, word as u32, (word >> 32) as u32)
    }

    pub fn word(self) -> u64 {
        u64::from(self.a) | u64::from(self.b) << 32
    }
}

/// The nodes and their children.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Arena {
    pub nodes: Vec<RawNode>,
    pub children: Vec<NodeId>,
    /// The number of shared nodes.
    pub shared: u32,
}

/// Values without identity, once at the head of every arena, so that most columns add no nodes.
pub(crate) const NONE: NodeId = NodeId(0);
pub(crate) const FALSE: NodeId = NodeId(1);
pub(crate) const TRUE: NodeId = NodeId(2);
pub(crate) const EMPTY_TUPLE: NodeId = NodeId(3);
const SMALL_INT: u32 = 4;
/// The number of these values: no other node is below.
pub(crate) const HEAD_NODES: u32 = SMALL_INT + 256;
const HEAD: [RawNode; HEAD_NODES as usize] = {
    let mut head = [RawNode::new(Tag::None, 0, 0); HEAD_NODES as usize];
    head[FALSE.0 as usize] = RawNode::new(Tag::Bool, 0, 0);
    head[TRUE.0 as usize] = RawNode::new(Tag::Bool, 1, 0);
    head[EMPTY_TUPLE.0 as usize] = RawNode::new(Tag::Tuple, 0, 0);
    let mut int = 0;
    while int < 256 {
        head[SMALL_INT as usize + int] = RawNode::of_word(Tag::Int, int as u64);
        int += 1;
    }
    head
};

/// The node of an int from 0 to 255.
pub(crate) fn small_int(int: u8) -> NodeId {
    NodeId(SMALL_INT + u32::from(int))
}

impl Arena {
    pub fn with_capacity(nodes: usize, children: usize) -> Arena {
        let mut arena = Arena {
            nodes: Vec::with_capacity(HEAD.len() + nodes),
            children: Vec::with_capacity(children),
            shared: 0,
        };
        arena.clear();
        arena
    }

    pub fn clear(&mut self) {
        self.nodes.clear();
        self.nodes.extend_from_slice(&HEAD);
        self.children.clear();
        self.shared = 0;
    }

    #[inline]
    pub fn add(&mut self, raw: RawNode) -> NodeId {
        let id = NodeId(self.nodes.len() as u32);
        self.nodes.push(raw);
        id
    }

    /// Adds a node with its own children.
    #[inline]
    pub fn add_parent(&mut self, tag: Tag, children: &[NodeId]) -> NodeId {
        let start = self.children.len() as u32;
        self.children.extend_from_slice(children);
        self.add(RawNode::new(tag, start, children.len() as u32))
    }

    #[inline]
    pub fn children(&self, raw: RawNode) -> &[NodeId] {
        &self.children[raw.a as usize..][..raw.b as usize]
    }

    /// Appends children to a node. If other children follow, the node's children move to the end, into room for twice
    /// as many. So a million single appends take linear time.
    #[inline]
    pub fn extend(&mut self, id: NodeId, more: &[NodeId]) {
        let end = self.children.len();
        let raw = &mut self.nodes[id.0 as usize];
        let (start, len) = (raw.a as usize, raw.b as usize);
        let grown = len + more.len();
        if len == 0 {
            raw.a = end as u32;
            self.children.extend_from_slice(more);
        } else if raw.moved && grown <= len.next_power_of_two() {
            self.children[start + len..start + grown].copy_from_slice(more);
        } else if start + len == end {
            raw.moved = false;
            self.children.extend_from_slice(more);
        } else {
            (raw.moved, raw.a) = (true, end as u32);
            self.children.extend_from_within(start..start + len);
            self.children.extend_from_slice(more);
            self.children.resize(end + grown.next_power_of_two(), NONE);
        }
        self.nodes[id.0 as usize].b = grown as u32;
    }

    /// Marks a node that is referred to again.
    #[inline]
    pub fn share(&mut self, id: NodeId) {
        let raw = &mut self.nodes[id.0 as usize];
        if raw.shared == 0 {
            self.shared += 1;
            raw.shared = self.shared;
        }
    }
}
