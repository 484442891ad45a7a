//! The bounds of this crate. Past any of them reading or writing returns an error; the caller still has the bytes and
//! forwards them unchanged.

/// The longest pickle that is read or written, in bytes. Spans are `u32`, so it must be less than 4 GiB.
pub const MAX_PICKLE_BYTES: usize = 1 << 30;

/// The most opcodes of a pickle that is read. A batch of SGLang's has about 52 per row.
///
/// The limit bounds everything that the reader holds: an opcode adds at most one value to the stack, one mark, one memo
/// entry and three nodes, and a list's children move only when it doubles. The worst known pickles, with globals or
/// empty lists only, take less than 0.5 GB while they are read.
pub const MAX_OPCODES: usize = 1 << 23;

/// The longest value, in bytes, for which a parser looks for values alike. SGLang's longest, times of a request, have 100.
pub(crate) const MAX_ALIKE_BYTES: usize = 1 << 10;

/// The fewest values that must seem to be alike. Learning costs as much as reading two of them.
pub(crate) const MIN_ALIKE: usize = 4;

/// The most runs of values alike that a tree remembers. A batch has one for each column of arrays or objects.
pub(crate) const MAX_RUNS: usize = 32;

/// How often a writer looks at another value in the same column. Looking costs as much as writing two or three values.
pub(crate) const MAX_FORMS: usize = 8;

/// The deepest nesting that is written, in nodes below the copied one. (Reading is a stack machine without nesting.)
pub const MAX_DEPTH: usize = 128;

/// The most states and items of one object that are followed to find its class. CPython gives at most three, and every
/// row could refer to the same object.
pub(crate) const MAX_CHANGES: usize = 8;

/// Values, marks and memo entries for which a parser retains room between pickles. More is freed.
pub(crate) const KEPT: usize = 1 << 16;

/// The arenas that a thread retains, and the size of a retained one in nodes (64 KiB to 2 MiB, and as much for its
/// children): at most 16 MiB.
pub(crate) const SPARE_ARENAS: usize = 4;
pub(crate) const SPARE_NODES: std::ops::RangeInclusive<usize> = 1 << 12..=1 << 17;
