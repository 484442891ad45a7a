//! Values alike. The cells of a column often have the same opcodes in every row and differ in a few bytes, as arrays of
//! token ids do. After one of them the parser reads the next ones at once: it compares their bytes with those of the
//! first, and copies its nodes, children and memo entries, moved by constant distances.
//!
//! The tree is the same as without, node for node. A value that differs is read opcode by opcode, and so is every error.

use std::ops::RangeInclusive;

use crate::pickle::arena::{Arena, NONE, NodeId, RawNode, Tag};
use crate::pickle::bounds::{MAX_ALIKE_BYTES, MIN_ALIKE};
use crate::pickle::opcode as op;

/// The state of a parser before an opcode that gets a memo entry. The second value of a column begins so, and those after
/// it: with their class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueStart {
    /// The memo entry.
    pub entry: u32,
    /// The opcode's offset in the pickle.
    pub at: usize,
    /// The number of marks.
    pub marks: usize,
    /// The number of values on the stack.
    pub height: usize,
    /// The number of nodes, of their children and of memo entries.
    pub nodes: u32,
    pub children: u32,
    pub memo: u32,
}

/// The parts of a parser that a value adds to.
pub(crate) struct Output<'p> {
    pub arena: &'p mut Arena,
    pub memo: &'p mut Vec<NodeId>,
    pub stack: &'p mut Vec<NodeId>,
}

/// The pattern of values alike. A parser retains it for its memory.
#[derive(Debug, Default)]
pub(crate) struct Alike {
    /// The value's bytes in words of 8 bytes, and which bits of a word must be the same. The others are 0.
    words: Vec<(u64, u64)>,
    bytes: usize,
    opcodes: usize,
    nodes: Vec<Moving<RawNode>>,
    /// The floats: the index in `nodes`, and the offset of the 8 bytes in the value.
    floats: Vec<(usize, usize)>,
    children: Vec<Moving<NodeId>>,
    memo: Vec<Moving<NodeId>>,
    value: Option<Moving<NodeId>>,
    check: OpcodeCheck,
}

/// The values alike that were read at once.
pub(crate) struct AlikeRead {
    pub bytes: usize,
    pub opcodes: usize,
    pub run: AlikeRun,
}

/// A value, and the values alike that follow it. They differ in their floats and bytes, of which the lengths are the same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AlikeRun {
    pub value: NodeId,
    /// The distance from a value's node to the next one's.
    distance: u32,
    /// The number of values after the first.
    others: u32,
}

impl AlikeRun {
    /// The last value's node.
    pub fn last_node(self) -> u32 {
        self.value.0.wrapping_add(self.distance.wrapping_mul(self.others))
    }

    /// Whether the node belongs to a value, or may belong to one.
    pub fn has(self, id: NodeId) -> bool {
        let first = self.value.0.saturating_sub(self.distance);
        (first..self.last_node().saturating_add(self.distance)).contains(&id.0)
    }

    /// The nodes from the first value's to the last one's. Another node between them that is a cell is a value, too.
    pub fn values(self) -> RangeInclusive<u32> {
        self.value.0..=self.last_node()
    }

    /// The number of nodes, from the head, that are the values after the first, in order.
    pub fn count(self, nodes: &[NodeId]) -> usize {
        let places =
            (1..=self.others).map(|number| self.value.0.wrapping_add(self.distance.wrapping_mul(number)));
        nodes.iter().zip(places).take_while(|(node, place)| node.0 == *place).count()
    }
}

/// A part of the learned value, and its distance from the same part of the next value.
#[derive(Clone, Copy, Debug)]
struct Moving<T> {
    last: T,
    by: T,
}

impl Alike {
    /// Learns the value that was read between `start` and `end`. Returns false if the same opcodes may mean something else
    /// after it, or if fewer than [`MIN_ALIKE`] values seem to follow.
    pub fn learn(&mut self, pickle: &[u8], start: ValueStart, end: ValueStart, output: &Output<'_>) -> bool {
        let is_one_value = start.entry == end.entry && start.height + 1 == end.height;
        let value = &pickle[start.at..end.at];
        if !is_one_value || value.len() > MAX_ALIKE_BYTES {
            return false;
        }
        let last = start.at + MIN_ALIKE * value.len();
        if pickle.get(last..last + 2) != Some(&value[..2]) {
            return false;
        }
        let Some(opcodes) = self.check.opcodes(value, start.memo) else { return false };
        (self.bytes, self.opcodes) = (value.len(), opcodes);
        self.set_words(value);

        let (new, added) = (start.nodes, end.nodes - start.nodes);
        let distance = |id: u32| if id < new { 0 } else { added };
        let moving = |id: &NodeId| Moving { last: *id, by: NodeId(distance(id.0)) };
        self.children.clear();
        self.children.extend(output.arena.children[start.children as usize..].iter().map(moving));
        self.memo.clear();
        self.memo.extend(output.memo[start.memo as usize..].iter().map(moving));
        self.value = output.stack.last().map(moving);
        self.nodes.clear();
        self.floats.clear();
        let mut floats = self.check.floats.iter();
        for (index, &node) in output.arena.nodes[start.nodes as usize..].iter().enumerate() {
            let (a, b) = match node.tag {
                Tag::None | Tag::Bool | Tag::Int => (0, 0),
                Tag::Float => {
                    self.floats.extend(floats.next().map(|offset| (index, *offset)));
                    (0, 0)
                }
                Tag::BigInt | Tag::Str | Tag::Bytes | Tag::ByteArray => (value.len() as u32, 0),
                // An empty list or dict has no place among the children.
                Tag::List | Tag::Tuple | Tag::Set | Tag::FrozenSet | Tag::Dict if node.b == 0 => (0, 0),
                Tag::List | Tag::Tuple | Tag::Set | Tag::FrozenSet | Tag::Dict => {
                    (end.children - start.children, 0)
                }
                Tag::Reduce | Tag::NewObj | Tag::Build | Tag::Append | Tag::SetItems => {
                    (distance(node.a), distance(node.b))
                }
                // Their opcodes are not among those of values alike.
                Tag::Global | Tag::NewObjEx => return false,
            };
            self.nodes.push(Moving { last: node, by: RawNode::new(node.tag, a, b) });
        }
        true
    }

