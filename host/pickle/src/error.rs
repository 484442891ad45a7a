//! Why a pickle is not read. Why one is not written stands with the writer.

use thiserror::Error;

use crate::bounds::{MAX_OPCODES, MAX_PICKLE_BYTES};

/// Why a pickle was not read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParseError {
    /// Longer than a pickle may be.
    #[error("pickle of {bytes} bytes is over the limit of {MAX_PICKLE_BYTES}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The bytes end where an opcode should stand.
    #[error("pickle ends at offset {offset} without STOP")]
    NoStop {
        /// Its length.
        offset: usize,
    },
    /// Wrong at one opcode.
    #[error("opcode {opcode:#04x} at offset {offset} {fault}")]
    Opcode {
        /// The byte.
        opcode: u8,
        /// Where it stands.
        offset: usize,
        /// What is wrong.
        fault: Fault,
    },
}

/// What is wrong at an opcode.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// Not an opcode, or one that `pickle.dumps` writes for nothing that belongs on this wire.
    #[error("is not understood")]
    NotUnderstood,
    /// There are more opcodes than a pickle may have.
    #[error("is over the limit of {MAX_OPCODES} opcodes")]
    TooMany,
    /// Its argument is cut off, or its declared length is more than what follows.
    #[error("needs {needed} bytes, {left} are left")]
    Cut {
        /// As declared.
        needed: u64,
        /// To the end of the pickle.
        left: usize,
    },
    /// A protocol that did not exist when this was written.
    #[error("names protocol {0}, the limit is 5")]
    Protocol(u8),
    /// The stack is empty, down to the last mark.
    #[error("takes a value that is not on the stack")]
    NoValue,
    /// There is no mark.
    #[error("takes a mark that is not on the stack")]
    NoMark,
    /// Nothing was put there.
    #[error("gets memo entry {0}, which was not put")]
    NoMemo(u32),
    /// A memo index beyond what the pickle's length could fill.
    #[error("puts memo entry {0}, more than the pickle has bytes")]
    MemoIndex(u32),
    /// A value on the stack is of the wrong kind for it.
    #[error("does not go with the value on the stack")]
    WrongKind,
    /// A str that is not UTF-8, a number that is none.
    #[error("has an argument that cannot be read")]
    BadText,
    /// STOP is not the last byte.
    #[error("is followed by {0} bytes")]
    Trailing(usize),
    /// STOP does not find exactly one value.
    #[error("leaves {0} values or marks on the stack")]
    Unfinished(usize),
}
