//! Writes nodes of a tree as opcodes, with everything below them.

use std::collections::HashMap;
use std::ops::Range;

use crate::pickle::arena::{HEAD_NODES, NodeId, RawNode, Tag};
use crate::pickle::bounds::{MAX_ALIKE_BYTES, MAX_DEPTH, MAX_FORMS, MIN_ALIKE};
use crate::pickle::emit::{Emit, Memo};
use crate::pickle::error::PickleWriteError;
use crate::pickle::form::{AlikeValues, Content, Form};
use crate::pickle::opcode as op;
use crate::pickle::tree::{Node, Tree};

/// The globals in the memo, by module and name.
#[derive(Default)]
pub(crate) struct Globals<'t>(HashMap<(&'t str, &'t str), Memo>);

/// A copy from one tree.
pub(crate) struct TreeCopy<'w, 't> {
    pub tree: &'t Tree,
    /// The memo index of each shared node that was written, by `RawNode::shared` - 1.
    pub memo: &'w mut [Option<Memo>],
    pub emit: &'w mut Emit,
    pub globals: &'w mut Globals<'t>,
    /// The contents of the value that is written, if its form is noted.
    pub contents: Option<Vec<Content>>,
}

impl<'t> Globals<'t> {
    /// Writes a global, or gets it from the memo.
    pub fn put(&mut self, emit: &mut Emit, module: &'t str, name: &'t str) -> Memo {
        if let Some(memo) = self.0.get(&(module, name)) {
            emit.get(*memo);
            return *memo;
        }
        emit.str(module.as_bytes());
        emit.str(name.as_bytes());
        emit.opcode(op::STACK_GLOBAL);
        let memo = emit.memoize();
        self.0.insert((module, name), memo);
        memo
    }
}

impl TreeCopy<'_, '_> {
    /// Whether the node is `None`, a bool or an int of one byte without identity.
    pub fn is_small(&self, id: NodeId) -> bool {
        id.0 < HEAD_NODES && self.tree.raw(id).tag != Tag::Tuple
    }

    /// Writes a node that [is small](TreeCopy::is_small) this often.
    pub fn repeat(&mut self, id: NodeId, count: usize) {
        let raw = self.tree.raw(id);
        match raw.tag {
            Tag::None => self.emit.repeat(&[op::NONE], count),
            Tag::Bool => self.emit.repeat(&[if raw.a != 0 { op::NEWTRUE } else { op::NEWFALSE }], count),
            _ => self.emit.repeat(&[op::BININT1, raw.a as u8], count),
        }
    }

    /// Writes the nodes in these ranges, `count` in all. Those alike are written at once.
    pub fn all(
        &mut self,
        nodes: &[NodeId],
        ranges: impl Iterator<Item = Range<u32>>,
        count: usize,
    ) -> Result<(), PickleWriteError> {
        let mut form: Option<Form> = None;
        let mut learns_left = if count < MIN_ALIKE { 0 } else { MAX_FORMS };
        let mut ids = Vec::with_capacity(count);
        for range in ranges {
            match &nodes[range.start as usize..range.end as usize] {
                &[one] => ids.push(one),
                some => ids.extend_from_slice(some),
            }
        }
        let mut rest = ids.as_slice();
        loop {
            if let Some(form) = &form {
                let (alike, others) = rest.split_at(form.count(self.tree, rest));
                form.write(self.tree, alike, &mut self.emit.bytes);
                rest = others;
            }
            let Some((&id, others)) = rest.split_first() else { return Ok(()) };
            rest = others;
            let (start, memoized) = (self.emit.bytes.len(), self.emit.memoized());
            let learns = learns_left > 0 && id.0 >= HEAD_NODES;
            learns_left -= usize::from(learns);
            let alike = if learns { AlikeValues::of(self.tree, id) } else { None };
            self.contents = alike.as_ref().map(|_| Vec::new());
            self.node(id, 0)?;
            let bytes = &self.emit.bytes[start..];
            if let (Some(alike), Some(mut contents)) = (alike, self.contents.take())
                // A value with new memo entries is written otherwise the next time.
                && memoized == self.emit.memoized()
                && bytes.len() <= MAX_ALIKE_BYTES
            {
                contents.iter_mut().for_each(|content| content.at -= start);
                form = Some(Form { alike, value: id, contents, bytes: bytes.to_vec() });
            }
        }
    }

    /// Notes the content that was just written.
    fn note(&mut self, node: NodeId, length: Option<usize>) {
        if let Some(contents) = &mut self.contents {
            contents.push(Content { node, at: self.emit.bytes.len() - length.unwrap_or(8), length });
        }
    }

    /// Writes a node. A value that can contain itself is memoized before its items, as in CPython, so the copy ends.
    /// Only a shared node has two parents, so the copy is linear.
    #[inline]
    pub fn node(&mut self, id: NodeId, depth: usize) -> Result<(), PickleWriteError> {
        let raw = self.tree.raw(id);
        // Most nodes are one of these, which have no identity to memoize.
        match raw.tag {
            Tag::None => self.emit.opcode(op::NONE),
            Tag::Bool => self.emit.bool(raw.a != 0),
            Tag::Int => self.emit.int(raw.word() as i64),
            _ => match self.written(raw) {
                Some(memo) => self.emit.get(memo),
                None => return self.larger(id, depth),
            },
        }
        Ok(())
    }

