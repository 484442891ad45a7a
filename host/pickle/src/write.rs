//! Nodes of trees, and values of the caller's own, to a pickle that CPython loads. The memo is numbered anew: only
//! what a source pickle refers to again is put there, and equal globals of several sources are put there once.

use bytes::Bytes;
use thiserror::Error;

use crate::bounds::{MAX_DEPTH, MAX_PICKLE_BYTES};
use crate::copy::{Globals, Walk};
use crate::emit::{Emit, Memo};
use crate::opcode as op;
use crate::tree::{Node, NodeId, Tree};

/// Why a pickle was not written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WriteError {
    /// A node is nested deeper than can be written.
    #[error("node is nested deeper than the limit of {MAX_DEPTH}")]
    TooDeep,
    /// The pickle became too long.
    #[error("pickle of {bytes} bytes is over the limit of {MAX_PICKLE_BYTES}")]
    TooLong {
        /// What was written until then.
        bytes: usize,
    },
    /// A tuple or an object's arguments contain what is made of them. (A list or a dict may contain itself.)
    #[error("value is made of itself")]
    Cycle,
    /// Keys and values were written into a dict, and one was left over.
    #[error("dict of {0} keys and values has a key without a value")]
    Unpaired(u32),
    /// Not exactly one value was written when the pickle was finished.
    #[error("pickle has {0} values, must have one")]
    NotOneValue(u32),
    /// The object after whose model one should be written has no named fields.
    #[error("object has no fields by name")]
    NoFields,
}

/// A tree from which a writer copies.
#[derive(Clone, Copy, Debug)]
pub struct Source(usize);

/// Writes one pickle. Values are written one after the other, what is inside a container by the closure given.
pub struct Writer<'t> {
    emit: Emit,
    sources: Vec<SourceTree<'t>>,
    globals: Globals<'t>,
    /// `'q'`, of the arrays that are not copied.
    typecode: Option<Memo>,
    /// Values written into the container that is open, or on the top.
    values: u32,
}

struct SourceTree<'t> {
    tree: &'t Tree,
    /// By `Raw::shared` - 1: where the node stands in the memo, once it was written.
    memo: Vec<Option<Memo>>,
}

