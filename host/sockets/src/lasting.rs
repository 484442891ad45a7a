//! The part of a connection that outlives the process: a socket and the shared memory beside the socket.
//!
//! Owns the memory, and what each direction keeps in the memory. Must not know who holds the descriptors meanwhile.

#[allow(dead_code, unused_imports, reason = "the two directions that use it follow")]
mod memory;

#[cfg(test)]
mod tests;

pub use memory::MemoryError;
#[allow(unused_imports, reason = "the two directions that use it follow")]
pub(crate) use memory::{Memory, MemoryRole, WORDS, Words};