    fn larger(&mut self, id: NodeId, depth: usize) -> Result<(), PickleWriteError> {
        let raw = self.tree.raw(id);
        let depth = depth + 1;
        if depth > MAX_DEPTH {
            return Err(PickleWriteError::TooDeep);
        }
        let (a, b) = (NodeId(raw.a), NodeId(raw.b));
        match raw.tag {
            Tag::None | Tag::Bool | Tag::Int => {}
            Tag::BigInt => self.emit.big_int(self.tree.span(raw)),
            Tag::Float => {
                self.emit.float(f64::from_bits(raw.word()));
                self.note(id, None);
            }
            Tag::Str => {
                self.emit.str(self.tree.span(raw));
                self.note(id, Some(raw.b as usize));
            }
            Tag::Bytes => {
                self.emit.bytes(self.tree.span(raw));
                self.note(id, Some(raw.b as usize));
            }
            Tag::ByteArray => self.emit.byte_array(self.tree.span(raw)),
            Tag::List => {
                self.emit.opcode(op::EMPTY_LIST);
                self.memoize(raw)?;
                return self.fill(raw, op::APPENDS, depth);
            }
            Tag::Dict => {
                self.emit.opcode(op::EMPTY_DICT);
                self.memoize(raw)?;
                return self.fill(raw, op::SETITEMS, depth);
            }
            Tag::Set => {
                self.emit.opcode(op::EMPTY_SET);
                self.memoize(raw)?;
                return self.fill(raw, op::ADDITEMS, depth);
            }
            Tag::FrozenSet => {
                self.emit.opcode(op::MARK);
                self.nodes(self.tree.arena.children(raw), depth)?;
                self.emit.opcode(op::FROZENSET);
            }
            Tag::Tuple => {
                let (mark, opcode) = match raw.b {
                    0 => (false, op::EMPTY_TUPLE),
                    1 => (false, op::TUPLE1),
                    2 => (false, op::TUPLE2),
                    3 => (false, op::TUPLE3),
                    _ => (true, op::TUPLE),
                };
                if mark {
                    self.emit.opcode(op::MARK);
                }
                self.nodes(self.tree.arena.children(raw), depth)?;
                self.emit.opcode(opcode);
            }
            Tag::Global => {
                if let Node::Global { module, name } = self.tree.node(id) {
                    let memo = self.globals.put(self.emit, module, name);
                    if raw.shared != 0 {
                        *self.slot(raw) = Some(memo);
                    }
                }
                return Ok(());
            }
            Tag::Reduce => {
                self.nodes(&[a, b], depth)?;
                self.emit.opcode(op::REDUCE);
            }
            Tag::NewObj => {
                self.nodes(&[a, b], depth)?;
                self.emit.opcode(op::NEWOBJ);
            }
            Tag::NewObjEx => {
                self.node(a, depth)?;
                self.nodes(&self.tree.arena.children[raw.b as usize..][..2], depth)?;
                self.emit.opcode(op::NEWOBJ_EX);
            }
            Tag::Build | Tag::Append | Tag::SetItems => return self.changed(raw, depth),
        }
        self.memoize(raw)
    }

    fn nodes(&mut self, nodes: &[NodeId], depth: usize) -> Result<(), PickleWriteError> {
        nodes.iter().try_for_each(|id| self.node(*id, depth))
    }

    /// Writes a parent's children into the value that was just written.
    fn fill(&mut self, parent: RawNode, opcode: u8, depth: usize) -> Result<(), PickleWriteError> {
        let children = self.tree.arena.children(parent);
        if !children.is_empty() {
            self.emit.opcode(op::MARK);
            self.nodes(children, depth)?;
            self.emit.opcode(opcode);
        }
        Ok(())
    }

    /// Writes an object as it was made, memoizes it, and then writes its states and items in order.
    fn changed(&mut self, last: RawNode, depth: usize) -> Result<(), PickleWriteError> {
        let mut before = Vec::new();
        let mut object = NodeId(last.a);
        while self.tree.raw(object).tag.is_change() {
            before.push(self.tree.raw(object));
            object = NodeId(self.tree.raw(object).a);
        }
        self.node(object, depth)?;
        self.memoize(last)?;
        for change in before.into_iter().rev().chain([last]) {
            let with = NodeId(change.b);
            match change.tag {
                Tag::Append => self.fill(self.tree.raw(with), op::APPENDS, depth)?,
                Tag::SetItems => self.fill(self.tree.raw(with), op::SETITEMS, depth)?,
                _ => {
                    self.node(with, depth)?;
                    self.emit.opcode(op::BUILD);
                }
            }
        }
        Ok(())
    }

    fn memoize(&mut self, raw: RawNode) -> Result<(), PickleWriteError> {
        if raw.shared == 0 {
            return Ok(());
        }
        let memo = self.emit.memoize();
        match self.slot(raw).replace(memo) {
            None => Ok(()),
            Some(_) => Err(PickleWriteError::Cycle),
        }
    }

    /// The memo index of the node, if it is shared and was written.
    #[inline]
    fn written(&self, raw: RawNode) -> Option<Memo> {
        let slot = raw.shared.checked_sub(1)?;
        self.memo[slot as usize]
    }

    fn slot(&mut self, raw: RawNode) -> &mut Option<Memo> {
        &mut self.memo[raw.shared as usize - 1]
    }
}
