//! One connection's descriptor: made, registered, read, written. The only file that knows unix sockets from TCP ones.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt;
use rustix::net::{AddressFamily, SendAncillaryBuffer, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use crate::endpoint::Endpoint;

/// The poll tokens that a socket may use: `first .. first + count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRange {
    /// The first token's number.
    pub first: usize,
    /// How many. A [`Push`](crate::Push) needs 1, a [`Pull`](crate::Pull) or a [`Pub`](crate::Pub) 1 and one more
    /// for each of its peers.
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

/// A TCP peer that is gone without a word is noticed after about a minute.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

/// What a read gave.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// That many bytes.
    Data(usize),
    /// Nothing now; the poll will tell.
    Blocked,
    /// The peer's end, after everything that it sent.
    End,
    /// The connection's end, likewise after everything that the kernel had of it (Linux keeps what came before a reset).
    Failed(Errno),
}

/// A stream socket, not blocking.
#[derive(Debug)]
pub(crate) struct Conn {
    fd: OwnedFd,
    is_ipc: bool,
}

impl Conn {
    /// Begins to connect: with the connection, whether it is made already.
    pub(crate) fn connect(to: &Address) -> rustix::io::Result<(Conn, bool)> {
        let conn = Conn::new(to)?;
        let result = match to {
            Address::Ipc(address) => rustix::net::connect(&conn.fd, address),
            Address::Tcp(address) => rustix::net::connect(&conn.fd, address),
        };
        match result {
            Ok(()) => Ok((conn, true)),
            Err(Errno::INPROGRESS | Errno::INTR) => Ok((conn, false)),
            Err(error) => Err(error),
        }
    }

