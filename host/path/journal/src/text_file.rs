//! Small text files beside a stream's segments. A file is replaced as a whole.
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
    let part = dir.join(format!("{name}.part"));
    let written = storage.create(&part).and_then(|file| {
        write_all(&*file, &mut [IoSlice::new(text.as_bytes())], 0)?;
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
    let opened = match storage.open(&path, false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        opened => opened.map_err(|error| IoError::new("open", &path, error))?,
    };
    let corrupt = |offset: usize| ReadError::Corrupt { path: path.clone(), offset: offset as u64 };
    let bytes = opened.bytes().map_err(|error| IoError::new("read", &path, error))?;
    if bytes > BYTES_MAX {
        return Err(corrupt(BYTES_MAX as usize));
    }
    let mut text = vec![0; bytes as usize];
    let read = read_full(&*opened, &mut text, 0).map_err(|error| IoError::new("read", &path, error))?;
    text.truncate(read);
    String::from_utf8(text).map_err(|error| corrupt(error.utf8_error().valid_up_to()))
}
