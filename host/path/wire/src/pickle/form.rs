//! Values alike that are written one after the other, as the cells of a column. After one of them the next ones are written
//! at once: their nodes are compared with those of the first, whose bytes are copied, and the content of texts, bytes and
//! floats is put into the copy.
//!
//! The written bytes are the same as without. A value that differs is written node by node.

use std::ops::RangeInclusive;

use crate::pickle::arena::{HEAD_NODES, NodeId, RawNode, Tag};
use crate::pickle::bounds::{MAX_ALIKE_BYTES, MAX_FORM_NODES};
use crate::pickle::emit::{Emit, Memo};
use crate::pickle::opcode as op;
use crate::pickle::tree::Tree;

/// The form of a written value.
pub(crate) struct Form {
    /// The distance of the lowest node from the value's own node.
    lowest: u32,
    /// The nodes, one after the other as in the arena.
    nodes: Vec<FormNode>,
    /// The nodes that have children: the index, and the first one of the children.
    parents: Vec<(usize, usize)>,
    /// The children of the parents, one parent's after the other's.
    children: Vec<Part>,
    contents: Vec<Content>,
    /// The bytes of the value that was learned.
    bytes: Vec<u8>,
    /// The nodes of values that the parser found to be alike.
    alike: RangeInclusive<u32>,
}

/// A node. A field counts if its mask is set.
#[derive(Clone, Copy)]
struct FormNode {
    tag: Tag,
    a: Part,
    a_mask: u32,
    b: Part,
    b_mask: u32,
}

/// The content of a text, bytes or a float, which differs from value to value.
#[derive(Clone, Copy)]
struct Content {
    /// The index of the node.
    node: usize,
    /// The offset in the written value.
    at: usize,
    /// The number of bytes of a text or of bytes. `None`: a float.
    length: Option<usize>,
}

/// A node that another one refers to, or a number.
#[derive(Clone, Copy)]
struct Part {
    base: u32,
    /// All bits: `base` is the distance from the value's own node. 0: `base` is the same in all values.
    moves: u32,
}

impl Part {
    const ANY: Part = Part { base: 0, moves: 0 };

    fn same(base: u32) -> Part {
        Part { base, moves: 0 }
    }

    #[inline(always)]
    fn of(self, value: NodeId) -> u32 {
        self.base.wrapping_add(self.moves & value.0)
    }
}

/// A form that is being learned.
struct Learned<'t> {
    tree: &'t Tree,
    memo: &'t [Option<Memo>],
    value: NodeId,
    /// The nodes by their distance from the value's own node, in the order in which they are written.
    nodes: Vec<(u32, FormNode)>,
    parents: Vec<(usize, usize)>,
    children: Vec<Part>,
    contents: Vec<Content>,
    emit: Emit,
}

impl Form {
    /// The form of the value that was just written as `bytes`. `None`: its kind of value is not written at once.
    pub fn learn(tree: &Tree, memo: &[Option<Memo>], value: NodeId, bytes: &[u8]) -> Option<Form> {
        if bytes.len() > MAX_ALIKE_BYTES || tree.raw(value).tag == Tag::Int {
            return None;
        }
        let (nodes, parents, children, contents) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut learned =
            Learned { tree, memo, value, nodes, parents, children, contents, emit: Emit::part() };
        let part = learned.node(value)?;
        if part.moves == 0 || learned.emit.bytes != bytes {
            return None;
        }
        learned.finish()
    }

    /// The number of values at the head that have this form.
    pub fn count(&self, tree: &Tree, values: &[NodeId]) -> usize {
        let is_alike = |value: &&NodeId| {
            if self.alike.contains(&value.0) {
                return true;
            }
            let first = value.0.wrapping_add(self.lowest) as usize;
            let nodes = tree.arena.nodes.get(first..first + self.nodes.len());
            nodes.is_some_and(|nodes| self.is_alike(tree, **value, nodes))
        };
        values.iter().take_while(is_alike).count()
    }

