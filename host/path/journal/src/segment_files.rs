//! Lists and opens the segment files of a stream.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{IoError, ReadError};
use crate::position::SegmentId;
use crate::segment::{RecordedEnd, Segment};
use crate::storage::Storage;

/// File of a segment in its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentFile {
    pub id: SegmentId,
    pub bytes: u64,
    pub modified_unix_ns: u64,
}

/// Lists the segments of a stream in order. A missing directory has none.
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

/// Directory with the segments of a stream.
#[derive(Clone)]
pub(crate) struct SegmentFiles {
    pub storage: Arc<dyn Storage>,
    pub dir: PathBuf,
}

impl SegmentFiles {
    pub fn list(&self) -> Result<Vec<SegmentFile>, ReadError> {
        Ok(list(&*self.storage, &self.dir).map_err(|error| IoError::new("list", &self.dir, error))?)
    }

    /// Opens a segment. Returns `None` if it was removed or its header cannot be read.
    pub fn open(&self, id: SegmentId) -> Result<Option<Segment>, ReadError> {
        match Segment::open(&*self.storage, &self.dir, id, false) {
            Err(ReadError::Io(error)) if error.source.kind() == ErrorKind::NotFound => Ok(None),
            opened => opened,
        }
    }

    /// Returns the end of segment `id` as `next` records it.
    pub fn recorded_end(&self, next: Option<SegmentId>, id: SegmentId) -> Result<RecordedEnd, ReadError> {
        let next = match next {
            Some(next) => self.open(next)?,
            None => None,
        };
        Ok(next.map_or_else(RecordedEnd::default, |next| next.recorded_end_of(id)))
    }
}