impl<'t> Writer<'t> {
    /// A pickle of protocol 4 or 5; a lower protocol is written as 4, which every Python that is alive reads.
    pub fn new(protocol: u8) -> Writer<'t> {
        Writer {
            emit: Emit::new(protocol.clamp(4, 5)),
            sources: Vec::new(),
            globals: Globals::default(),
            typecode: None,
            values: 0,
        }
    }

    /// Makes room at once for a pickle of about so many bytes.
    pub fn reserve(&mut self, bytes: usize) {
        self.emit.bytes.reserve(bytes);
    }

    /// A tree to copy from. Given once per tree: values shared inside a source are written once.
    pub fn source(&mut self, tree: &'t Tree) -> Source {
        self.sources.push(SourceTree { tree, memo: vec![None; tree.arena.shared as usize] });
        Source(self.sources.len() - 1)
    }

    /// A node with all that is below it.
    pub fn copy(&mut self, source: Source, id: NodeId) -> Result<(), WriteError> {
        self.values += 1;
        self.walk(source).node(id, 0)?;
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

    /// Token ids as SGLang sends them from 0.5.13 on: an `array('q')`.
    pub fn id_array(&mut self, ids: &[i64]) {
        self.values += 1;
        self.globals.put(&mut self.emit, "array", "_array_reconstructor");
        self.emit.opcode(op::MARK);
        self.globals.put(&mut self.emit, "array", "array");
        match self.typecode {
            Some(memo) => self.emit.get(memo),
            None => {
                self.emit.str(b"q");
                self.typecode = Some(self.emit.memoize());
            }
        }
        self.emit.int(12); // signed, 64 bits, little endian
        self.emit.id_bytes(ids);
        self.emit.opcode(op::TUPLE);
        self.emit.opcode(op::REDUCE);
    }

    /// Token ids as SGLang sent them up to 0.5.12: a list of int.
    pub fn id_list(&mut self, ids: &[i64]) -> Result<(), WriteError> {
        self.list(|writer| {
            ids.iter().for_each(|id| writer.int(*id));
            Ok(())
        })
    }

    /// A list of the values that `items` writes.
    pub fn list(
        &mut self,
        items: impl FnOnce(&mut Self) -> Result<(), WriteError>,
    ) -> Result<(), WriteError> {
        self.emit.opcode(op::EMPTY_LIST);
        if self.inside(items)? > 0 {
            self.emit.opcode(op::APPENDS);
        }
        Ok(())
    }

    /// A tuple of the values that `items` writes.
    pub fn tuple(
        &mut self,
        items: impl FnOnce(&mut Self) -> Result<(), WriteError>,
    ) -> Result<(), WriteError> {
        let opcode = if self.inside(items)? > 0 { op::TUPLE } else { op::EMPTY_TUPLE };
        self.emit.opcode(opcode);
        Ok(())
    }

    /// A dict of what `pairs` writes: a key, its value, a key, …
    pub fn dict(
        &mut self,
        pairs: impl FnOnce(&mut Self) -> Result<(), WriteError>,
    ) -> Result<(), WriteError> {
        self.emit.opcode(op::EMPTY_DICT);
        match self.inside(pairs)? {
            0 => Ok(()),
            values if values % 2 != 0 => Err(WriteError::Unpaired(values)),
            _ => {
                self.emit.opcode(op::SETITEMS);
                Ok(())
            }
        }
    }

    /// An object of the class and the shape of another one that has [fields](crate::Object::fields), with the fields
    /// that `fields` writes: a name, its value, a name, …
    pub fn object(
        &mut self,
        source: Source,
        model: NodeId,
        fields: impl FnOnce(&mut Self) -> Result<(), WriteError>,
    ) -> Result<(), WriteError> {
        let tree = self.sources[source.0].tree;
        tree.object(model).and_then(|object| object.fields).ok_or(WriteError::NoFields)?;
        match tree.node(model) {
            Node::Build { object, .. } => {
                self.walk(source).node(object, 0)?;
                self.dict(fields)?;
                self.emit.opcode(op::BUILD);
            }
            Node::Reduce { callable, args } => {
                let class = tree.items(args).and_then(<[NodeId]>::first).ok_or(WriteError::NoFields)?;
                self.walk(source).node(callable, 0)?;
                self.walk(source).node(*class, 0)?;
                self.dict(fields)?;
                self.emit.opcode(op::TUPLE2);
                self.emit.opcode(op::REDUCE);
            }
            _ => return Err(WriteError::NoFields),
        }
        Ok(())
    }

    /// The pickle, of the one value written.
    pub fn finish(self) -> Result<Bytes, WriteError> {
        self.check_length()?;
        match self.values {
            1 => Ok(self.emit.finish().into()),
            values => Err(WriteError::NotOneValue(values)),
        }
    }

    /// Writes the values of a container after a mark, and says how many; no mark if none.
    fn inside(&mut self, write: impl FnOnce(&mut Self) -> Result<(), WriteError>) -> Result<u32, WriteError> {
        let outside = std::mem::take(&mut self.values);
        self.emit.opcode(op::MARK);
        write(self)?;
        if self.values == 0 {
            self.emit.bytes.pop();
        }
        Ok(std::mem::replace(&mut self.values, outside + 1))
    }

    fn check_length(&self) -> Result<(), WriteError> {
        let bytes = self.emit.bytes.len();
        if bytes > MAX_PICKLE_BYTES { Err(WriteError::TooLong { bytes }) } else { Ok(()) }
    }

    fn walk(&mut self, source: Source) -> Walk<'_, 't> {
        let SourceTree { tree, memo } = &mut self.sources[source.0];
        Walk { tree, memo, emit: &mut self.emit, globals: &mut self.globals }
    }
}

impl Tree {
    /// The whole tree as a pickle again, of the same protocol (4 if it was lower).
    pub fn write(&self) -> Result<Bytes, WriteError> {
        let mut writer = Writer::new(self.protocol);
        writer.reserve(self.pickle.len());
        let source = writer.source(self);
        writer.copy(source, self.root)?;
        writer.finish()
    }
}
