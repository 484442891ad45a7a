//! A listening socket: takes the name, accepts connections, gives the name back.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, sockopt};

use crate::bounds;
use crate::conn::{Address, Conn};
use crate::injected;
use afterbay_types::Endpoint;

/// How often, and how far apart, we try to lock the directory while another process has it locked. A process that binds
/// holds the lock for microseconds. After the last try we bind without the lock: a foreign lock on /tmp must not
/// prevent a start.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// The reason for failing to bind an endpoint.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process listens there.
    #[error("{endpoint} has a listener that is alive")]
    InUse {
        /// The endpoint.
        endpoint: Endpoint,
    },
    /// The path names a file that is never replaced.
    #[error("{endpoint} is a {kind}, only a socket or a regular file is replaced")]
    WrongKind {
        /// The endpoint.
        endpoint: Endpoint,
        /// "directory", "device", …
        kind: &'static str,
    },
    /// The host name has no address.
    #[error("{endpoint} has no address: {why}")]
    NoAddress {
        /// The endpoint.
        endpoint: Endpoint,
        /// The resolver's words.
        why: String,
    },
    /// The mode has other bits than permissions.
    #[error("listen_mode {mode:o} is not a mode, the limit is 777")]
    Mode {
        /// The mode.
        mode: u32,
    },
    /// A system call failed.
    #[error("{endpoint}: {call}: {error}")]
    Io {
        /// The endpoint.
        endpoint: Endpoint,
        /// The call.
        call: &'static str,
        /// The error.
        error: io::Error,
    },
}

/// A listening socket and its ipc file. Dropping it gives the name back.
#[derive(Debug)]
pub struct Listener {
    conn: Conn,
    endpoint: Endpoint,
    file: Option<OwnFile>,
    /// Another process may still go on with this socket: the file is not unlinked.
    is_shared: bool,
}

/// The ipc file that we made. It is unlinked only while the path still names this inode.
#[derive(Debug)]
struct OwnFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Listener {
    /// Binds and listens. An ipc name of a regular file or of a stale socket is taken over; the name of a live listener is
    /// not. `listen_mode` is the ipc file's mode, at most 0o777. `receive_buffer_bytes` is SO_RCVBUF of tcp connections;
    /// `None`: the kernel's default.
    pub fn bind(
        endpoint: &Endpoint,
        listen_mode: u32,
        receive_buffer_bytes: Option<usize>,
    ) -> Result<Listener, BindError> {
        if listen_mode & !0o777 != 0 {
            return Err(BindError::Mode { mode: listen_mode });
        }
        let result = match endpoint {
            Endpoint::Ipc(path) => bind_ipc(endpoint, path, listen_mode),
            Endpoint::Tcp { host, .. } => bind_tcp(endpoint, host, receive_buffer_bytes),
        };
        result.map_err(|failed| match failed {
            Failed::Bind(error) => error,
            Failed::Call(call, error) => {
                BindError::Io { endpoint: endpoint.clone(), call, error: error.into() }
            }
        })
    }

    /// Takes over the listening socket of an earlier process, with its ipc file. Until [`Listener::claim`], the file stays
    /// when the listener is dropped. The error says why the descriptor is no listener.
    pub fn adopt(fd: OwnedFd) -> Result<Listener, String> {
        if sockopt::socket_acceptconn(&fd) != Ok(true) {
            return Err("the descriptor is no listening socket".to_owned());
        }
        let conn = Conn::adopt(fd).ok_or("the descriptor is no socket of unix or TCP")?;
        let name = rustix::net::getsockname(conn.fd()).map_err(|error| format!("getsockname: {error}"))?;
        if !conn.is_ipc() {
            let bound =
                std::net::SocketAddr::try_from(name).map_err(|error| format!("getsockname: {error}"))?;
            let endpoint = Endpoint::Tcp { host: bound.ip().to_string(), port: bound.port() };
            return Ok(Listener { conn, endpoint, file: None, is_shared: true });
        }
        let name = SocketAddrUnix::try_from(name).map_err(|error| format!("getsockname: {error}"))?;
        let path = name.path_bytes().ok_or("the listening socket has no path")?;
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        let endpoint = Endpoint::ipc(path).map_err(|error| error.to_string())?;
        let stat = rustix::fs::lstat(path).map_err(|error| format!("{}: {error}", path.display()))?;
        if file_type(&stat) != FileType::Socket {
            return Err(format!("{} is no socket any more", path.display()));
        }
        let file = Some(OwnFile { path: path.to_owned(), device: stat.st_dev, inode: stat.st_ino });
        Ok(Listener { conn, endpoint, file, is_shared: true })
    }

