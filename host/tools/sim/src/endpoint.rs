//! Listening on endpoints.

use std::io;
use std::net::TcpListener;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use afterbay_types::{Endpoint, EndpointError};
use thiserror::Error;
use zeromq::Listener;

/// The reason why a socket cannot listen on an endpoint.
#[derive(Debug, Error)]
pub enum ListenError {
    /// The text is not an endpoint.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// Another process listens there.
    #[error("endpoint ipc://{}: another process is listening there", .0.display())]
    Taken(PathBuf),
    /// The path belongs to a file that is not a socket and not empty.
    #[error("endpoint ipc://{}: the path belongs to a file that is not empty and not a socket", .0.display())]
    File(PathBuf),
    /// A system call failed.
    #[error("endpoint {endpoint}: {source}")]
    Io {
        /// The endpoint.
        endpoint: String,
        /// The error of the call.
        source: io::Error,
    },
}

/// Listens on an endpoint. A stale socket and an empty file (SGLang makes one) at its path are replaced.
pub(crate) fn listen(endpoint: &str) -> Result<Listener, ListenError> {
    let io = |source| ListenError::Io { endpoint: endpoint.to_owned(), source };
    match endpoint.parse()? {
        Endpoint::Tcp { host, port } => Ok(TcpListener::bind((host.as_str(), port)).map_err(io)?.into()),
        Endpoint::Ipc(path) => {
            remove_stale(&path, io)?;
            Ok(UnixListener::bind(path).map_err(io)?.into())
        }
    }
}

/// Removes the file of a socket that has listened on an ipc endpoint.
pub(crate) fn remove(endpoint: &str) {
    if let Ok(Endpoint::Ipc(path)) = endpoint.parse() {
        // The file may be gone already, with its directory.
        let _removed = std::fs::remove_file(path);
    }
}

fn remove_stale(path: &Path, io: impl Fn(io::Error) -> ListenError) -> Result<(), ListenError> {
    let metadata = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        metadata => metadata.map_err(&io)?,
    };
    if metadata.file_type().is_socket() {
        if UnixStream::connect(path).is_ok() {
            return Err(ListenError::Taken(path.to_owned()));
        }
    } else if !metadata.is_file() || metadata.len() > 0 {
        return Err(ListenError::File(path.to_owned()));
    }
    std::fs::remove_file(path).map_err(io)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_socket_and_an_empty_file_are_replaced_and_others_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("reader");
        let endpoint = format!("ipc://{}", path.display());
        let first = listen(&endpoint).unwrap();
        assert!(matches!(listen(&endpoint), Err(ListenError::Taken(_))));
        drop(first);
        drop(listen(&endpoint).unwrap());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, b"").unwrap();
        drop(listen(&endpoint).unwrap());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, b"a diary").unwrap();
        assert!(matches!(listen(&endpoint), Err(ListenError::File(_))));
        assert_eq!(std::fs::read(&path).unwrap(), b"a diary");
    }
}
