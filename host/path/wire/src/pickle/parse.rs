//! Parses a pickle into a tree: the stack machine of pickle, with nodes in place of objects. It reads the protocols
//! 4 and 5 of CPython's `pickle.dumps`. An unsupported opcode is an error that names it.

mod ahead;

use std::sync::OnceLock;

use bytes::Bytes;

use crate::pickle::arena::{Arena, EMPTY_TUPLE, FALSE, NONE, NodeId, RawNode, TRUE, Tag, small_int};
use crate::pickle::bounds::{KEPT, MAX_OPCODES, MAX_PICKLE_BYTES};
use crate::pickle::cursor::{Cursor, is_text};
use crate::pickle::error::{OpcodeError, ParseError};
use crate::pickle::opcode as op;
use crate::pickle::repeat::{Alike, AlikeRun, ValueStart};
use crate::pickle::spare;
use crate::pickle::tree::Tree;

/// Reads pickles, and retains its stack and memo from one to the next.
#[derive(Debug, Default)]
pub struct Parser {
    pub(crate) arena: Arena,
    stack: Vec<NodeId>,
    /// The heights of the stack at the marks.
    marks: Vec<u32>,
    /// The height of the stack at the last mark. Values below it are not accessible.
    fence: usize,
    memo: Vec<NodeId>,
    protocol: u8,
    /// The last value that began with a memo entry, by the number of marks, of which the lowest bits count.
    starts: [Option<ValueStart>; STARTS],
    alike: Alike,
    /// The values that were read at once, in order of their nodes.
    runs: Vec<AlikeRun>,
    /// Whether every value is read opcode by opcode.
    #[cfg(test)]
    pub(crate) is_plain: bool,
}

/// The nesting in which values alike are looked for: rows, and lists or dicts inside of a row.
const STARTS: usize = 4;

impl Tree {
    /// Reads one pickle. For many pickles a [`Parser`] is faster.
    pub fn parse(pickle: Bytes) -> Result<Tree, ParseError> {
        Parser::new().parse(pickle)
    }
}

impl Parser {
    /// Makes a parser.
    pub fn new() -> Parser {
        Parser::default()
    }

    /// Reads one pickle, which must be all of the bytes, in linear time and memory.
    pub fn parse(&mut self, pickle: Bytes) -> Result<Tree, ParseError> {
        if pickle.len() > MAX_PICKLE_BYTES {
            return Err(ParseError::TooLong { bytes: pickle.len() });
        }
        self.clear();
        // About the size of a batch, so that it rarely grows.
        self.arena = spare::take(pickle.len() / 12, pickle.len() / 4);
        let read = self.run(&pickle, MAX_OPCODES);
        let arena = std::mem::take(&mut self.arena);
        match read {
            Ok(root) => {
                let runs = std::mem::take(&mut self.runs);
                Ok(Tree { pickle, arena, runs, root, protocol: self.protocol, array_names: OnceLock::new() })
            }
            Err((offset, fault)) => {
                spare::keep(arena);
                Err(match pickle.get(offset) {
                    Some(&opcode) => ParseError::Opcode { opcode, offset, fault },
                    None => ParseError::NoStop { offset },
                })
            }
        }
    }

    /// Whether a pattern of values alike was learned.
    #[cfg(test)]
    pub(crate) fn has_learned(&self) -> bool {
        self.alike.has_learned()
    }

    pub(crate) fn clear(&mut self) {
        self.stack.clear();
        self.marks.clear();
        self.memo.clear();
        self.stack.shrink_to(KEPT);
        self.marks.shrink_to(KEPT);
        self.memo.shrink_to(KEPT);
        (self.fence, self.protocol) = (0, 0);
        self.starts = [None; STARTS];
        self.runs.clear();
    }

    /// Returns the value at STOP, or the offset of an error.
    pub(crate) fn run(&mut self, pickle: &[u8], opcodes_max: usize) -> Result<NodeId, (usize, OpcodeError)> {
        let mut cursor = Cursor { pickle, rest: pickle, opcode: pickle };
        self.opcodes(&mut cursor, opcodes_max).map_err(|fault| (pickle.len() - cursor.opcode.len(), fault))
    }

