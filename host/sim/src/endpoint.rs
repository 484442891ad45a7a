//! The names of sockets, and taking one to listen on.

use std::io;
use std::net::TcpListener;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use thiserror::Error;
use zeromq::Listener;

/// A name that cannot be used.
#[derive(Debug, Error)]
pub enum EndpointError {
    /// Neither ipc nor tcp.
    #[error("endpoint {0:?} is neither ipc://PATH nor tcp://HOST:PORT")]
    Scheme(String),
    /// Somebody listens there.
    #[error("endpoint ipc://{}: somebody is listening there", .0.display())]
    Taken(PathBuf),
    /// The name belongs to something that is no socket.
    #[error("endpoint ipc://{}: a file that is not empty and no socket is there", .0.display())]
    File(PathBuf),
    /// A call failed.
    #[error("endpoint {endpoint}: {source}")]
    Io {
        /// The name.
        endpoint: String,
        /// How.
        source: io::Error,
    },
}

/// Where a socket is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place<'a> {
    Ipc(&'a Path),
    Tcp(&'a str),
}

impl Place<'_> {
    pub(crate) fn of(endpoint: &str) -> Result<Place<'_>, EndpointError> {
        let place = match endpoint.split_once("://") {
            Some(("ipc", path)) if !path.is_empty() => Some(Place::Ipc(Path::new(path))),
            Some(("tcp", address)) if address.contains(':') => Some(Place::Tcp(address)),
            _ => None,
        };
        place.ok_or_else(|| EndpointError::Scheme(endpoint.to_owned()))
    }
}

/// Listens. A socket that nobody listens on any more and an empty file (SGLang makes one) give way to it.
pub(crate) fn listen(endpoint: &str) -> Result<Listener, EndpointError> {
    let io = |source| EndpointError::Io { endpoint: endpoint.to_owned(), source };
    match Place::of(endpoint)? {
        Place::Tcp(address) => Ok(TcpListener::bind(address).map_err(io)?.into()),
        Place::Ipc(path) => {
            make_way(path, io)?;
            Ok(UnixListener::bind(path).map_err(io)?.into())
        }
    }
}

/// Removes the name of a socket that was listened on, if it has one.
pub(crate) fn remove(endpoint: &str) {
    if let Ok(Place::Ipc(path)) = Place::of(endpoint) {
        // It may be gone already, with its directory.
        let _gone = std::fs::remove_file(path);
    }
}

fn make_way(path: &Path, io: impl Fn(io::Error) -> EndpointError) -> Result<(), EndpointError> {
    let there = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        there => there.map_err(&io)?,
    };
    if there.file_type().is_socket() {
        if UnixStream::connect(path).is_ok() {
            return Err(EndpointError::Taken(path.to_owned()));
        }
    } else if !there.is_file() || there.len() > 0 {
        return Err(EndpointError::File(path.to_owned()));
    }
    std::fs::remove_file(path).map_err(io)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_socket_and_an_empty_file_give_way_a_listener_and_a_file_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("reader");
        let endpoint = format!("ipc://{}", path.display());
        let first = listen(&endpoint).unwrap();
        assert!(matches!(listen(&endpoint), Err(EndpointError::Taken(_))));
        drop(first);
        drop(listen(&endpoint).unwrap());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, b"").unwrap();
        drop(listen(&endpoint).unwrap());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, b"a diary").unwrap();
        assert!(matches!(listen(&endpoint), Err(EndpointError::File(_))));
        assert_eq!(std::fs::read(&path).unwrap(), b"a diary");
    }

    #[test]
    fn a_name_of_another_kind_is_refused() {
        for name in ["", "ipc://", "inproc://a", "/tmp/a", "tcp://host"] {
            assert!(matches!(Place::of(name), Err(EndpointError::Scheme(_))), "{name:?}");
        }
    }
}