    /// Whether a value was learned.
    #[cfg(test)]
    pub fn has_learned(&self) -> bool {
        !self.words.is_empty()
    }

    fn set_words(&mut self, value: &[u8]) {
        let free = &mut self.check.free;
        free.resize(value.len().next_multiple_of(8), true);
        let words = free.as_chunks::<8>().0.iter().enumerate().map(|(word, free)| {
            let mask = u64::from_ne_bytes(free.map(|free| if free { 0 } else { 0xff }));
            let bytes = std::array::from_fn(|at| value.get(8 * word + at).copied().unwrap_or_default());
            (u64::from_ne_bytes(bytes) & mask, mask)
        });
        self.words.clear();
        self.words.extend(words);
    }

    /// Reads the values alike at the head of `rest`, with at most this many opcodes.
    pub fn read(&self, rest: &[u8], opcodes_max: usize, output: Output<'_>) -> AlikeRead {
        let (mut values, mut next) = (0, rest);
        while values < opcodes_max / self.opcodes && self.is_next(next) {
            (values, next) = (values + 1, &next[self.bytes..]);
        }
        let Output { arena, memo, stack } = output;
        let (bytes, first) = (&rest[..values * self.bytes], arena.nodes.len());
        add(&mut arena.nodes, &self.nodes, values);
        add(&mut arena.children, &self.children, values);
        add(memo, &self.memo, values);
        add(stack, self.value.as_slice(), values);
        if !self.floats.is_empty() {
            let places = arena.nodes[first..].chunks_exact_mut(self.nodes.len());
            for (value, nodes) in bytes.chunks_exact(self.bytes).zip(places) {
                for &(index, offset) in &self.floats {
                    let bits = value[offset..].first_chunk().map_or(0, |bits| u64::from_be_bytes(*bits));
                    nodes[index] = RawNode::of_word(Tag::Float, bits);
                }
            }
        }
        let value = self.value.map_or(NONE, |value| value.last);
        let distance = self.value.map_or(0, |value| value.by.0);
        let run = AlikeRun { value, distance, others: values as u32 };
        AlikeRead { bytes: bytes.len(), opcodes: values * self.opcodes, run }
    }

    /// Whether the bytes begin with a value alike. Near the pickle's end, where a whole word is missing, they do not count
    /// as one.
    #[inline]
    fn is_next(&self, bytes: &[u8]) -> bool {
        let Some(words) = bytes.as_chunks::<8>().0.get(..self.words.len()) else { return false };
        let differs =
            |(word, (value, mask)): (&[u8; 8], &(u64, u64))| u64::from_ne_bytes(*word) & mask ^ value;
        words.iter().zip(&self.words).map(differs).fold(0, |all, differs| all | differs) == 0
    }
}

/// Adds the parts of this many values alike.
fn add<T: Movable>(out: &mut Vec<T>, parts: &[Moving<T>], values: usize) {
    let (Some(part), first) = (parts.first(), out.len()) else { return };
    out.resize(first + values * parts.len(), part.last);
    // Part by part, so that the loop over the values has nothing to look up.
    for (index, part) in parts.iter().enumerate() {
        let mut moved = part.last;
        for places in out[first..].chunks_exact_mut(parts.len()) {
            moved = moved.by(part.by);
            places[index] = moved;
        }
    }
}

/// A part of a value that moves by a constant distance from value to value.
trait Movable: Copy {
    /// The same part of the next value.
    fn by(self, distance: Self) -> Self;
}

impl Movable for NodeId {
    #[inline]
    fn by(self, distance: NodeId) -> NodeId {
        NodeId(self.0.wrapping_add(distance.0))
    }
}

