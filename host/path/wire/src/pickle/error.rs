//! The errors of reading and of writing a pickle.

use thiserror::Error;

use crate::pickle::bounds::{MAX_DEPTH, MAX_OPCODES, MAX_PICKLE_BYTES};

/// The reason why a pickle was not read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParseError {
    /// The pickle is too long.
    #[error("pickle of {bytes} bytes is over the limit of {MAX_PICKLE_BYTES}")]
    TooLong {
        /// The pickle's length.
        bytes: usize,
    },
    /// The bytes end at a place for an opcode.
    #[error("pickle ends at offset {offset} without STOP")]
    NoStop {
        /// The pickle's length.
        offset: usize,
    },
    /// An opcode is wrong.
    #[error("opcode {opcode:#04x} at offset {offset} {fault}")]
    Opcode {
        /// The opcode.
        opcode: u8,
        /// The opcode's offset.
        offset: usize,
        /// The error.
        fault: OpcodeError,
    },
}

/// The error at an opcode.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OpcodeError {
    /// The byte is not an opcode, or `pickle.dumps` writes the opcode for no value in these messages.
    #[error("is not understood")]
    NotUnderstood,
    /// The pickle has too many opcodes.
    #[error("is over the limit of {MAX_OPCODES} opcodes")]
    TooMany,
    /// The argument is cut, or its declared length exceeds the remaining bytes.
    #[error("needs {needed} bytes, {left} are left")]
    Cut {
        /// The declared length.
        needed: u64,
        /// The remaining bytes.
        left: usize,
    },
    /// No scheduler writes the protocol.
    #[error("names protocol {0}, must be 4 or 5")]
    Protocol(u8),
    /// The stack is empty down to the last mark.
    #[error("takes a value that is not on the stack")]
    NoValue,
    /// There is no mark.
    #[error("takes a mark that is not on the stack")]
    NoMark,
    /// The memo entry was never put.
    #[error("gets memo entry {0}, which was not put")]
    NoMemo(u32),
    /// A value on the stack has the wrong kind for the opcode.
    #[error("does not go with the value on the stack")]
    WrongKind,
    /// A str is not UTF-8.
    #[error("has an argument that cannot be read")]
    BadText,
    /// STOP is not the last byte.
    #[error("is followed by {0} bytes")]
    Trailing(usize),
    /// STOP does not find exactly one value.
    #[error("leaves {0} values or marks on the stack")]
    Unfinished(usize),
}

/// The reason why a pickle was not written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PickleWriteError {
    /// A node is nested too deeply.
    #[error("node is nested deeper than the limit of {MAX_DEPTH}")]
    TooDeep,
    /// The pickle became too long.
    #[error("pickle of {bytes} bytes is over the limit of {MAX_PICKLE_BYTES}")]
    TooLong {
        /// The bytes written by then.
        bytes: usize,
    },
    /// A tuple or an object's arguments contain the value itself. (A list or a dict may contain itself.)
    #[error("value is made of itself")]
    Cycle,
    /// A dict got a key without a value.
    #[error("dict of {0} keys and values has a key without a value")]
    Unpaired(u32),
    /// The finished pickle does not have exactly one value.
    #[error("pickle has {0} values, must have one")]
    NotOneValue(u32),
    /// The model object has no named fields.
    #[error("object has no fields by name")]
    NoFields,
}
