//! A directory that is filled with copies of a stream's segments: journal readers read it like the original.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::IoError;
use crate::instance::INSTANCE;
use crate::names::is_copied_stream_name;
use crate::position::SegmentId;
use crate::storage::{Disk, File, PART, Storage, read_full, write_all};
use crate::text_file;

/// Most files that are kept open for the next write. Others are opened again.
const OPEN_FILES_MAX: usize = 4;

/// A stream's directory in a copy of one or several journals. Nobody else writes to it.
pub struct CopiedStream {
    dir: PathBuf,
    /// Files written last.
    open: HashMap<SegmentId, Arc<dyn File>>,
    /// Segments that have a file, each with whether the file has its name. Before that, readers ignore it.
    shown: HashMap<SegmentId, bool>,
}

impl CopiedStream {
    /// Makes the directory `name` in a copy's directory, which exists.
    ///
    /// # Errors
    /// The name is no name of a stream, or the disk refuses the directory.
    pub fn make(journal: &Path, name: &str, instance: &str) -> Result<CopiedStream, IoError> {
        let dir = journal.join(name);
        if !is_copied_stream_name(name) {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "is no name of a stream");
            return Err(IoError::new("make directory", &dir, error));
        }
        Disk.make_dir(&dir).map_err(|error| IoError::new("make directory", &dir, error))?;
        text_file::write(&Disk, &dir, INSTANCE, &format!("{instance}\n"))?;
        Ok(CopiedStream { dir, open: HashMap::new(), shown: HashMap::new() })
    }

    /// Records the streams that precede this stream.
    ///
    /// # Errors
    /// The disk refuses the file.
    pub fn set_after(&self, after: &[String]) -> Result<(), IoError> {
        let text: String = after.iter().map(|name| format!("{name}\n")).collect();
        text_file::write(&Disk, &self.dir, text_file::AFTER, &text)
    }

    /// Writes bytes of a segment. Readers see the segment from [`CopiedStream::show`] on.
    ///
    /// # Errors
    /// The disk refuses the bytes.
    pub fn write(&mut self, segment: SegmentId, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        let file = self.file(segment)?;
        write_all(&*file, &mut [IoSlice::new(bytes)], offset)
            .map_err(|error| IoError::new("write", &self.path(segment), error))
    }

    /// Whether the copy has these bytes of a segment.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn has(&mut self, segment: SegmentId, offset: u64, bytes: &[u8]) -> Result<bool, IoError> {
        let mut there = vec![0; bytes.len()];
        let file = self.file(segment)?;
        let read = read_full(&*file, &mut there, offset);
        let read = read.map_err(|error| IoError::new("read", &self.path(segment), error))?;
        Ok(there[..read] == *bytes)
    }

    /// Gives a segment its name, so that readers see it. Its header must be there.
    ///
    /// # Errors
    /// The disk refuses the name.
    pub fn show(&mut self, segment: SegmentId) -> Result<(), IoError> {
        if self.shown.get(&segment) != Some(&true) {
            let (part, path) = (self.path(segment), self.dir.join(segment.to_string()));
            Disk.rename(&part, &path).map_err(|error| IoError::new("rename", &part, error))?;
            self.shown.insert(segment, true);
        }
        Ok(())
    }

    /// Cuts a segment to its size.
    ///
    /// # Errors
    /// The disk refuses the change.
    pub fn truncate(&mut self, segment: SegmentId, size: u64) -> Result<(), IoError> {
        let file = self.file(segment)?;
        file.truncate(size).map_err(|error| IoError::new("cut", &self.path(segment), error))
    }

    /// Removes a segment.
    ///
    /// # Errors
    /// The disk refuses the change.
    pub fn remove(&mut self, segment: SegmentId) -> Result<(), IoError> {
        let path = self.path(segment);
        self.open.remove(&segment);
        self.shown.remove(&segment);
        Disk.remove(&path).map_err(|error| IoError::new("remove", &path, error))
    }

    fn path(&self, segment: SegmentId) -> PathBuf {
        let path = self.dir.join(segment.to_string());
        if self.shown.get(&segment) == Some(&true) { path } else { path.with_extension(PART) }
    }

    fn file(&mut self, segment: SegmentId) -> Result<Arc<dyn File>, IoError> {
        if let Some(file) = self.open.get(&segment) {
            return Ok(file.clone());
        }
        let path = self.path(segment);
        let made = match self.shown.entry(segment) {
            std::collections::hash_map::Entry::Occupied(_) => Disk.open(&path, true),
            std::collections::hash_map::Entry::Vacant(new) => {
                new.insert(false);
                Disk.create(&path)
            }
        };
        let file = made.map_err(|error| IoError::new("open", &path, error))?;
        if self.open.len() >= OPEN_FILES_MAX {
            self.open.clear();
        }
        self.open.insert(segment, file.clone());
        Ok(file)
    }
}