impl Movable for RawNode {
    #[inline]
    fn by(self, distance: RawNode) -> RawNode {
        RawNode { a: self.a.wrapping_add(distance.a), b: self.b.wrapping_add(distance.b), ..self }
    }
}

/// Checks the opcodes of a value that was read: with other free bytes they make a value alike. They refer only to earlier
/// values, change none of these, and leave one value.
#[derive(Debug, Default)]
struct OpcodeCheck {
    /// The number of memo entries before the value.
    memo: u32,
    /// The values on the stack, and whether each is one that the opcodes made.
    stack: Vec<bool>,
    marks: Vec<usize>,
    /// For each byte, whether it may differ.
    free: Vec<bool>,
    /// The offsets of the floats' bytes.
    floats: Vec<usize>,
}

impl OpcodeCheck {
    /// The number of opcodes. `None`: the value has no values alike.
    fn opcodes(&mut self, value: &[u8], memo: u32) -> Option<usize> {
        self.memo = memo;
        self.stack.clear();
        self.marks.clear();
        self.free.clear();
        self.free.resize(value.len(), false);
        self.floats.clear();
        let (mut rest, mut opcodes) = (value, 0);
        while !rest.is_empty() {
            self.read(&mut rest)?;
            opcodes += 1;
        }
        (self.stack.len() == 1 && self.marks.is_empty()).then_some(opcodes)
    }

    /// Reads an opcode. `None`: the value has no values alike.
    fn read(&mut self, rest: &mut &[u8]) -> Option<()> {
        let [opcode] = argument(rest)?;
        match opcode {
            op::BINGET => {
                let [entry] = argument(rest)?;
                self.get(entry.into())?;
            }
            op::LONG_BINGET => {
                let entry = u32::from_le_bytes(argument(rest)?);
                self.get(entry)?;
            }
            op::NONE | op::NEWTRUE | op::NEWFALSE | op::EMPTY_TUPLE => self.stack.push(false),
            op::EMPTY_LIST | op::EMPTY_DICT => self.stack.push(true),
            op::BININT1 => {
                let [_] = argument(rest)?;
                self.stack.push(true);
            }
            op::BININT2 => {
                let [_, _] = argument(rest)?;
                self.stack.push(true);
            }
            op::BININT => {
                let [_, _, _, _] = argument(rest)?;
                self.stack.push(true);
            }
            op::BINFLOAT => {
                self.floats.push(self.free.len() - rest.len());
                self.skip_free(8, rest)?;
                self.stack.push(true);
            }
            op::SHORT_BINBYTES => {
                let [length] = argument(rest)?;
                self.skip_free(length.into(), rest)?;
                self.stack.push(true);
            }
            op::SHORT_BINUNICODE => {
                let [length] = argument(rest)?;
                *rest = rest.get(length.into()..)?;
                self.stack.push(true);
            }
            op::MARK => self.marks.push(self.stack.len()),
            op::TUPLE => {
                let from = self.marks.pop()?;
                self.make(from)?;
            }
            op::TUPLE1 => self.make(self.down(1)?)?,
            op::TUPLE2 | op::REDUCE | op::NEWOBJ => self.make(self.down(2)?)?,
            op::TUPLE3 => self.make(self.down(3)?)?,
            op::BUILD | op::APPEND => self.change(self.down(1)?)?,
            op::SETITEM => self.change(self.down(2)?)?,
            op::APPENDS | op::SETITEMS => {
                let from = self.marks.pop()?;
                self.change(from)?;
            }
            op::MEMOIZE => {
                self.down(1)?;
            }
            _ => return None,
        }
        Some(())
    }

    /// Reads bytes that may differ.
    fn skip_free(&mut self, bytes: usize, rest: &mut &[u8]) -> Option<()> {
        let at = self.free.len() - rest.len();
        self.free.get_mut(at..at + bytes)?.fill(true);
        *rest = &rest[bytes..];
        Some(())
    }

    fn get(&mut self, entry: u32) -> Option<()> {
        self.stack.push(false);
        // A value alike would get its own entry by another number.
        (entry < self.memo).then_some(())
    }

    /// The stack position of the topmost `count` values, all of them after the last mark.
    fn down(&self, count: usize) -> Option<usize> {
        let from = self.stack.len().checked_sub(count)?;
        (from >= self.marks.last().copied().unwrap_or(0)).then_some(from)
    }

    /// Makes a value of those from this stack position on.
    fn make(&mut self, from: usize) -> Option<()> {
        self.stack.truncate(from);
        self.stack.push(true);
        Some(())
    }

    /// Changes the value below this stack position by those from it on, at least one. A value that the opcodes did not
    /// make must stay as it is.
    fn change(&mut self, from: usize) -> Option<()> {
        let is_made = *self.stack.get(from.checked_sub(1)?)?;
        let is_change = from < self.stack.len() && from > self.marks.last().copied().unwrap_or(0);
        self.stack.truncate(from);
        (is_made && is_change).then_some(())
    }
}

fn argument<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (argument, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*argument)
}

#[cfg(test)]
mod tests;
