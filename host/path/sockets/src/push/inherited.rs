//! A connection to a reader that an earlier process left.

use std::os::fd::OwnedFd;

use afterbay_types::Endpoint;

use crate::conn::Conn;
use crate::lasting::{MemoryError, SendMemory};

/// A connection to a reader that an earlier process left, and its memory, which was checked.
/// [`Push::adopt`](crate::Push::adopt) continues it.
#[derive(Debug)]
pub struct InheritedPush {
    pub(super) conn: Conn,
    pub(super) memory: SendMemory,
}

impl InheritedPush {
    /// Checks the descriptors: a socket that is connected to this endpoint, and the memory of the connection. Reads and
    /// writes nothing.
    ///
    /// # Errors
    ///
    /// The connection cannot be continued, and is closed. Then [`Push::connect`](crate::Push::connect) connects anew, and
    /// the journal says which frames the reader may have.
    pub fn open(fds: Vec<OwnedFd>, endpoint: &Endpoint) -> Result<InheritedPush, MemoryError> {
        let [socket, memory] = <[OwnedFd; 2]>::try_from(fds).map_err(|fds| {
            MemoryError::Contradiction(format!("{} descriptors, expected a socket and its memory", fds.len()))
        })?;
        let memory = SendMemory::adopt(memory, endpoint)?;
        let conn = Conn::adopt(socket)
            .ok_or_else(|| MemoryError::Contradiction("the first descriptor is no connection".to_owned()))?;
        Ok(InheritedPush { conn, memory })
    }
}