    /// Whether a listener that is bound to this endpoint, instead of this one, would have the same address. If so, this one
    /// takes the endpoint's name and the mode of its ipc file.
    pub fn serves(&mut self, endpoint: &Endpoint, listen_mode: u32) -> bool {
        match (&self.endpoint, endpoint) {
            (Endpoint::Ipc(ours), Endpoint::Ipc(path)) if ours == path => {
                let mode = Mode::from_raw_mode(listen_mode & 0o777);
                // If it fails, the file keeps the mode that the earlier process gave it.
                let _kept = rustix::fs::chmodat(rustix::fs::CWD, path, mode, AtFlags::empty());
                true
            }
            (Endpoint::Tcp { host: ours, port }, Endpoint::Tcp { host, port: wanted }) => {
                let addresses = Address::resolve(endpoint).unwrap_or_default();
                let is_ours = |address: &Address| matches!(address, Address::Tcp(address) if address.ip().to_string() == *ours);
                if (*wanted != 0 && wanted != port) || !addresses.iter().any(is_ours) {
                    return false;
                }
                self.endpoint = Endpoint::Tcp { host: host.clone(), port: *port };
                true
            }
            _ => false,
        }
    }

    /// From now on the ipc file is this listener's: no other process goes on with the socket.
    pub fn claim(&mut self) {
        self.is_shared = false;
    }

    /// Closes this descriptor of the socket, with which another process goes on.
    pub(crate) fn leave(mut self) {
        self.is_shared = true;
    }

    pub(crate) fn conn(&self) -> &Conn {
        &self.conn
    }

    /// The bound endpoint, with the real port.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns a further descriptor of the listening socket, not blocking. Close it together with this listener: otherwise
    /// the kernel accepts connections that no process reads.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        Ok(rustix::io::fcntl_dupfd_cloexec(self.conn.fd(), 0)?)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(file) = &self.file
            && !self.is_shared
            && !injected::is_dead()
            && let Ok(now) = rustix::fs::lstat(&file.path)
            && (now.st_dev, now.st_ino) == (file.device, file.inode)
        {
            // A failure has no consequence: the next one to bind replaces a stale socket.
            let _ = rustix::fs::unlink(&file.path);
        }
    }
}