    /// Inlined, so that the cursor stays in registers.
    #[inline(always)]
    fn opcodes(&mut self, cursor: &mut Cursor, opcodes_max: usize) -> Result<NodeId, OpcodeError> {
        let mut left = opcodes_max;
        while left > 0 {
            left -= 1;
            cursor.opcode = cursor.rest;
            let [opcode] = cursor.argument()?;
            match opcode {
                op::STOP => return self.stop(cursor.rest.len()),
                op::MARK => {
                    self.fence = self.stack.len();
                    self.marks.push(self.fence as u32);
                }
                op::POP if self.stack.len() == self.fence => {
                    self.pop_mark()?;
                }
                op::POP => self.stack.truncate(self.down(1)?),
                op::POP_MARK => {
                    let from = self.pop_mark()?;
                    self.stack.truncate(from);
                }
                op::DUP => {
                    let top = self.top()?;
                    self.share(top);
                    self.push(top);
                }
                op::PROTO => {
                    [self.protocol] = cursor.argument()?;
                    if !(4..=5).contains(&self.protocol) {
                        return Err(OpcodeError::Protocol(self.protocol));
                    }
                }
                op::FRAME => {
                    let length = u64::from_le_bytes(cursor.argument()?);
                    if length > cursor.rest.len() as u64 {
                        return Err(cursor.cut(length));
                    }
                }

                op::NONE => self.push_all(NONE, cursor, &mut left),
                op::NEWTRUE => self.push_all(TRUE, cursor, &mut left),
                op::NEWFALSE => self.push_all(FALSE, cursor, &mut left),
                op::BININT1 => {
                    let [int] = cursor.argument()?;
                    self.push(small_int(int));
                    self.push_small_ints(cursor, &mut left);
                }
                op::BININT2 => {
                    let int = u16::from_le_bytes(cursor.argument()?);
                    self.int(int.into());
                }
                op::BININT => {
                    let int = i32::from_le_bytes(cursor.argument()?);
                    self.int(int.into());
                }
                op::LONG1 => {
                    let [length] = cursor.argument()?;
                    self.long(cursor.span(Tag::BigInt, length.into())?);
                }
                op::LONG4 => {
                    let length = u32::from_le_bytes(cursor.argument()?);
                    self.long(cursor.span(Tag::BigInt, length.into())?);
                }
                op::BINFLOAT => {
                    let bits = u64::from_be_bytes(cursor.argument()?);
                    self.add(RawNode::of_word(Tag::Float, bits));
                }

                op::SHORT_BINUNICODE => {
                    let [length] = cursor.argument()?;
                    self.str(cursor.span(Tag::Str, length.into())?)?;
                    self.push_texts(length, cursor, &mut left);
                }
                op::BINUNICODE => {
                    let length = u32::from_le_bytes(cursor.argument()?);
                    self.str(cursor.span(Tag::Str, length.into())?)?;
                }
                op::BINUNICODE8 => {
                    let length = u64::from_le_bytes(cursor.argument()?);
                    self.str(cursor.span(Tag::Str, length)?)?;
                }
                op::SHORT_BINBYTES => {
                    let [length] = cursor.argument()?;
                    self.add(cursor.span(Tag::Bytes, length.into())?.1);
                }
                op::BINBYTES => {
                    let length = u32::from_le_bytes(cursor.argument()?);
                    self.add(cursor.span(Tag::Bytes, length.into())?.1);
                }
                op::BINBYTES8 => {
                    let length = u64::from_le_bytes(cursor.argument()?);
                    self.add(cursor.span(Tag::Bytes, length)?.1);
                }
                op::BYTEARRAY8 => {
                    let length = u64::from_le_bytes(cursor.argument()?);
                    self.add(cursor.span(Tag::ByteArray, length)?.1);
                }

                op::EMPTY_LIST => self.add(RawNode::new(Tag::List, 0, 0)),
                op::EMPTY_DICT => self.add(RawNode::new(Tag::Dict, 0, 0)),
                op::EMPTY_SET => self.add(RawNode::new(Tag::Set, 0, 0)),
                op::EMPTY_TUPLE => self.push(EMPTY_TUPLE),
                op::FROZENSET => {
                    let from = self.pop_mark()?;
                    self.gather(Tag::FrozenSet, from)?;
                }
                op::TUPLE => {
                    let from = self.pop_mark()?;
                    self.gather(Tag::Tuple, from)?;
                }
                op::TUPLE1 => self.gather(Tag::Tuple, self.down(1)?)?,
                op::TUPLE2 => self.gather(Tag::Tuple, self.down(2)?)?,
                op::TUPLE3 => self.gather(Tag::Tuple, self.down(3)?)?,
                op::APPEND => self.fill(Tag::List, self.down(1)?)?,
                op::APPENDS => {
                    let from = self.pop_mark()?;
                    self.fill(Tag::List, from)?;
                }
                op::SETITEM => self.fill(Tag::Dict, self.down(2)?)?,
                op::SETITEMS => {
                    let from = self.pop_mark()?;
                    self.fill(Tag::Dict, from)?;
                }
                op::ADDITEMS => {
                    let from = self.pop_mark()?;
                    self.fill(Tag::Set, from)?;
                }

                op::GLOBAL => {
                    let module = cursor.text_line()?;
                    let name = cursor.text_line()?;
                    let (module, name) = (self.arena.add(module), self.arena.add(name));
                    self.add(RawNode::new(Tag::Global, module.0, name.0));
                }
                op::STACK_GLOBAL => self.stack_global(cursor.pickle)?,
                op::REDUCE => self.make(Tag::Reduce)?,
                op::NEWOBJ => self.make(Tag::NewObj)?,
                op::NEWOBJ_EX => self.make_ex()?,
                op::BUILD => self.build()?,

                op::MEMOIZE => {
                    let top = self.top()?;
                    self.memo.push(top);
                }
                op::BINGET => {
                    let [index] = cursor.argument()?;
                    self.get_values::<2>(index.into(), cursor, &mut left)?;
                }
                op::LONG_BINGET => {
                    let index = u32::from_le_bytes(cursor.argument()?);
                    self.get_values::<5>(index, cursor, &mut left)?;
                }
                _ => return Err(OpcodeError::NotUnderstood),
            }
        }
        cursor.opcode = cursor.rest;
        Err(OpcodeError::TooMany)
    }

