//! Reads pickles as trees of values, and writes them, without executing them: no name is looked up and no code runs.
//!
//! [`Parser`] reads a pickle into a [`Tree`], an arena of nodes with spans of the pickle's bytes. [`PickleWriter`] writes
//! nodes of one or several trees, and other values, as a new pickle that CPython loads. The crate knows pickles and the
//! few classes whose form CPython or msgspec defines (`array.array`, `msgspec._utils.rebuild`). The wire crate knows
//! columns and rows.

mod bounds;
mod opcode;

mod error;

// Trees.
mod arena;
mod tree;

mod object;
mod spare;

// Reading.
mod cursor;
mod repeat;

mod parse;

// Writing.
mod emit;

mod copy;
mod form;
mod write;

pub use arena::NodeId;
pub use bounds::{MAX_DEPTH, MAX_OPCODES, MAX_PICKLE_BYTES};
pub use error::{OpcodeError, ParseError, PickleWriteError};
pub use object::Object;
pub use parse::Parser;
pub use tree::{Node, Pairs, Tree};
pub use write::{PickleWriter, SourceId};