enum Failed {
    Bind(BindError),
    Call(&'static str, Errno),
}

/// Adds the name of the failed system call.
trait Call<T> {
    fn call(self, name: &'static str) -> Result<T, Failed>;
}

impl<T> Call<T> for rustix::io::Result<T> {
    fn call(self, name: &'static str) -> Result<T, Failed> {
        self.map_err(|error| Failed::Call(name, error))
    }
}

/// The mode is set between `bind` and `listen`, before anybody can connect. The directory's lock keeps two Afterbays
/// that start at once from taking each other's name for a stale one. libzmq takes over any name without checking.
fn bind_ipc(endpoint: &Endpoint, path: &Path, mode: u32) -> Result<Listener, Failed> {
    let address = Address::ipc(path).call("address")?;
    let _lock = lock_directory(path);
    make_way(endpoint, path, &address)?;
    let conn = Conn::new(&address).call("socket")?;
    let Address::Ipc(name) = &address else { return Err(Failed::Call("address", Errno::AFNOSUPPORT)) };
    match rustix::net::bind(conn.fd(), name) {
        Err(Errno::ADDRINUSE) => return Err(Failed::Bind(BindError::InUse { endpoint: endpoint.clone() })),
        result => result.call("bind")?,
    }
    let stat = rustix::fs::lstat(path).call("stat")?;
    let file = Some(OwnFile { path: path.to_owned(), device: stat.st_dev, inode: stat.st_ino });
    let listener = Listener { conn, endpoint: endpoint.clone(), file, is_shared: false };
    rustix::fs::chmodat(rustix::fs::CWD, path, Mode::from_raw_mode(mode), AtFlags::empty()).call("chmod")?;
    rustix::net::listen(listener.conn.fd(), bounds::LISTEN_BACKLOG).call("listen")?;
    Ok(listener)
}

/// Locks the path's directory until the returned descriptor is dropped. `None`: the lock failed, see [`LOCK_TRIES`].
fn lock_directory(path: &Path) -> Option<OwnedFd> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(parent, flags, Mode::empty()).ok()?;
    for _ in 0..LOCK_TRIES {
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(directory),
            Err(Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
            Err(_) => return None,
        }
    }
    None
}

/// Unlinks a file that may be replaced: a regular file (SGLang makes its names with `tempfile`) or a socket without a
/// listener.
fn make_way(endpoint: &Endpoint, path: &Path, address: &Address) -> Result<(), Failed> {
    let stat = match rustix::fs::lstat(path) {
        Err(Errno::NOENT) => return Ok(()),
        stat => stat.call("stat")?,
    };
    match file_type(&stat) {
        FileType::RegularFile => {}
        FileType::Socket => match Conn::connect(address) {
            Err(Errno::CONNREFUSED) => {}
            Err(Errno::NOENT) => return Ok(()),
            // EAGAIN: the listener is alive, and its backlog is full. Any other error does not prove that it is dead.
            Ok(_) | Err(Errno::AGAIN | Errno::PROTOTYPE) => {
                return Err(Failed::Bind(BindError::InUse { endpoint: endpoint.clone() }));
            }
            Err(error) => return Err(Failed::Call("connect, to see if anybody listens", error)),
        },
        other => {
            let kind = match other {
                FileType::Directory => "directory",
                FileType::Symlink => "symbolic link",
                FileType::Fifo => "fifo",
                _ => "device",
            };
            return Err(Failed::Bind(BindError::WrongKind { endpoint: endpoint.clone(), kind }));
        }
    }
    match rustix::fs::unlink(path) {
        Err(Errno::NOENT) => Ok(()),
        result => result.call("unlink"),
    }
}

fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

fn bind_tcp(
    endpoint: &Endpoint,
    host: &str,
    receive_buffer_bytes: Option<usize>,
) -> Result<Listener, Failed> {
    let addresses = Address::resolve(endpoint).map_err(|error| {
        Failed::Bind(BindError::NoAddress { endpoint: endpoint.clone(), why: error.to_string() })
    })?;
    let mut last = Failed::Call("bind", Errno::ADDRNOTAVAIL);
    for address in &addresses {
        let Address::Tcp(name) = address else { continue };
        let conn = Conn::new(address).call("socket")?;
        sockopt::set_socket_reuseaddr(conn.fd(), true).call("SO_REUSEADDR")?;
        if let Some(bytes) = receive_buffer_bytes {
            // Set before listen, so that the window is offered accordingly. Accepted sockets inherit it.
            sockopt::set_socket_recv_buffer_size(conn.fd(), bytes).call("SO_RCVBUF")?;
        }
        // Without SO_REUSEPORT the kernel refuses a second listener at either call.
        match rustix::net::bind(conn.fd(), name)
            .and_then(|()| rustix::net::listen(conn.fd(), bounds::LISTEN_BACKLOG))
        {
            Ok(()) => {
                let bound = rustix::net::getsockname(conn.fd()).call("getsockname")?;
                let bound = std::net::SocketAddr::try_from(bound).call("getsockname")?;
                let endpoint = Endpoint::Tcp { host: host.to_owned(), port: bound.port() };
                return Ok(Listener { conn, endpoint, file: None, is_shared: false });
            }
            Err(Errno::ADDRINUSE) => last = Failed::Bind(BindError::InUse { endpoint: endpoint.clone() }),
            Err(error) => last = Failed::Call("bind", error),
        }
    }
    Err(last)
}
