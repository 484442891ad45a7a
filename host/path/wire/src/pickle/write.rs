//! Writes nodes of trees and other values as a pickle that CPython loads. The memo is numbered anew: it has only values
//! that a source refers to again, and equal globals of several sources once.

use std::ops::Range;

use bytes::Bytes;

use crate::pickle::arena::NodeId;
use crate::pickle::bounds::MAX_PICKLE_BYTES;
use crate::pickle::copy::{Globals, TreeCopy};
use crate::pickle::emit::{Emit, Memo};
use crate::pickle::error::PickleWriteError;
use crate::pickle::opcode as op;
use crate::pickle::tree::{Node, Tree, are_all};

/// A tree that a writer copies from.
#[derive(Clone, Copy, Debug)]
pub struct SourceId(usize);

/// Writes one pickle. Values are written in order; a closure writes the values inside a container.
pub struct PickleWriter<'t> {
    emit: Emit,
    sources: Vec<SourceTree<'t>>,
    globals: Globals<'t>,
    /// The memo entries of `array._array_reconstructor`, `array.array` and `'q'`, after the first array that is not copied.
    arrays: Option<[Memo; 3]>,
    /// The number of values in the open container, or at the top level.
    values: u32,
}

struct SourceTree<'t> {
    tree: &'t Tree,
    /// The memo index of each shared node that was written, by `RawNode::shared` - 1.
    memo: Vec<Option<Memo>>,
}

