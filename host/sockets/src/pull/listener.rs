//! The bound end of a PULL: takes the name, gives connections, gives the name back.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::net::sockopt;

use super::options::BindError;
use crate::bounds;
use crate::conn::{Address, Conn};
use crate::endpoint::Endpoint;

/// How often, and how far apart, a lock of the directory that another process holds is tried. Its holder binds, which takes
/// microseconds; past it we go on without, so that a stranger's lock on /tmp cannot keep us from starting.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// A listening socket, and the file that is its name.
#[derive(Debug)]
pub(crate) struct Listener {
    conn: Conn,
    endpoint: Endpoint,
    file: Option<OwnFile>,
}

/// The file we made: it is unlinked only while it is still this one.
#[derive(Debug)]
struct OwnFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Listener {
    pub(crate) fn bind(
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

    pub(crate) fn conn(&self) -> &Conn {
        &self.conn
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(file) = &self.file
            && let Ok(now) = rustix::fs::lstat(&file.path)
            && (now.st_dev, now.st_ino) == (file.device, file.inode)
        {
            // Nothing can be done if it fails: the next to bind replaces a stale socket.
            let _ = rustix::fs::unlink(&file.path);
        }
    }
}

enum Failed {
    Bind(BindError),
    Call(&'static str, Errno),
}

/// Names the call that fails.
trait Call<T> {
    fn call(self, name: &'static str) -> Result<T, Failed>;
}

impl<T> Call<T> for rustix::io::Result<T> {
    fn call(self, name: &'static str) -> Result<T, Failed> {
        self.map_err(|error| Failed::Call(name, error))
    }
}

/// Between `bind` and `listen` the socket has its mode set: nobody can connect before. The directory's lock keeps two
/// Afterbays that start at once from taking each other's name for a stale one; libzmq takes any name without looking.
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
    let listener = Listener { conn, endpoint: endpoint.clone(), file };
    rustix::fs::chmodat(rustix::fs::CWD, path, Mode::from_raw_mode(mode), AtFlags::empty()).call("chmod")?;
    rustix::net::listen(listener.conn.fd(), bounds::LISTEN_BACKLOG).call("listen")?;
    Ok(listener)
}

/// Holds while the returned descriptor lives. `None`: it could not be had, see [`LOCK_TRIES`].
fn lock_directory(path: &Path) -> Option<rustix::fd::OwnedFd> {
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

/// Unlinks what may be replaced: a regular file (SGLang makes its names with `tempfile`), a socket nobody listens on.
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
            // EAGAIN: it listens, and its backlog is full. Another error: it cannot be known to be dead.
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
            // Before listen, so that the window is offered accordingly; accepted sockets inherit it.
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
                return Ok(Listener { conn, endpoint, file: None });
            }
            Err(Errno::ADDRINUSE) => last = Failed::Bind(BindError::InUse { endpoint: endpoint.clone() }),
            Err(error) => last = Failed::Call("bind", error),
        }
    }
    Err(last)
}
