//! The places that a journal is read from: `--from`.

use crate::pack_file;
use afterbay_journal::reader::JournalReader;
use anyhow::{Context, ensure};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// A place that a journal is read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The directory of a journal.
    Directory(PathBuf),
    /// A file that `afterbay journal pack` wrote.
    Pack(PathBuf),
}

impl Source {
    /// The source that a path names: a file whose name ends in `.tar.zst` is a pack.
    #[must_use]
    pub fn of(path: PathBuf) -> Source {
        match pack_file::is_pack_name(&path) && !path.is_dir() {
            true => Source::Pack(path),
            false => Source::Directory(path),
        }
    }

    /// Makes the journal a directory. A pack is unpacked into a temporary directory, at most 1 GiB.
    ///
    /// # Errors
    /// There is no such file, the pack is damaged, foreign or too large, or the disk.
    pub fn open(&self) -> anyhow::Result<OpenSource> {
        let copy = match self {
            Source::Directory(dir) => {
                ensure!(
                    !dir.is_file(),
                    "{self}: neither the directory of a journal nor a pack (NAME.tar.zst)"
                );
                return Ok(OpenSource { name: self.to_string(), dir: dir.clone(), copy: None });
            }
            Source::Pack(pack) => {
                let copy = temporary()?;
                pack_file::unpack(pack, copy.path())?;
                copy
            }
        };
        let dir = copy.path().join(pack_file::JOURNAL);
        Ok(OpenSource { name: self.to_string(), dir, copy: Some(copy) })
    }
}

impl From<OsString> for Source {
    fn from(path: OsString) -> Source {
        Source::of(path.into())
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Source::Directory(path) | Source::Pack(path)) = self;
        path.display().fmt(f)
    }
}

/// Makes a directory that only this user can enter, and that is removed at the end of the command.
pub(crate) fn temporary() -> anyhow::Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("afterbay-").tempdir().context("cannot make a temporary directory")
}

/// A journal as a directory. The directory of a copy is removed with this value.
pub struct OpenSource {
    /// The source as the user named it.
    name: String,
    dir: PathBuf,
    copy: Option<tempfile::TempDir>,
}

impl OpenSource {
    /// Opens the journal for reading.
    ///
    /// # Errors
    /// The directory is no journal, or cannot be read.
    pub fn journal(&self) -> anyhow::Result<JournalReader> {
        Ok(JournalReader::open(&self.dir)?)
    }

    /// The source as the user named it, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directory of the journal.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether the directory is a copy: nothing is appended to it, and changing it changes nothing.
    pub fn is_copy(&self) -> bool {
        self.copy.is_some()
    }
}
