//! Small files beside a stream's segments, mostly of text. A file is replaced as a whole.
//!
//! `AFTER` names the streams that a stream follows: earlier legs of its requests are there. `LAYOUT` has the layout of its frames.

use std::io::{self, IoSlice};
use std::path::Path;

use crate::error::{IoError, ReadError};
use crate::storage::{Storage, read_full, write_all};

/// Size past which a file is refused as corrupt.
const BYTES_MAX: u64 = 1 << 20;

/// Names of the preceding streams, one per line.
pub(crate) const AFTER: &str = "AFTER";
/// The layout of a stream's frames, as the writer says it.
pub(crate) const LAYOUT: &str = "LAYOUT";

/// Writes the file if its text differs. Removes the file if `text` is empty.
pub(crate) fn write(storage: &dyn Storage, dir: &Path, name: &str, text: &str) -> Result<(), IoError> {
    let path = dir.join(name);
    if read(storage, dir, name).is_ok_and(|before| before == text) {
        return Ok(());
    }
    if text.is_empty() {
        let removed = storage.remove(&path).map_err(|error| IoError::new("remove", &path, error));
        return removed.and_then(|()| sync(storage, dir));
    }
    replace(storage, dir, name, text.as_bytes())
}

/// Writes a file durably, replacing one of the same name as a whole.
pub(crate) fn replace(storage: &dyn Storage, dir: &Path, name: &str, bytes: &[u8]) -> Result<(), IoError> {
    let (part, path) = (dir.join(format!("{name}.part")), dir.join(name));
    let written = storage.create(&part).and_then(|file| {
        write_all(&*file, &mut [IoSlice::new(bytes)], 0)?;
        file.sync()
    });
    written.map_err(|error| IoError::new("write", &part, error))?;
    storage.rename(&part, &path).map_err(|error| IoError::new("rename", &part, error))?;
    sync(storage, dir)
}

fn sync(storage: &dyn Storage, dir: &Path) -> Result<(), IoError> {
    storage.sync_dir(dir).map_err(|error| IoError::new("sync", dir, error))
}

/// Reads the file. Returns an empty text if there is no file.
pub(crate) fn read(storage: &dyn Storage, dir: &Path, name: &str) -> Result<String, ReadError> {
    let path = dir.join(name);
    let text = read_bytes(storage, &path, BYTES_MAX)?.unwrap_or_default();
    String::from_utf8(text).map_err(|error| {
        let offset = error.utf8_error().valid_up_to() as u64;
        ReadError::Corrupt { path, offset }
    })
}

/// Reads a file of at most `bytes_max` bytes; a larger one is refused as corrupt. Returns `None` if there is no file.
pub(crate) fn read_bytes(
    storage: &dyn Storage,
    path: &Path,
    bytes_max: u64,
) -> Result<Option<Vec<u8>>, ReadError> {
    let opened = match storage.open(path, false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|error| IoError::new("open", path, error))?,
    };
    let bytes = opened.bytes().map_err(|error| IoError::new("read", path, error))?;
    if bytes > bytes_max {
        return Err(ReadError::Corrupt { path: path.into(), offset: bytes_max });
    }
    let mut content = vec![0; bytes as usize];
    let read = read_full(&*opened, &mut content, 0).map_err(|error| IoError::new("read", path, error))?;
    content.truncate(read);
    Ok(Some(content))
}
