//! Listening on endpoints.

use std::io;
use std::net::TcpListener;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use afterbay_types::Endpoint;
use anyhow::{Context, ensure};
use zeromq::Listener;

/// Listens on an endpoint. A stale socket and an empty file (SGLang makes one) at its path are replaced.
pub(crate) fn listen(endpoint: &str) -> anyhow::Result<Listener> {
    let listening = || -> anyhow::Result<Listener> {
        match endpoint.parse()? {
            Endpoint::Tcp { host, port } => Ok(TcpListener::bind((host.as_str(), port))?.into()),
            Endpoint::Ipc(path) => {
                remove_stale(&path)?;
                Ok(UnixListener::bind(path)?.into())
            }
        }
    };
    listening().with_context(|| format!("endpoint {endpoint}"))
}

/// Removes the file of a socket that has listened on an ipc endpoint.
pub(crate) fn remove(endpoint: &str) {
    if let Ok(Endpoint::Ipc(path)) = endpoint.parse() {
        // The file may be gone already, with its directory.
        let _removed = std::fs::remove_file(path);
    }
}

fn remove_stale(path: &Path) -> anyhow::Result<()> {
    let metadata = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        metadata => metadata?,
    };
    if metadata.file_type().is_socket() {
        ensure!(UnixStream::connect(path).is_err(), "another process is listening there");
    } else {
        let is_empty_file = metadata.is_file() && metadata.len() == 0;
        ensure!(is_empty_file, "the path belongs to a file that is not empty and not a socket");
    }
    Ok(std::fs::remove_file(path)?)
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
        let refused = |endpoint: &str| format!("{:#}", listen(endpoint).err().unwrap());
        assert!(refused(&endpoint).ends_with("another process is listening there"));
        drop(first);
        drop(listen(&endpoint).unwrap());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, b"").unwrap();
        drop(listen(&endpoint).unwrap());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, b"a diary").unwrap();
        assert!(refused(&endpoint).ends_with("a file that is not empty and not a socket"));
        assert_eq!(std::fs::read(&path).unwrap(), b"a diary");
    }
}
