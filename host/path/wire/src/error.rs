//! The errors of decoding a frame, and of taking, joining or editing rows. None is fatal: the frame's bytes remain and
//! can be forwarded unchanged.

use crate::pickle::{ParseError, PickleWriteError};
use afterbay_types::parts::PartsError;
use thiserror::Error;

use crate::bounds::{ID_MAX, MAX_EXPANSION, MAX_FRAME_BYTES, MAX_RID_BYTES};
use crate::kind::BatchKind;

/// The reason why a frame is not understood.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// The frame is too long.
    #[error("frame of {bytes} bytes is over the limit of {MAX_FRAME_BYTES}")]
    TooLong {
        /// The frame's length.
        bytes: usize,
    },
    /// The frame is neither a pickle nor a msgpack array.
    #[error("frame begins with {head:02x?}, neither a pickle nor a msgpack struct")]
    NotAFrame {
        /// The first bytes, at most four.
        head: Vec<u8>,
    },
    /// The msgpack is invalid.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// No layout has the length of this msgpack batch.
    #[error("{tag} of {elements} elements has no layout; the connector introduces it")]
    UnknownLayout {
        /// The batch's class.
        tag: String,
        /// The number of elements, including the tag.
        elements: u64,
    },
    /// No layout with this number of elements has the types of the batch's columns, or several have.
    #[error("{tag} of {elements} elements fits {}", fits(.versions))]
    Layout {
        /// The batch's class.
        tag: String,
        /// The number of elements, including the tag.
        elements: u64,
        /// The versions whose layouts fit. Empty: none.
        versions: String,
    },
    /// A column that Afterbay reads has another form.
    #[error("column {name:?} is not {expected}")]
    Column {
        /// The column's name.
        name: &'static str,
        /// The expected form.
        expected: &'static str,
    },
    /// A cell of a column that Afterbay reads has another type.
    #[error("column {name:?} row {row} is not {expected}")]
    Cell {
        /// The column's name.
        name: &'static str,
        /// The row.
        row: u32,
        /// The expected type.
        expected: &'static str,
    },
    /// A pickle's column repeats large values too often.
    #[error("column {name:?} comes to more than {MAX_EXPANSION} times the frame's bytes")]
    Expands {
        /// The column's name.
        name: &'static str,
    },
    /// The pickle is invalid.
    #[error(transparent)]
    Pickle(#[from] ParseError),
    /// The pickle is not an object with named fields.
    #[error("pickle is not an object with named fields")]
    NotAnObject,
    /// A message of several parts is damaged.
    #[error(transparent)]
    Parts(#[from] PartsError),
}

fn fits(versions: &str) -> String {
    match versions {
        "" => "no layout with as many; the connector introduces it".to_owned(),
        several => format!("the layouts of {several}; the connector introduces the right one"),
    }
}

impl WireError {
    /// A label of one to three words, for metrics and for grouping equal errors.
    pub fn label(&self) -> &'static str {
        match self {
            WireError::TooLong { .. } => "too long",
            WireError::NotAFrame { .. } => "not a frame",
            WireError::Pack(_) => "msgpack",
            WireError::UnknownLayout { .. } | WireError::Layout { .. } => "unknown layout",
            WireError::Column { .. } => "column",
            WireError::Cell { .. } => "cell",
            WireError::Expands { .. } => "expands",
            WireError::Pickle(_) => "pickle",
            WireError::NotAnObject => "not an object",
            WireError::Parts(_) => "parts",
        }
    }
}

/// The reason why a msgpack frame is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PackError {
    /// A value is cut, or declares more bytes than follow.
    #[error("msgpack value at offset {at} needs {needed} bytes, {left} are left")]
    Cut {
        /// The offset of the value.
        at: usize,
        /// The fewest bytes that it needs, including its header.
        needed: u64,
        /// The bytes from there to the frame's end.
        left: usize,
    },
    /// The type byte that msgpack never uses.
    #[error("msgpack value at offset {at} is the unused type 0xc1")]
    Unused {
        /// The offset of the byte.
        at: usize,
    },
    /// Bytes follow the frame's value.
    #[error("msgpack frame is followed by {bytes} bytes")]
    Trailing {
        /// The number of bytes.
        bytes: usize,
    },
    /// The struct has no class name.
    #[error("msgpack struct does not begin with its class name")]
    NoTag,
}