    /// Writes values that have this form.
    pub fn write(&self, tree: &Tree, values: &[NodeId], out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&self.bytes.repeat(values.len()));
        let written = &mut out[start..];
        for content in &self.contents {
            // The content of all values at once, so that a loop has nothing to look up.
            let by = self.lowest.wrapping_add(content.node as u32);
            let raws = values.iter().map(|value| tree.raw(NodeId(value.0.wrapping_add(by))));
            let places = written.chunks_exact_mut(self.bytes.len()).map(|value| &mut value[content.at..]);
            match content.length {
                // One token id.
                Some(8) => places.zip(raws).for_each(|(place, raw)| {
                    let bytes = tree.pickle[raw.a as usize..].first_chunk::<8>();
                    if let (Some(place), Some(bytes)) = (place.first_chunk_mut(), bytes) {
                        *place = *bytes;
                    }
                }),
                Some(length) => {
                    places.zip(raws).for_each(|(place, raw)| place[..length].copy_from_slice(tree.span(raw)))
                }
                None => places.zip(raws).for_each(|(place, raw)| {
                    if let Some(place) = place.first_chunk_mut() {
                        *place = raw.word().to_be_bytes();
                    }
                }),
            }
        }
    }

    /// Whether the value with these nodes has this form. All nodes are compared without an early exit, as nearly all are alike.
    #[inline(always)]
    fn is_alike(&self, tree: &Tree, value: NodeId, nodes: &[RawNode]) -> bool {
        let mut differs = 0;
        for (raw, node) in nodes.iter().zip(&self.nodes) {
            // Nodes that are referred to again have a number in the memo.
            differs |= (raw.tag as u32 ^ node.tag as u32) | raw.shared;
            differs |= (raw.a ^ node.a.of(value)) & node.a_mask | (raw.b ^ node.b.of(value)) & node.b_mask;
        }
        if differs != 0 {
            return false;
        }
        for &(parent, first) in &self.parents {
            let children = tree.arena.children(nodes[parent]);
            for (id, part) in children.iter().zip(&self.children[first..]) {
                differs |= id.0 ^ part.of(value);
            }
        }
        differs == 0
    }
}

