//! A name that is bound for who reads and writes its connections by himself: a socket off the path.

use std::io;
use std::os::fd::OwnedFd;

use crate::endpoint::Endpoint;
use crate::pull::{BindError, Listener};

/// A listening socket. Its name is given back when it is dropped.
#[derive(Debug)]
pub struct Bound(Listener);

impl Bound {
    /// Takes the name, as [`Pull::bind`](crate::Pull::bind) does: never that of a listener that is alive. `mode` is that of
    /// an ipc name's file, at most 0o777.
    pub fn bind(endpoint: &Endpoint, mode: u32) -> Result<Bound, BindError> {
        Listener::bind(endpoint, mode, None).map(Bound)
    }

    /// Where it listens; with the real port where the endpoint said 0.
    pub fn endpoint(&self) -> &Endpoint {
        self.0.endpoint()
    }

    /// One more descriptor of it, not blocking. To be closed with this, or connections are taken that nobody reads.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        Ok(rustix::io::fcntl_dupfd_cloexec(self.0.conn().fd(), 0)?)
    }
}
