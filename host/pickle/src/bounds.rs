//! The bounds of this crate. Over any of them reading or writing ends in an error value; the caller still has the
//! bytes, and passes them on as they came.

/// Longest pickle read or written, in bytes. Spans are `u32`, so this must stay under 4 GiB.
pub const MAX_PICKLE_BYTES: usize = 1 << 30;

/// Most opcodes in a pickle that is read; a batch of SGLang's has about 52 a row.
///
/// It bounds everything the reader holds, since an opcode adds at most one value to the stack, one mark, one memo entry
/// and three nodes, and a list's children move only when it doubles. The worst pickles found, of globals or of empty
/// lists only, take under 0.5 GB while they are read.
pub const MAX_OPCODES: usize = 1 << 23;

/// Deepest nesting written, in nodes from the one copied. (Reading is a stack machine and does not nest.)
pub const MAX_DEPTH: usize = 128;

/// States and items given to one object, one after the other, beyond which its class is not looked for: CPython gives
/// at most three, and every row might refer to the same object.
pub(crate) const MAX_CHANGES: usize = 8;

/// Values, marks and memo entries for which a parser keeps room between pickles; what is beyond is given back.
pub(crate) const KEPT: usize = 1 << 16;

/// Arenas of former trees that a thread keeps, and how large one is that is kept, in nodes (64 KiB to 2 MiB, and its
/// children's room likewise): 16 MiB at most.
pub(crate) const SPARE_ARENAS: usize = 4;
pub(crate) const SPARE_NODES: std::ops::RangeInclusive<usize> = 1 << 12..=1 << 17;