impl<'t> PickleWriter<'t> {
    /// Starts a pickle of protocol 4 or 5. Protocols below 4 become 4, which every supported Python reads.
    pub fn new(protocol: u8) -> PickleWriter<'t> {
        PickleWriter {
            emit: Emit::new(protocol.clamp(4, 5)),
            sources: Vec::new(),
            globals: Globals::default(),
            arrays: None,
            values: 0,
        }
    }

    /// Reserves memory for a pickle of about this many bytes.
    pub fn reserve(&mut self, bytes: usize) {
        self.emit.bytes.reserve(bytes);
    }

    /// Adds a tree to copy from. Add each tree once: shared values are written once per source.
    pub fn source(&mut self, tree: &'t Tree) -> SourceId {
        self.sources.push(SourceTree { tree, memo: vec![None; tree.arena.shared as usize] });
        SourceId(self.sources.len() - 1)
    }

    /// Copies a node with everything below it.
    pub fn copy(&mut self, source: SourceId, id: NodeId) -> Result<(), PickleWriteError> {
        self.values += 1;
        self.walk(source).node(id, 0)?;
        self.check_length()
    }

    /// Copies as many nodes with everything below them: those of `nodes` in these ranges, in order.
    pub fn copy_ranges(
        &mut self,
        source: SourceId,
        nodes: &[NodeId],
        ranges: impl Iterator<Item = Range<u32>>,
        count: usize,
    ) -> Result<(), PickleWriteError> {
        self.values += count as u32;
        let mut copy = self.walk(source);
        // Most columns of flags and counts have one value. For a few of many nodes it takes longer to find out.
        let is_one = |id: &&NodeId| copy.is_small(**id) && count >= nodes.len() / 8 && are_all(nodes, **id);
        match nodes.first().filter(is_one) {
            Some(id) => copy.repeat(*id, count),
            None => copy.all(nodes, ranges, count)?,
        }
        self.check_length()
    }

    /// `None`.
    pub fn none(&mut self) {
        self.values += 1;
        self.emit.opcode(op::NONE);
    }

    /// A bool.
    pub fn bool(&mut self, value: bool) {
        self.values += 1;
        self.emit.bool(value);
    }

    /// An int.
    pub fn int(&mut self, int: i64) {
        self.values += 1;
        self.emit.int(int);
    }

    /// A float.
    pub fn float(&mut self, float: f64) {
        self.values += 1;
        self.emit.float(float);
    }

    /// A str.
    pub fn str(&mut self, text: &str) {
        self.values += 1;
        self.emit.str(text.as_bytes());
    }

    /// Bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.values += 1;
        self.emit.bytes(bytes);
    }

    /// A class or a function.
    pub fn global(&mut self, module: &'t str, name: &'t str) {
        self.values += 1;
        self.globals.put(&mut self.emit, module, name);
    }

    /// Writes token ids as SGLang 0.5.13 and later sends them: an `array('q')`.
    pub fn id_array(&mut self, ids: &[i64]) {
        self.array(|emit| emit.id_bytes(ids));
    }

    /// Writes token ids as [`PickleWriter::id_array`] does. `ids` are the little-endian bytes of ids that stand one after the
    /// other.
    pub fn id_array_of(&mut self, ids: &[&[u8]]) {
        self.array(|emit| emit.bytes_of(ids));
    }

    /// Writes an array of the ids that `bytes` writes as one value.
    fn array(&mut self, bytes: impl FnOnce(&mut Emit)) {
        self.values += 1;
        match self.arrays {
            Some([function, class, typecode]) => {
                self.emit.get(function);
                self.emit.opcode(op::MARK);
                self.emit.get(class);
                self.emit.get(typecode);
            }
            None => {
                let function = self.globals.put(&mut self.emit, "array", "_array_reconstructor");
                self.emit.opcode(op::MARK);
                let class = self.globals.put(&mut self.emit, "array", "array");
                self.emit.str(b"q");
                self.arrays = Some([function, class, self.emit.memoize()]);
            }
        }
        self.emit.int(12); // signed, 64 bits, little endian
        bytes(&mut self.emit);
        self.emit.opcode(op::TUPLE);
        self.emit.opcode(op::REDUCE);
    }

    /// Writes token ids as SGLang up to 0.5.12 sends them: a list of ints.
    pub fn id_list(&mut self, ids: &[i64]) -> Result<(), PickleWriteError> {
        self.list(|writer| {
            ids.iter().for_each(|id| writer.int(*id));
            Ok(())
        })
    }

    /// Writes a list of the values that `items` writes.
    pub fn list(
        &mut self,
        items: impl FnOnce(&mut Self) -> Result<(), PickleWriteError>,
    ) -> Result<(), PickleWriteError> {
        self.emit.opcode(op::EMPTY_LIST);
        if self.inside(items)? > 0 {
            self.emit.opcode(op::APPENDS);
        }
        Ok(())
    }

    /// Writes a tuple of the values that `items` writes.
    pub fn tuple(
        &mut self,
        items: impl FnOnce(&mut Self) -> Result<(), PickleWriteError>,
    ) -> Result<(), PickleWriteError> {
        let opcode = if self.inside(items)? > 0 { op::TUPLE } else { op::EMPTY_TUPLE };
        self.emit.opcode(opcode);
        Ok(())
    }

    /// Writes a dict of the keys and values that `pairs` writes in turn.
    pub fn dict(
        &mut self,
        pairs: impl FnOnce(&mut Self) -> Result<(), PickleWriteError>,
    ) -> Result<(), PickleWriteError> {
        self.emit.opcode(op::EMPTY_DICT);
        match self.inside(pairs)? {
            0 => Ok(()),
            values if values % 2 != 0 => Err(PickleWriteError::Unpaired(values)),
            _ => {
                self.emit.opcode(op::SETITEMS);
                Ok(())
            }
        }
    }

    /// Writes an object of the class and form of `model`, which must have [fields](crate::pickle::Object::fields). `fields`
    /// writes the names and values in turn.
    pub fn object(
        &mut self,
        source: SourceId,
        model: NodeId,
        fields: impl FnOnce(&mut Self) -> Result<(), PickleWriteError>,
    ) -> Result<(), PickleWriteError> {
        let tree = self.sources[source.0].tree;
        tree.object(model).and_then(|object| object.fields).ok_or(PickleWriteError::NoFields)?;
        match tree.node(model) {
            Node::Build { object, .. } => {
                self.walk(source).node(object, 0)?;
                self.dict(fields)?;
                self.emit.opcode(op::BUILD);
            }
            Node::Reduce { callable, args } => {
                let class = tree.items(args).and_then(<[NodeId]>::first).ok_or(PickleWriteError::NoFields)?;
                self.walk(source).node(callable, 0)?;
                self.walk(source).node(*class, 0)?;
                self.dict(fields)?;
                self.emit.opcode(op::TUPLE2);
                self.emit.opcode(op::REDUCE);
            }
            _ => return Err(PickleWriteError::NoFields),
        }
        Ok(())
    }

    /// Returns the pickle of the one value that was written.
    pub fn finish(self) -> Result<Bytes, PickleWriteError> {
        self.check_length()?;
        match self.values {
            1 => Ok(self.emit.finish().into()),
            values => Err(PickleWriteError::NotOneValue(values)),
        }
    }

    /// Returns the pickle of the one value that was written, with exactly this many bytes: unused bytes are opcodes that leave
    /// the value as it is. `None` if the pickle is longer.
    pub fn finish_with_length(mut self, length: usize) -> Result<Option<Bytes>, PickleWriteError> {
        if !self.emit.pad_to(length) {
            return Ok(None);
        }
        self.finish().map(Some)
    }

    /// Writes the values of a container after a mark, and returns their number. An empty container gets no mark.
    fn inside(
        &mut self,
        write: impl FnOnce(&mut Self) -> Result<(), PickleWriteError>,
    ) -> Result<u32, PickleWriteError> {
        let outside = std::mem::take(&mut self.values);
        self.emit.opcode(op::MARK);
        write(self)?;
        if self.values == 0 {
            self.emit.bytes.pop();
        }
        Ok(std::mem::replace(&mut self.values, outside + 1))
    }

    fn check_length(&self) -> Result<(), PickleWriteError> {
        let bytes = self.emit.bytes.len();
        if bytes > MAX_PICKLE_BYTES { Err(PickleWriteError::TooLong { bytes }) } else { Ok(()) }
    }

    fn walk(&mut self, source: SourceId) -> TreeCopy<'_, 't> {
        let SourceTree { tree, memo } = &mut self.sources[source.0];
        TreeCopy { tree, memo, emit: &mut self.emit, globals: &mut self.globals, contents: None }
    }
}

impl Tree {
    /// Writes the whole tree as a pickle of the same protocol, or 4 if it was lower.
    pub fn write(&self) -> Result<Bytes, PickleWriteError> {
        let mut writer = PickleWriter::new(self.protocol);
        writer.reserve(self.pickle.len());
        let source = writer.source(self);
        writer.copy(source, self.root)?;
        writer.finish()
    }
}
