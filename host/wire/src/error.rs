//! Why a frame is not understood, and why its rows cannot be taken, joined or edited. Neither is fatal: the frame's
//! bytes are still there, and go on as they came.

use afterbay_pickle::{ParseError, WriteError};
use thiserror::Error;

use crate::bounds::{MAX_EXPANSION, MAX_FRAME_BYTES};
use crate::kind::Kind;

/// Why a frame is not understood.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// Longer than a frame may be.
    #[error("frame of {bytes} bytes is over the limit of {MAX_FRAME_BYTES}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Neither a pickle nor a msgpack array.
    #[error("frame begins with {head:02x?}, neither a pickle nor a msgpack struct")]
    NotAFrame {
        /// Its first bytes, at most four.
        head: Vec<u8>,
    },
    /// The msgpack is broken.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// A msgpack batch whose length no layout has.
    #[error("{tag} of {elements} elements has no layout; a layout file can be given")]
    UnknownLayout {
        /// Its class.
        tag: String,
        /// Its elements, the tag counted.
        elements: u64,
    },
    /// A column that Afterbay must understand is not what it should be.
    #[error("column {name:?} is not {expected}")]
    Column {
        /// Its name.
        name: &'static str,
        /// What it should be.
        expected: &'static str,
    },
    /// A cell of a column that Afterbay must understand is not what it should be.
    #[error("column {name:?} row {row} is not {expected}")]
    Cell {
        /// The column's name.
        name: &'static str,
        /// The row.
        row: u32,
        /// What it should be.
        expected: &'static str,
    },
    /// A pickle's column says the same large values over and over.
    #[error("column {name:?} comes to more than {MAX_EXPANSION} times the frame's bytes")]
    Expands {
        /// Its name.
        name: &'static str,
    },
    /// The pickle cannot be read.
    #[error(transparent)]
    Pickle(#[from] ParseError),
    /// The pickle is no object with named fields.
    #[error("pickle is not an object with named fields")]
    NotAnObject,
}

impl WireError {
    /// The kind of error in a word or two, for metrics and for telling like from like.
    pub fn label(&self) -> &'static str {
        match self {
            WireError::TooLong { .. } => "too long",
            WireError::NotAFrame { .. } => "not a frame",
            WireError::Pack(_) => "msgpack",
            WireError::UnknownLayout { .. } => "unknown layout",
            WireError::Column { .. } => "column",
            WireError::Cell { .. } => "cell",
            WireError::Expands { .. } => "expands",
            WireError::Pickle(_) => "pickle",
            WireError::NotAnObject => "not an object",
        }
    }
}

/// What is wrong with the bytes of a msgpack frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PackError {
    /// A value is cut off, or declares more than what follows.
    #[error("msgpack value at offset {at} needs {needed} bytes, {left} are left")]
    Cut {
        /// Where the value begins.
        at: usize,
        /// Bytes it needs at the least, its header's counted.
        needed: u64,
        /// From there to the frame's end.
        left: usize,
    },
    /// The byte that msgpack never uses.
    #[error("msgpack value at offset {at} is the unused type 0xc1")]
    Unused {
        /// Where it stands.
        at: usize,
    },
    /// Bytes after the frame's value.
    #[error("msgpack frame is followed by {bytes} bytes")]
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// A struct without a class name.
    #[error("msgpack struct does not begin with its class name")]
    NoTag,
}

/// Why rows cannot be taken, joined or edited. The batches they are in are as they were.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RowsError {
    /// Rows of one request cannot become one row: this column cannot be joined, or is not known.
    #[error("column {name:?} of request {rid:?} cannot be joined")]
    Column {
        /// The column's name.
        name: String,
        /// The request's.
        rid: String,
    },
    /// A column has rows in one part, and has none in another where the scheduler would have written some.
    #[error("column {name:?} has rows in one part and none in another")]
    Shape {
        /// The column's name.
        name: String,
    },
    /// A column is not one entry a row, so the frame must be carried whole.
    #[error("column {name:?} is not one entry a row")]
    Split {
        /// The column's name.
        name: String,
    },
    /// Rows that are not there, or not in ascending order, each once.
    #[error("row {row} is not next in ascending order, or not among {rows} rows")]
    Row {
        /// The row.
        row: u32,
        /// How many the batch has.
        rows: u32,
    },
    /// No rows were given.
    #[error("no rows were given")]
    NoRows,
    /// Parts of another kind, wire or layout than the first.
    #[error("part {part} is {it}, the first is {first}: they cannot be joined")]
    Mixed {
        /// The part.
        part: usize,
        /// What it is.
        it: String,
        /// What the first is.
        first: String,
    },
    /// A request's row after its last one.
    #[error("request {rid:?} has a row after its last one")]
    AfterFinish {
        /// The request's name.
        rid: String,
    },
    /// An edit of a column that this batch does not have.
    #[error("column {name:?} is not there to be edited")]
    NoColumn {
        /// The column's name.
        name: &'static str,
    },
    /// A pickle's column says the same large values over and over.
    #[error("column {name:?} comes to more than {MAX_EXPANSION} times the parts' bytes")]
    Expands {
        /// Its name.
        name: String,
    },
    /// A pickle inside a msgpack frame cannot be read.
    #[error("column {name:?} holds a pickle that cannot be read: {error}")]
    Wrapped {
        /// The column's name.
        name: String,
        /// Why.
        error: ParseError,
    },
    /// Rows that are not a BatchTokenIDOutput's, so that no detokenizer is before them.
    #[error("{kind} has no detokenizer before it")]
    NotTokenIds {
        /// What it is.
        kind: Kind,
    },
    /// The BatchStrOutput that the reader of this BatchTokenIDOutput knows is not known here.
    #[error("no layout of BatchStrOutput is known beside this BatchTokenIDOutput of {fields} fields")]
    NoTextLayout {
        /// How many fields the BatchTokenIDOutput has.
        fields: usize,
    },
    /// A column of which the detokenizer makes something that is not known here.
    #[error("column {name:?} cannot pass the detokenizer by: what that makes of it is not known")]
    NotByDetokenizer {
        /// The column's name.
        name: String,
    },
    /// A value of one encoding was to be written into the other. Parts are of one encoding, so this cannot happen.
    #[error("value is of the other encoding")]
    Foreign,
    /// A pickle could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// What was written is over a bound when it is read back.
    #[error("the batch that was written is not understood: {0}")]
    Written(Box<WireError>),
}