impl Learned<'_> {
    /// The form of what was learned. `None`: the value's nodes do not stand one after the other.
    fn finish(self) -> Option<Form> {
        let Learned { tree, value, mut nodes, mut parents, children, mut contents, emit, .. } = self;
        let mut order: Vec<usize> = (0..nodes.len()).collect();
        order.sort_by_key(|at| nodes[*at].0 as i32);
        let lowest = nodes[*order.first()?].0;
        let is_next = |(at, node): (u32, &usize)| nodes[*node].0 == lowest.wrapping_add(at);
        if !(0..).zip(&order).all(is_next) {
            return None;
        }
        let place = |node: usize| order.iter().position(|it| *it == node);
        for (node, _) in &mut parents {
            *node = place(*node)?;
        }
        for content in &mut contents {
            content.node = place(content.node)?;
        }
        nodes.sort_by_key(|(distance, _)| *distance as i32);
        let nodes = nodes.into_iter().map(|(_, node)| node).collect();
        let mut runs = tree.runs.iter().map(|run| run.values());
        let alike = runs.find(|values| values.contains(&value.0)).unwrap_or(RangeInclusive::new(1, 0));
        Some(Form { lowest, nodes, parents, children, contents, bytes: emit.bytes, alike })
    }

    /// Learns a node and everything below it, in the order in which they are written.
    fn node(&mut self, id: NodeId) -> Option<Part> {
        let raw = self.tree.raw(id);
        if id.0 < HEAD_NODES || raw.shared != 0 {
            self.constant(raw)?;
            return Some(Part::same(id.0));
        }
        if self.nodes.len() == MAX_FORM_NODES {
            return None;
        }
        let distance = id.0.wrapping_sub(self.value.0);
        // The node's place is taken before those of the nodes below, so that nested values are bounded.
        let node = self.nodes.len();
        let any = FormNode { tag: raw.tag, a: Part::ANY, a_mask: 0, b: Part::ANY, b_mask: 0 };
        self.nodes.push((distance, any));
        self.content(node, raw)?;
        Some(Part { base: distance, moves: u32::MAX })
    }

    /// Writes a node that is the same in all values.
    fn constant(&mut self, raw: RawNode) -> Option<()> {
        match (raw.tag, raw.shared.checked_sub(1)) {
            (Tag::None, _) => self.emit.opcode(op::NONE),
            (Tag::Bool, _) => self.emit.bool(raw.a != 0),
            (Tag::Int, _) => self.emit.int(raw.word() as i64),
            (_, Some(slot)) => self.emit.get((*self.memo.get(slot as usize)?)?),
            (Tag::Tuple, None) => self.emit.opcode(op::EMPTY_TUPLE),
            (_, None) => return None,
        }
        Some(())
    }

    fn content(&mut self, node: usize, raw: RawNode) -> Option<()> {
        let (a, b) = (NodeId(raw.a), NodeId(raw.b));
        match raw.tag {
            Tag::Int => {
                self.emit.int(raw.word() as i64);
                self.set_a(node, Part::same(raw.a));
                self.set_b(node, Part::same(raw.b));
            }
            Tag::Float => {
                self.emit.float(f64::from_bits(raw.word()));
                self.contents.push(Content { node, at: self.emit.bytes.len() - 8, length: None });
            }
            Tag::Str => {
                self.emit.str(self.tree.span(raw));
                self.span(node, raw);
            }
            Tag::Bytes => {
                self.emit.bytes(self.tree.span(raw));
                self.span(node, raw);
            }
            Tag::List => {
                self.emit.opcode(op::EMPTY_LIST);
                self.fill(node, raw, op::APPENDS)?;
            }
            Tag::Dict => {
                self.emit.opcode(op::EMPTY_DICT);
                self.fill(node, raw, op::SETITEMS)?;
            }
            Tag::Tuple => {
                let opcode = match raw.b {
                    1 => op::TUPLE1,
                    2 => op::TUPLE2,
                    3 => op::TUPLE3,
                    _ => op::TUPLE,
                };
                if opcode == op::TUPLE {
                    self.emit.opcode(op::MARK);
                }
                self.items(node, raw)?;
                self.emit.opcode(opcode);
            }
            Tag::Reduce => self.pair(node, [a, b], op::REDUCE)?,
            Tag::NewObj => self.pair(node, [a, b], op::NEWOBJ)?,
            Tag::Build if !self.tree.raw(a).tag.is_change() => self.pair(node, [a, b], op::BUILD)?,
            _ => return None,
        }
        Some(())
    }

    fn set_a(&mut self, node: usize, a: Part) {
        let form = &mut self.nodes[node].1;
        (form.a, form.a_mask) = (a, u32::MAX);
    }

    fn set_b(&mut self, node: usize, b: Part) {
        let form = &mut self.nodes[node].1;
        (form.b, form.b_mask) = (b, u32::MAX);
    }

    /// Learns a text or bytes that were just written. All values have the same length.
    fn span(&mut self, node: usize, raw: RawNode) {
        let length = raw.b as usize;
        self.set_b(node, Part::same(raw.b));
        self.contents.push(Content { node, at: self.emit.bytes.len() - length, length: Some(length) });
    }

    fn pair(&mut self, node: usize, [a, b]: [NodeId; 2], opcode: u8) -> Option<()> {
        let (a, b) = (self.node(a)?, self.node(b)?);
        self.set_a(node, a);
        self.set_b(node, b);
        self.emit.opcode(opcode);
        Some(())
    }

    fn fill(&mut self, node: usize, parent: RawNode, opcode: u8) -> Option<()> {
        if parent.b == 0 {
            return self.items(node, parent);
        }
        self.emit.opcode(op::MARK);
        self.items(node, parent)?;
        self.emit.opcode(opcode);
        Some(())
    }

    fn items(&mut self, node: usize, parent: RawNode) -> Option<()> {
        let children = self.tree.arena.children(parent);
        if children.len() > MAX_ALIKE_BYTES {
            return None;
        }
        self.set_b(node, Part::same(parent.b));
        let parts = children.iter().map(|id| self.node(*id)).collect::<Option<Vec<_>>>()?;
        if !parts.is_empty() {
            self.parents.push((node, self.children.len()));
            self.children.extend(parts);
        }
        Some(())
    }
}
