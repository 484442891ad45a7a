//! The reason why records are not written now.

use std::io;
use std::path::{Path, PathBuf};

/// The reason why records are not written now. They are written later.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// A file of usage cannot be read or written.
    #[error("{operation} {path:?}: {error}")]
    File {
        /// The operation, for example "write".
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// Another process writes to the directory.
    #[error("{dir:?} is in use by process {pid}")]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// The process, as its lock file says.
        pid: String,
    },
}

impl UsageError {
    /// An operation on a file or directory that failed.
    pub fn file(operation: &'static str, path: &Path, error: io::Error) -> UsageError {
        UsageError::File { operation, path: path.to_owned(), error }
    }
}
