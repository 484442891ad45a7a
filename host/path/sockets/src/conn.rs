//! The descriptor of one connection. The only file that distinguishes unix sockets from TCP sockets.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::injected::{self, SocketCall};
use afterbay_types::Endpoint;

/// The poll tokens of one socket: `first .. first + count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRange {
    /// The first token's number.
    pub first: usize,
    /// The number of tokens. A [`Push`](crate::Push) needs 1; a [`Pull`](crate::Pull) needs 1 and one for each
    /// peer.
    pub count: usize,
}

impl TokenRange {
    /// Whether the range has the token.
    pub fn contains(&self, token: Token) -> bool {
        token.0.checked_sub(self.first).is_some_and(|offset| offset < self.count)
    }
}

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerAddress {
    /// A process on this machine (ipc), as reported by the kernel.
    Process {
        /// The process id. 0: the process is in another pid namespace.
        pid: u32,
        /// The user id.
        uid: u32,
    },
    /// The address of a TCP peer.
    Tcp(SocketAddr),
    /// The kernel reports no address.
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

/// The keepalive of TCP connections: a vanished peer is noticed after about a minute.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

/// The result of a read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReadResult {
    /// This many bytes were read.
    Data(usize),
    /// No bytes now. The poll reports the next ones.
    Blocked,
    /// The peer closed, and everything that it sent was read.
    End,
    /// The connection failed, and everything that the kernel had received was read. (Linux keeps bytes that arrived
    /// before a reset.)
    Failed(Errno),
}

/// A non-blocking stream socket.
#[derive(Debug)]
pub(crate) struct Conn {
    fd: OwnedFd,
    is_ipc: bool,
}

impl Conn {
    /// Begins to connect. The bool: whether the connection is already made.
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

    /// Makes an unconnected socket of the address's family.
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

    /// Accepts a connection of a listener.
    pub(crate) fn accept(listener: &Conn) -> rustix::io::Result<Conn> {
        let fd = rustix::net::accept_with(&listener.fd, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?;
        let conn = Conn { fd, is_ipc: listener.is_ipc };
        conn.tune()?;
        Ok(conn)
    }

    /// Takes over a connection or listener of an earlier process. Its options stay. `None`: it is no stream socket of unix or
    /// TCP.
    pub(crate) fn adopt(fd: OwnedFd) -> Option<Conn> {
        let is_stream = sockopt::socket_type(&fd) == Ok(SocketType::STREAM);
        let is_ipc = match sockopt::socket_domain(&fd) {
            Ok(AddressFamily::UNIX) => true,
            Ok(AddressFamily::INET | AddressFamily::INET6) => false,
            _ => return None,
        };
        is_stream.then_some(Conn { fd, is_ipc })
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
        // Closing the descriptor also deregisters it; this call only prevents late events.
        let _ = registry.deregister(&mut SourceFd(&self.fd.as_raw_fd()));
    }

    /// The result of a connect that was in progress. `None`: it still is.
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

    pub(crate) fn read(&self, buffer: &mut [u8]) -> ReadResult {
        let most = injected::at(SocketCall::Read(buffer.len())).min(buffer.len());
        let read = retry_on_intr(|| rustix::io::read(&self.fd, &mut buffer[..most]));
        ReadResult::from(read.inspect(|&bytes| _ = injected::at(SocketCall::HasRead(bytes))))
    }

    /// Reads, and leaves the bytes in the socket.
    pub(crate) fn peek(&self, buffer: &mut [u8]) -> ReadResult {
        let peek = || rustix::net::recv(&self.fd, &mut *buffer, RecvFlags::PEEK);
        ReadResult::from(retry_on_intr(peek).map(|(bytes, _)| bytes))
    }

    /// Takes bytes out of the socket that a [`Conn::peek`] has shown. If there are fewer, a later read reports the reason.
    pub(crate) fn skip(&self, shown: &mut [u8]) {
        injected::at(SocketCall::Read(shown.len()));
        let mut skipped = 0;
        while skipped < shown.len() {
            match ReadResult::from(retry_on_intr(|| rustix::io::read(&self.fd, &mut shown[skipped..]))) {
                ReadResult::Data(bytes) => skipped += bytes,
                _ => break,
            }
        }
        injected::at(SocketCall::HasRead(skipped));
    }

    /// Writes to the kernel, and returns how many bytes it took.
    pub(crate) fn write(&self, slices: &[IoSlice<'_>]) -> rustix::io::Result<usize> {
        let bytes = slices.iter().map(|slice| slice.len()).sum();
        let most = injected::at(SocketCall::Write(bytes));
        let mut nothing = SendAncillaryBuffer::default();
        let mut send = |slices: &[IoSlice<'_>]| {
            retry_on_intr(|| rustix::net::sendmsg(&self.fd, slices, &mut nothing, SendFlags::NOSIGNAL))
        };
        let sent = if most < bytes { send(&first_bytes(slices, most)) } else { send(slices) };
        sent.inspect(|&bytes| _ = injected::at(SocketCall::HasWritten(bytes)))
    }

    /// Shuts down a direction. A connection that has ended stays as it is.
    pub(crate) fn shutdown(&self, direction: Shutdown) {
        let how = match direction {
            Shutdown::Read => rustix::net::Shutdown::Read,
            Shutdown::Write => rustix::net::Shutdown::Write,
            Shutdown::Both => rustix::net::Shutdown::Both,
        };
        // It fails only if the connection has ended, which the reads report.
        let _ended = rustix::net::shutdown(&self.fd, how);
    }

    /// Received bytes that were not read. 0 if the kernel does not say.
    pub(crate) fn unread_bytes(&self) -> u64 {
        rustix::io::ioctl_fionread(&self.fd).unwrap_or(0)
    }

    /// Whether the kernel reports the socket as writable now. A unix socket is writable while at most a quarter of its
    /// buffer is unread at the other end.
    pub(crate) fn polls_writable(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::OUT)];
        // If the call or the connection failed, the next write reports it.
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

/// The first `most` bytes of the slices.
fn first_bytes<'a>(slices: &'a [IoSlice<'_>], mut most: usize) -> Vec<IoSlice<'a>> {
    let mut first = Vec::new();
    for slice in slices {
        let part = &slice[..slice.len().min(most)];
        most -= part.len();
        first.push(IoSlice::new(part));
        if most == 0 {
            break;
        }
    }
    first
}

impl From<rustix::io::Result<usize>> for ReadResult {
    fn from(result: rustix::io::Result<usize>) -> ReadResult {
        match result {
            Ok(0) => ReadResult::End,
            Ok(bytes) => ReadResult::Data(bytes),
            Err(Errno::AGAIN) => ReadResult::Blocked,
            Err(error) => ReadResult::Failed(error),
        }
    }
}

/// A resolved endpoint, as the kernel takes it.
#[derive(Clone, Debug)]
pub(crate) enum Address {
    Ipc(SocketAddrUnix),
    Tcp(SocketAddr),
}

impl Address {
    pub(crate) fn ipc(path: &Path) -> rustix::io::Result<Address> {
        SocketAddrUnix::new(path).map(Address::Ipc)
    }

    /// Resolves an endpoint. Looking up a host name can block.
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