    /// A socket of the address's family, not connected.
    pub(crate) fn new(to: &Address) -> rustix::io::Result<Conn> {
        let family = match to {
            Address::Ipc(_) => AddressFamily::UNIX,
            Address::Tcp(SocketAddr::V4(_)) => AddressFamily::INET,
            Address::Tcp(SocketAddr::V6(_)) => AddressFamily::INET6,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        let conn = Conn { fd, is_ipc: matches!(to, Address::Ipc(_)) };
        conn.tune()?;
        Ok(conn)
    }

    /// Takes a connection from a listener.
    pub(crate) fn accept(listener: &Conn) -> rustix::io::Result<Conn> {
        let fd = rustix::net::accept_with(&listener.fd, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?;
        let conn = Conn { fd, is_ipc: listener.is_ipc };
        conn.tune()?;
        Ok(conn)
    }

    fn tune(&self) -> rustix::io::Result<()> {
        if !self.is_ipc {
            sockopt::set_tcp_nodelay(&self.fd, true)?;
            sockopt::set_socket_keepalive(&self.fd, true)?;
            sockopt::set_tcp_keepidle(&self.fd, KEEPALIVE_IDLE)?;
            sockopt::set_tcp_keepintvl(&self.fd, KEEPALIVE_INTERVAL)?;
            sockopt::set_tcp_keepcnt(&self.fd, KEEPALIVE_PROBES)?;
        }
        Ok(())
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    pub(crate) fn is_ipc(&self) -> bool {
        self.is_ipc
    }

    pub(crate) fn register(&self, registry: &Registry, token: Token, interest: Interest) -> io::Result<()> {
        registry.register(&mut SourceFd(&self.fd.as_raw_fd()), token, interest)
    }

    pub(crate) fn deregister(&self, registry: &Registry) {
        // Closing it takes it out of the poll as well; this only keeps late events away.
        let _ = registry.deregister(&mut SourceFd(&self.fd.as_raw_fd()));
    }

    /// What became of a connection that was in progress. `None`: it still is.
    pub(crate) fn connected(&self) -> Option<Result<(), Errno>> {
        match sockopt::socket_error(&self.fd) {
            Ok(Err(error)) | Err(error) => return Some(Err(error)),
            Ok(Ok(())) => {}
        }
        match rustix::net::getpeername(&self.fd) {
            Ok(_) => Some(Ok(())),
            Err(Errno::NOTCONN) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Reads into `buffer`.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> Read {
        Read::from(retry_on_intr(|| rustix::io::read(&self.fd, &mut *buffer)))
    }

    /// Appends to `buffer`, up to its capacity.
    pub(crate) fn read_spare(&self, buffer: &mut Vec<u8>) -> Read {
        Read::from(retry_on_intr(|| rustix::io::read(&self.fd, spare_capacity(buffer))))
    }

    /// Hands bytes to the kernel: how many it took.
    pub(crate) fn write(&self, slices: &[IoSlice<'_>]) -> rustix::io::Result<usize> {
        let mut nothing = SendAncillaryBuffer::default();
        retry_on_intr(|| rustix::net::sendmsg(&self.fd, slices, &mut nothing, SendFlags::NOSIGNAL))
    }

    /// Ends a direction. A connection that has ended already stays as it is.
    pub(crate) fn shutdown(&self, direction: Shutdown) {
        let how = match direction {
            Shutdown::Read => rustix::net::Shutdown::Read,
            Shutdown::Write => rustix::net::Shutdown::Write,
            Shutdown::Both => rustix::net::Shutdown::Both,
        };
        // It fails only where the connection has ended, which reading tells.
        let _ended = rustix::net::shutdown(&self.fd, how);
    }

    /// Bytes that the kernel has received and that were not read. 0 where it does not say.
    pub(crate) fn unread_bytes(&self) -> u64 {
        rustix::io::ioctl_fionread(&self.fd).unwrap_or(0)
    }

    /// What the kernel says to poll now. Of a unix socket: that at most a quarter of its buffer is not read at the other end.
    pub(crate) fn polls_writable(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::OUT)];
        // Where it fails, or the connection has, writing tells.
        retry_on_intr(|| rustix::event::poll(&mut fds, Some(&Timespec::default()))) != Ok(0)
    }

    pub(crate) fn peer_address(&self) -> PeerAddress {
        if self.is_ipc {
            return match nix::sys::socket::getsockopt(
                &self.fd.as_fd(),
                nix::sys::socket::sockopt::PeerCredentials,
            ) {
                Ok(peer) => PeerAddress::Process { pid: peer.pid().unsigned_abs(), uid: peer.uid() },
                Err(_) => PeerAddress::Unknown,
            };
        }
        let address = rustix::net::getpeername(&self.fd).ok().flatten();
        match address.map(SocketAddr::try_from) {
            Some(Ok(address)) => PeerAddress::Tcp(address),
            _ => PeerAddress::Unknown,
        }
    }
}

impl From<rustix::io::Result<usize>> for Read {
    fn from(result: rustix::io::Result<usize>) -> Read {
        match result {
            Ok(0) => Read::End,
            Ok(bytes) => Read::Data(bytes),
            Err(Errno::AGAIN) => Read::Blocked,
            Err(error) => Read::Failed(error),
        }
    }
}

/// An endpoint the kernel understands.
#[derive(Clone, Debug)]
pub(crate) enum Address {
    Ipc(SocketAddrUnix),
    Tcp(SocketAddr),
}

impl Address {
    pub(crate) fn ipc(path: &Path) -> rustix::io::Result<Address> {
        SocketAddrUnix::new(path).map(Address::Ipc)
    }

    /// The addresses of an endpoint. A name that is no address is looked up here, which can block.
    pub(crate) fn resolve(endpoint: &Endpoint) -> io::Result<Vec<Address>> {
        match endpoint {
            Endpoint::Ipc(path) => Ok(vec![Address::ipc(path)?]),
            Endpoint::Tcp { host, port } => {
                let host = if host == "*" { "0.0.0.0" } else { host };
                let addresses: Vec<Address> = (host, *port).to_socket_addrs()?.map(Address::Tcp).collect();
                if addresses.is_empty() {
                    return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
                }
                Ok(addresses)
            }
        }
    }
}
