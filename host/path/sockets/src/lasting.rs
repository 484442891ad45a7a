//! The part of a connection that outlives the process: a socket and the shared memory beside the socket.
//!
//! Owns the memory, and what each direction keeps in the memory. The store of descriptors holds both over the process's end.

mod memory;
mod receive;
mod send;

#[cfg(test)]
mod tests;

use afterbay_supervision::fdstore::{FdStore, Inherited};

pub use memory::MemoryError;
#[cfg(test)]
use memory::{Memory, MemoryRole, WORDS, Words};
pub use receive::ReceiveBuffer;
pub use send::SendMemory;
pub(crate) use send::{OWNER_WORDS, OwnerWords};

/// The place of a stream's sockets in the store of descriptors, and what an earlier process left there.
#[derive(Debug)]
pub struct Lasting<'a> {
    /// The store that holds every socket and its memory from now on.
    pub store: &'a FdStore,
    /// The name of the stream.
    pub stream: &'a str,
    /// The descriptors of an earlier process. A socket takes its own.
    pub inherited: &'a mut Inherited,
}
