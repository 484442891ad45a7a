//! One connection's descriptor: made, registered, read, written. The only file that knows unix sockets from TCP ones.

use std::fmt;
use std::net::SocketAddr;

use mio::Token;

/// The poll tokens that a socket may use: `first .. first + count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRange {
    /// The first token's number.
    pub first: usize,
    /// How many. A [`Push`](crate::Push) needs 1, a [`Pull`](crate::Pull) 1 and one more for each of its peers.
    pub count: usize,
}

impl TokenRange {
    /// Whether the token is one of the range.
    pub fn contains(&self, token: Token) -> bool {
        token.0.checked_sub(self.first).is_some_and(|offset| offset < self.count)
    }
}

/// Who is at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerAddress {
    /// A process on this machine (ipc), as the kernel names it. 0: of another pid namespace.
    Process {
        /// Its id.
        pid: u32,
        /// Its user.
        uid: u32,
    },
    /// An address (tcp).
    Tcp(SocketAddr),
    /// The kernel would not say.
    Unknown,
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerAddress::Process { pid, uid } => write!(f, "pid {pid} (uid {uid})"),
            PeerAddress::Tcp(address) => write!(f, "{address}"),
            PeerAddress::Unknown => write!(f, "unknown peer"),
        }
    }
}
