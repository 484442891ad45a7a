//! A pickle as a tree of values, read and written again; nothing is ever unpickled: no name is looked up, no code
//! is run.
//!
//! [`Parser`] reads a pickle's bytes into a [`Tree`], an arena of nodes that hold spans of those bytes; [`Writer`]
//! writes nodes of one or several trees, and values of the caller's own, as a new pickle that CPython loads.
//! This crate knows pickles and the few classes whose shape is CPython's or msgspec's (`array.array`,
//! `msgspec._utils.rebuild`); what a column or a row is, is the wire crate's, where a batch goes next.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod bounds;
mod error;
mod opcode;

// A pickle's bytes are read,
mod cursor;
mod parse;

// are a tree,
mod arena;
mod object;
mod spare;
mod tree;

// and nodes of trees are written.
mod copy;
mod emit;
mod write;

pub use bounds::{MAX_DEPTH, MAX_OPCODES, MAX_PICKLE_BYTES};
pub use error::{Fault, ParseError};
pub use object::Object;
pub use parse::Parser;
pub use tree::{Node, NodeId, Pairs, Tree};
pub use write::{Source, WriteError, Writer};
