//! Examines the disk without changing it.

use std::fs::File;
use std::path::Path;

use crate::units::Size;

use rustix::fs::{Access, access};

/// Checks that `path` is a readable file.
pub(crate) fn readable_file(path: &Path) -> Result<(), String> {
    let message = |error: std::io::Error| format!("cannot be read: {error}");
    // The type is checked before the file is opened: opening a FIFO waits for its writer.
    if !std::fs::metadata(path).map_err(message)?.is_file() {
        return Err("is not a file".to_owned());
    }
    File::open(path).map(drop).map_err(message)
}

/// Checks that files can be created in `dir`, which must exist.
pub(crate) fn writable_dir(dir: &Path) -> Result<(), String> {
    match std::fs::metadata(dir) {
        Ok(found) if !found.is_dir() => Err(format!("{dir:?} is not a directory")),
        Ok(_) => access(dir, Access::WRITE_OK | Access::EXEC_OK)
            .map_err(|error| format!("{dir:?} cannot be written: {error}")),
        Err(error) => Err(format!("{dir:?} cannot be used: {error}")),
    }
}

/// Checks that files can be created in `dir`, or that `dir` can be created.
pub(crate) fn makeable_dir(dir: &Path) -> Result<(), String> {
    match dir.parent() {
        Some(parent) if matches!(dir.try_exists(), Ok(false)) => makeable_dir(parent),
        _ => writable_dir(dir),
    }
}

/// The text of a file of at most `most` bytes. A caller puts the file's name before the error.
pub(crate) fn text(path: &Path, most: u64) -> Result<String, String> {
    readable_file(path)?;
    let bytes = std::fs::metadata(path).map_err(|error| format!("cannot be read: {error}"))?.len();
    if bytes > most {
        return Err(format!("has {}, must have at most {}", Size(bytes), Size(most)));
    }
    std::fs::read_to_string(path).map_err(|error| format!("cannot be read: {error}"))
}