    fn stop(&mut self, left: usize) -> Result<NodeId, OpcodeError> {
        match (self.stack.as_slice(), left) {
            (&[root], 0) if self.marks.is_empty() => Ok(root),
            ([_], 1..) => Err(OpcodeError::Trailing(left)),
            (stack, _) => Err(OpcodeError::Unfinished(stack.len() + self.marks.len())),
        }
    }

    // Values.

    fn tag(&self, id: NodeId) -> Tag {
        self.arena.nodes[id.0 as usize].tag
    }

    #[inline(always)]
    fn push(&mut self, id: NodeId) {
        self.stack.push(id);
    }

    #[inline(always)]
    fn add(&mut self, raw: RawNode) {
        let id = self.arena.add(raw);
        self.push(id);
    }

    fn int(&mut self, int: i64) {
        self.add(RawNode::of_word(Tag::Int, int as u64));
    }

    fn long(&mut self, (bytes, long): (&[u8], RawNode)) {
        if bytes.len() > 8 {
            return self.add(long);
        }
        let negative = bytes.last().is_some_and(|byte| *byte >= 0x80);
        let mut word = [if negative { 0xff } else { 0 }; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        self.int(i64::from_le_bytes(word));
    }

    #[inline(always)]
    fn str(&mut self, (bytes, mut text): (&[u8], RawNode)) -> Result<(), OpcodeError> {
        // Nearly all texts are ASCII, which is much cheaper to check.
        text.is_ascii = bytes.is_ascii();
        if !text.is_ascii && !is_text(bytes) {
            return Err(OpcodeError::BadText);
        }
        self.add(text);
        Ok(())
    }

    // The stack.

    fn top(&self) -> Result<NodeId, OpcodeError> {
        Ok(self.stack[self.down(1)?])
    }

    /// The stack position of the topmost `count` values.
    #[inline]
    fn down(&self, count: usize) -> Result<usize, OpcodeError> {
        match self.stack.len().checked_sub(count) {
            Some(from) if from >= self.fence => Ok(from),
            _ => Err(OpcodeError::NoValue),
        }
    }

    fn pop<const N: usize>(&mut self) -> Result<[NodeId; N], OpcodeError> {
        let from = self.down(N)?;
        let mut values = [NONE; N];
        values.copy_from_slice(&self.stack[from..]);
        self.stack.truncate(from);
        Ok(values)
    }

    /// Pops the last mark, and returns the stack position of the values above it.
    #[inline]
    fn pop_mark(&mut self) -> Result<usize, OpcodeError> {
        let from = self.marks.pop().ok_or(OpcodeError::NoMark)?;
        self.fence = self.marks.last().map_or(0, |height| *height as usize);
        Ok(from as usize)
    }

    /// Makes a parent of the values from this stack position on.
    #[inline]
    fn gather(&mut self, tag: Tag, from: usize) -> Result<(), OpcodeError> {
        let children = &self.stack[from..];
        let id = match (tag, children.len()) {
            (Tag::Tuple, 0) => EMPTY_TUPLE,
            _ => self.arena.add_parent(tag, children),
        };
        self.stack.truncate(from);
        self.push(id);
        Ok(())
    }

    /// Moves the values from this stack position on into the value below them: a parent of this kind, or an object that
    /// acts as one.
    #[inline]
    fn fill(&mut self, kind: Tag, from: usize) -> Result<(), OpcodeError> {
        if from <= self.fence {
            return Err(OpcodeError::NoValue);
        }
        let (target, items) = (self.stack[from - 1], &self.stack[from..]);
        if kind == Tag::Dict && !items.len().is_multiple_of(2) {
            return Err(OpcodeError::WrongKind);
        }
        if self.tag(target) == kind {
            self.arena.extend(target, items);
        } else {
            let change = match kind {
                Tag::List => Tag::Append,
                Tag::Dict => Tag::SetItems,
                _ => return Err(OpcodeError::WrongKind),
            };
            let items = self.arena.add_parent(kind, items);
            self.change(target, change, items)?;
        }
        self.stack.truncate(from);
        Ok(())
    }

    // Objects.

    fn stack_global(&mut self, pickle: &[u8]) -> Result<(), OpcodeError> {
        let names: [NodeId; 2] = self.pop()?;
        for id in names {
            let name = self.arena.nodes[id.0 as usize];
            if name.tag != Tag::Str {
                return Err(OpcodeError::WrongKind);
            }
            if std::str::from_utf8(&pickle[name.a as usize..][..name.b as usize]).is_err() {
                return Err(OpcodeError::BadText);
            }
        }
        self.add(RawNode::new(Tag::Global, names[0].0, names[1].0));
        Ok(())
    }

    #[inline]
    fn make(&mut self, tag: Tag) -> Result<(), OpcodeError> {
        let [callable, args] = self.pop()?;
        let maker = self.tag(callable);
        if (maker != Tag::Global && !maker.is_object()) || self.tag(args) != Tag::Tuple {
            return Err(OpcodeError::WrongKind);
        }
        self.add(RawNode::new(tag, callable.0, args.0));
        Ok(())
    }

    fn make_ex(&mut self) -> Result<(), OpcodeError> {
        let [class, args, kwargs] = self.pop()?;
        if [class, args, kwargs].map(|id| self.tag(id)) != [Tag::Global, Tag::Tuple, Tag::Dict] {
            return Err(OpcodeError::WrongKind);
        }
        let at = self.arena.children.len() as u32;
        self.arena.children.extend([args, kwargs]);
        self.add(RawNode::new(Tag::NewObjEx, class.0, at));
        Ok(())
    }

    #[inline]
    fn build(&mut self) -> Result<(), OpcodeError> {
        let [object, state] = self.pop()?;
        self.change(object, Tag::Build, state)?;
        self.push(object);
        Ok(())
    }

    /// Changes an object in place, so that every reference to it, also in the memo, sees the change: the node becomes
    /// the change, and its old content moves to a new node.
    #[inline]
    fn change(&mut self, object: NodeId, change: Tag, with: NodeId) -> Result<(), OpcodeError> {
        let was = self.arena.nodes[object.0 as usize];
        if !was.tag.is_object() {
            return Err(OpcodeError::WrongKind);
        }
        // A value that changes later is no longer like the others.
        if self.runs.last().is_some_and(|run| object.0 <= run.last_node()) {
            self.runs.clear();
        }
        let moved = self.arena.add(RawNode { shared: 0, ..was });
        self.arena.nodes[object.0 as usize] =
            RawNode { shared: was.shared, ..RawNode::new(change, moved.0, with.0) };
        Ok(())
    }

    // The memo.

    /// Marks a node that is referred to again. A value that has such a node is no longer like the others.
    #[inline]
    fn share(&mut self, id: NodeId) {
        let is_first = self.arena.nodes[id.0 as usize].shared == 0;
        if is_first && self.runs.iter().any(|run| run.has(id)) {
            self.runs.clear();
        }
        self.arena.share(id);
    }

    #[inline]
    fn get(&mut self, index: u32) -> Result<NodeId, OpcodeError> {
        match self.memo.get(index as usize) {
            Some(&id) => {
                self.share(id);
                self.push(id);
                Ok(id)
            }
            None => Err(OpcodeError::NoMemo(index)),
        }
    }
}
