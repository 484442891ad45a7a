//! Lists and opens the segment files of a stream.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{IoError, ReadError};
use crate::position::SegmentId;
use crate::segment::{RecordedEnd, Segment};
use crate::storage::Storage;

/// A segment in the listing of its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentFile {
    pub id: SegmentId,
    pub bytes: u64,
    pub modified_unix_ns: u64,
}

/// The segments of a stream, in order; none where the directory is not there.
pub(crate) fn list(storage: &dyn Storage, dir: &Path) -> io::Result<Vec<SegmentFile>> {
    let entries = match storage.list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        entries => entries?,
    };
    let mut segments: Vec<SegmentFile> = entries
        .into_iter()
        .filter(|entry| !entry.is_dir)
        .filter_map(|entry| {
            let id = SegmentId::parse(&entry.name)?;
            Some(SegmentFile { id, bytes: entry.bytes, modified_unix_ns: entry.modified_unix_ns })
        })
        .collect();
    segments.sort_by_key(|segment| segment.id);
    Ok(segments)
}

/// A stream's segments on the disk.
#[derive(Clone)]
pub(crate) struct SegmentFiles {
    pub storage: Arc<dyn Storage>,
    pub dir: PathBuf,
}

impl SegmentFiles {
    pub fn list(&self) -> Result<Vec<SegmentFile>, ReadError> {
        Ok(list(&*self.storage, &self.dir).map_err(|error| IoError::new("list", &self.dir, error))?)
    }

    /// `None` where it was removed, or its header cannot be read.
    pub fn open(&self, id: SegmentId) -> Result<Option<Segment>, ReadError> {
        match Segment::open(&*self.storage, &self.dir, id, false) {
            Err(ReadError::Io(error)) if error.source.kind() == ErrorKind::NotFound => Ok(None),
            opened => opened,
        }
    }

    /// What is known of a segment from the one after it.
    pub fn seen_from(&self, next: Option<SegmentId>, id: SegmentId) -> Result<RecordedEnd, ReadError> {
        let next = match next {
            Some(next) => self.open(next)?,
            None => None,
        };
        Ok(next.map_or_else(RecordedEnd::default, |next| next.of_previous(id)))
    }
}
