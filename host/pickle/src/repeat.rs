//! Values alike. The cells of a column often have the same opcodes in every row and differ in a few bytes, as arrays of
//! token ids do. After one of them the parser reads the next ones at once: it compares their bytes with those of the
//! first, and copies its nodes, children and memo entries, moved by constant distances.
//!
//! The tree is the same as without, node for node. A value that differs is read opcode by opcode, and so is every error.

use crate::arena::{Arena, NodeId, RawNode, Tag};
use crate::bounds::{MAX_ALIKE_BYTES, MIN_ALIKE};
use crate::opcode as op;

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
        let Some(opcodes) = Opcodes::of(value, start.memo) else { return false };
        self.set_words(value, opcodes.free);
        (self.bytes, self.opcodes) = (value.len(), opcodes.count);

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
        let mut floats = opcodes.floats.into_iter();
        for (index, &node) in output.arena.nodes[start.nodes as usize..].iter().enumerate() {
            let (a, b) = match node.tag {
                Tag::None | Tag::Bool | Tag::Int => (0, 0),
                Tag::Float => {
                    self.floats.extend(floats.next().map(|offset| (index, offset)));
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

    fn set_words(&mut self, value: &[u8], mut free: Vec<bool>) {
        free.resize(value.len().next_multiple_of(8), true);
        let words = free.as_chunks::<8>().0.iter().enumerate().map(|(word, free)| {
            let mask = u64::from_ne_bytes(free.map(|free| if free { 0 } else { 0xff }));
            let bytes = std::array::from_fn(|at| value.get(8 * word + at).copied().unwrap_or_default());
            (u64::from_ne_bytes(bytes) & mask, mask)
        });
        self.words.clear();
        self.words.extend(words);
    }

    /// Reads the values alike at the head of `rest`, with at most this many opcodes. Returns the number of bytes and of
    /// opcodes.
    pub fn read(&self, rest: &[u8], opcodes_max: usize, output: Output<'_>) -> (usize, usize) {
        let mut values = 0;
        while (values + 1) * self.opcodes <= opcodes_max && self.is_next(&rest[values * self.bytes..]) {
            values += 1;
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
        (bytes.len(), values * self.opcodes)
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
    // The parts are computed from the first value and not from the value before, which the processor would have to wait for.
    out.resize(first + values * parts.len(), part.last);
    for (number, places) in (1..).zip(out[first..].chunks_exact_mut(parts.len())) {
        for (place, part) in places.iter_mut().zip(parts) {
            *place = part.last.after(part.by, number);
        }
    }
}

/// A part of a value that moves by a constant distance from value to value.
trait Movable: Copy {
    /// The part of the value alike with this number, which begins with 1.
    fn after(self, distance: Self, number: u32) -> Self;
}

impl Movable for NodeId {
    #[inline]
    fn after(self, distance: NodeId, number: u32) -> NodeId {
        NodeId(self.0.wrapping_add(distance.0.wrapping_mul(number)))
    }
}

impl Movable for RawNode {
    #[inline]
    fn after(self, distance: RawNode, number: u32) -> RawNode {
        let after = |at: u32, distance: u32| at.wrapping_add(distance.wrapping_mul(number));
        RawNode { a: after(self.a, distance.a), b: after(self.b, distance.b), ..self }
    }
}

/// The opcodes of a value that was read, checked: with other free bytes they make a value alike. They refer only to
/// earlier values, change none of these, and leave one value.
struct Opcodes<'v> {
    rest: &'v [u8],
    /// The number of memo entries before the value.
    memo: u32,
    /// The values on the stack, and whether each is one that the opcodes made.
    stack: Vec<bool>,
    marks: Vec<usize>,
    /// For each byte up to the last free one, whether it may differ.
    free: Vec<bool>,
    /// The offsets of the floats' bytes.
    floats: Vec<usize>,
    count: usize,
}

impl<'v> Opcodes<'v> {
    fn of(value: &'v [u8], memo: u32) -> Option<Opcodes<'v>> {
        let (free, floats) = (vec![false; value.len()], Vec::new());
        let mut opcodes =
            Opcodes { rest: value, memo, stack: Vec::new(), marks: Vec::new(), free, floats, count: 0 };
        while !opcodes.rest.is_empty() {
            opcodes.read()?;
            opcodes.count += 1;
        }
        (opcodes.stack.len() == 1 && opcodes.marks.is_empty()).then_some(opcodes)
    }

    /// Reads an opcode. `None`: the value has no values alike.
    fn read(&mut self) -> Option<()> {
        let [opcode] = self.argument()?;
        match opcode {
            op::BINGET => {
                let [entry] = self.argument()?;
                self.get(entry.into())?;
            }
            op::LONG_BINGET => {
                let entry = u32::from_le_bytes(self.argument()?);
                self.get(entry)?;
            }
            op::NONE | op::NEWTRUE | op::NEWFALSE | op::EMPTY_TUPLE => self.stack.push(false),
            op::EMPTY_LIST | op::EMPTY_DICT => self.stack.push(true),
            op::BININT1 => {
                let [_] = self.argument()?;
                self.stack.push(true);
            }
            op::BININT2 => {
                let [_, _] = self.argument()?;
                self.stack.push(true);
            }
            op::BININT => {
                let [_, _, _, _] = self.argument()?;
                self.stack.push(true);
            }
            op::BINFLOAT => {
                self.floats.push(self.at());
                self.skip_free(8)?;
                self.stack.push(true);
            }
            op::SHORT_BINBYTES => {
                let [length] = self.argument()?;
                self.skip_free(length.into())?;
                self.stack.push(true);
            }
            op::SHORT_BINUNICODE => {
                let [length] = self.argument()?;
                self.rest = self.rest.get(length.into()..)?;
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

    fn at(&self) -> usize {
        self.free.len() - self.rest.len()
    }

    fn argument<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (argument, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*argument)
    }

    /// Reads bytes that may differ.
    fn skip_free(&mut self, bytes: usize) -> Option<()> {
        let at = self.at();
        self.free.get_mut(at..at + bytes)?.fill(true);
        self.rest = &self.rest[bytes..];
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

#[cfg(test)]
mod tests;
