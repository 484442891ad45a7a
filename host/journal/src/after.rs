//! Which streams a stream comes after: the legs that requests have before it, so that whoever reads the journal without
//! the configuration can put them together.
//!
//! Owns the file `AFTER` of a stream's directory. What is made of it is not its business.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};

use crate::error::{IoError, ReadError};
use crate::segment::read_full;
use crate::storage::Storage;
use crate::sync::write_all;

/// A file past this is none of ours: 64 names of 128 bytes fit many times.
const BYTES_MAX: u64 = 64 << 10;

/// The file's name.
pub(crate) const NAME: &str = "AFTER";

fn file(dir: &Path) -> PathBuf {
    dir.join(NAME)
}

/// Writes the file anew, whole, where it says otherwise; removes it where there is nothing to say.
pub(crate) fn write(storage: &dyn Storage, dir: &Path, names: &[String]) -> Result<(), IoError> {
    let path = file(dir);
    if read(storage, dir).is_ok_and(|before| before == names) {
        return Ok(());
    }
    if names.is_empty() {
        return storage.remove(&path).map_err(|error| IoError::new("remove", &path, error));
    }
    let part = dir.join("AFTER.part");
    let mut text = names.join("\n");
    text.push('\n');
    let written = storage.create(&part).and_then(|file| {
        write_all(&*file, &mut [IoSlice::new(text.as_bytes())], 0)?;
        file.sync()
    });
    written.map_err(|error| IoError::new("write", &part, error))?;
    storage.rename(&part, &path).map_err(|error| IoError::new("rename", &part, error))?;
    storage.sync_dir(dir).map_err(|error| IoError::new("sync", dir, error))
}

/// The names in it; none where there is no such file.
pub(crate) fn read(storage: &dyn Storage, dir: &Path) -> Result<Vec<String>, ReadError> {
    let path = file(dir);
    let opened = match storage.open(&path, false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
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
    let text = String::from_utf8(text).map_err(|error| corrupt(error.utf8_error().valid_up_to()))?;
    Ok(text.lines().map(str::to_owned).collect())
}
