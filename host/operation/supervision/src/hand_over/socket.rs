//! The Unix socket in the journal's directory, on which a running process waits for the next one.
//!
//! Only the process that has locked the journal binds the socket, so a socket that is there is stale. The socket's path goes
//! through `/proc/self/fd`, so the length of the directory's path has no limit.

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, chmodat, open, statat, unlinkat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// The socket's name in the journal's directory.
pub const SOCKET: &str = "HAND-OVER.sock";
/// Only the user of this process may connect.
const MODE: u32 = 0o600;
/// Connections that wait. Hand-overs are made one at a time.
const BACKLOG: i32 = 8;

/// The listening socket. Dropping it removes its name.
#[derive(Debug)]
pub struct HandOverSocket {
    listener: UnixListener,
    directory: OwnedFd,
    /// Whether the name is removed at the end.
    is_own: bool,
}

impl HandOverSocket {
    /// Binds in the directory, which this process has locked. A socket that is there is replaced, any other file is an error.
    ///
    /// # Errors
    /// The system refuses a call.
    pub fn bind(dir: &Path) -> io::Result<HandOverSocket> {
        let directory = open_directory(dir)?;
        match statat(&directory, SOCKET, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
            Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Socket => {
                unlinkat(&directory, SOCKET, AtFlags::empty())?;
            }
            Ok(_) => {
                return Err(io::Error::other(format!(
                    "{}: is a file, and not a socket",
                    dir.join(SOCKET).display()
                )));
            }
        }
        let (path, socket) = (path_in(&directory), new_socket()?);
        bind(&socket, &SocketAddrUnix::new(path.as_str())?)?;
        // Before anybody can connect.
        chmodat(CWD, path.as_str(), Mode::from_raw_mode(MODE), AtFlags::empty())?;
        listen(&socket, BACKLOG)?;
        Ok(HandOverSocket { listener: socket.into(), directory, is_own: true })
    }

    /// The listening socket that the earlier process bound in this directory.
    ///
    /// # Errors
    /// The directory cannot be opened.
    pub fn inherit(dir: &Path, listener: OwnedFd) -> io::Result<HandOverSocket> {
        Ok(HandOverSocket { listener: listener.into(), directory: open_directory(dir)?, is_own: false })
    }

    /// Makes this process the owner of the socket's name, which is then removed at the end. For an inherited socket, after the
    /// earlier process has released it.
    pub fn own(&mut self) {
        self.is_own = true;
    }

    /// Leaves the socket's name to the next process.
    pub fn disown(&mut self) {
        self.is_own = false;
    }

    /// A further descriptor of the listening socket, for the thread that accepts.
    ///
    /// # Errors
    /// There is no room for a descriptor.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }
}

impl AsFd for HandOverSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for HandOverSocket {
    fn drop(&mut self) {
        if self.is_own {
            // A stale name has no consequence: the next process replaces it.
            let _removed = unlinkat(&self.directory, SOCKET, AtFlags::empty());
        }
    }
}

/// Connects to the process that has locked the directory. `None`: no process listens.
pub(crate) fn connect_in(dir: &Path) -> io::Result<Option<UnixStream>> {
    let directory = match open_directory(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        directory => directory?,
    };
    let socket = new_socket()?;
    match connect(&socket, &SocketAddrUnix::new(path_in(&directory).as_str())?) {
        Ok(()) => Ok(Some(socket.into())),
        Err(Errno::NOENT | Errno::CONNREFUSED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn open_directory(dir: &Path) -> io::Result<OwnedFd> {
    Ok(open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

fn path_in(directory: &OwnedFd) -> String {
    format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd())
}

fn new_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}
