//! Looks at the disk without changing it.

use std::fs::File;
use std::path::Path;

use rustix::fs::{Access, access};

/// Says why `path` cannot be read as a file.
pub(crate) fn readable_file(path: &Path) -> Result<(), String> {
    let told = |error: std::io::Error| format!("cannot be read: {error}");
    // Asked before it is opened: to open a FIFO waits for its writer.
    if !std::fs::metadata(path).map_err(told)?.is_file() {
        return Err("is not a file".to_owned());
    }
    File::open(path).map(drop).map_err(told)
}

/// Says why files cannot be made in `dir`, or `dir` itself in the nearest parent that exists.
pub(crate) fn writable_dir(dir: &Path) -> Result<(), String> {
    for ancestor in dir.ancestors() {
        match std::fs::metadata(ancestor) {
            Ok(found) if !found.is_dir() && ancestor == dir => {
                return Err(format!("{dir:?} is not a directory"));
            }
            Ok(found) if !found.is_dir() => return Err(format!("{dir:?}: {ancestor:?} is not a directory")),
            Ok(_) => {
                return access(ancestor, Access::WRITE_OK | Access::EXEC_OK)
                    .map_err(|error| format!("{dir:?}: {ancestor:?} cannot be written: {error}"));
            }
            // A file stands where a directory should: the next ancestor is that file.
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
                ) => {}
            Err(error) => return Err(format!("{ancestor:?} cannot be looked at: {error}")),
        }
    }
    Err(format!("{dir:?} has no parent directory that exists"))
}