/// The reason why rows cannot be taken, joined or edited. The batches stay unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RowsError {
    /// The column cannot be joined or is unknown, so the request's rows cannot become one.
    #[error("column {name:?} of request {rid:?} cannot be joined")]
    Column {
        /// The column's name.
        name: String,
        /// The request's rid.
        rid: String,
    },
    /// The column has rows in one part and none in another, where the scheduler would have written some.
    #[error("column {name:?} has rows in one part and none in another")]
    Shape {
        /// The column's name.
        name: String,
    },
    /// The column does not have one entry per row, so the frame cannot be split.
    #[error("column {name:?} is not one entry a row")]
    Split {
        /// The column's name.
        name: String,
    },
    /// The rows do not exist, or are not in ascending order without repetition.
    #[error("row {row} is not next in ascending order, or not among {rows} rows")]
    Row {
        /// The row.
        row: u32,
        /// The number of rows of the batch.
        rows: u32,
    },
    /// No rows were given.
    #[error("no rows were given")]
    NoRows,
    /// A part has another kind, encoding or layout than the first.
    #[error("part {part} is {it}, the first is {first}: they cannot be joined")]
    Mixed {
        /// The part's index.
        part: usize,
        /// The part's kind and encoding.
        it: String,
        /// The first part's kind and encoding.
        first: String,
    },
    /// A request has a row after its last one.
    #[error("request {rid:?} has a row after its last one")]
    AfterFinish {
        /// The request's rid.
        rid: String,
    },
    /// A token id that vLLM's front end does not take.
    #[error("token id {id} is not between 0 and {ID_MAX}")]
    TokenId {
        /// The id.
        id: i64,
    },
    /// The edited column does not exist in this batch.
    #[error("column {name:?} is not there to be edited")]
    NoColumn {
        /// The column's name.
        name: &'static str,
    },
    /// A pickle's column repeats large values too often.
    #[error("column {name:?} comes to more than {MAX_EXPANSION} times the parts' bytes")]
    Expands {
        /// The column's name.
        name: String,
    },
    /// A pickle inside a msgpack frame is invalid.
    #[error("column {name:?} holds a pickle that cannot be read: {error}")]
    Wrapped {
        /// The column's name.
        name: String,
        /// The reason.
        error: ParseError,
    },
    /// The rows are not a BatchTokenIDOutput's, so they are not on the way to a detokenizer.
    #[error("{kind} has no detokenizer before it")]
    NotTokenIds {
        /// The kind of the batch.
        kind: BatchKind,
    },
    /// The BatchStrOutput of this BatchTokenIDOutput's version is unknown.
    #[error("no layout of BatchStrOutput is known beside this BatchTokenIDOutput of {fields} fields")]
    NoTextLayout {
        /// The number of fields of the BatchTokenIDOutput.
        fields: usize,
    },
    /// The detokenizer treats the column in an unknown way.
    #[error("column {name:?} cannot pass the detokenizer by: what that makes of it is not known")]
    NotByDetokenizer {
        /// The column's name.
        name: String,
    },
    /// The value has the other encoding. It does not happen, because parts have one encoding.
    #[error("value is of the other encoding")]
    Foreign,
    /// A pickle could not be written.
    #[error(transparent)]
    Write(#[from] PickleWriteError),
    /// The written batch exceeds a bound or cannot be read back.
    #[error("the batch that was written is not understood: {0}")]
    Written(Box<WireError>),
}

/// The reason why rows could not be erased. The frame stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EraseError {
    /// The frame is a batch whose rows cannot be read.
    #[error("not decoded: {0}")]
    NotDecoded(String),
    /// The pickle would have more bytes than before.
    #[error("the pickle would become longer")]
    Longer,
    /// The pickle could not be written.
    #[error("the pickle cannot be written: {0}")]
    Write(#[from] PickleWriteError),
    /// The written frame cannot be read back.
    #[error("the erased frame is not understood")]
    Written,
}

/// The reason why an abort was not encoded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AbortError {
    /// An empty rid would end every request.
    #[error("rid is empty, which to an engine may mean every request")]
    Empty,
    /// The rid is too long.
    #[error("rid of {bytes} bytes is over the limit of {MAX_RID_BYTES}")]
    Long {
        /// The rid's length.
        bytes: usize,
    },
    /// The connector's description of the class is invalid.
    #[error("abort in {name}: {why}")]
    Form {
        /// The source of the description.
        name: String,
        /// The reason.
        why: &'static str,
    },
    /// Writing failed. With checked names it does not.
    #[error("abort cannot be written: {0}")]
    Write(String),
}
