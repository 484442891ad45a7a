//! Reads the records of a directory, also while a process writes them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use afterbay_journal::SegmentId;
use afterbay_journal::storage::Storage;

use crate::usage::error::UsageError;
use crate::usage::files::{self, FileName};
use crate::usage::progress::Progress;
use crate::usage::record::UsageRecord;

/// The records of a directory.
pub struct Records {
    storage: Arc<dyn Storage>,
    dir: PathBuf,
    /// In their order.
    files: Vec<FileName>,
    progress: Progress,
}

impl Records {
    /// Opens a directory of records. `None` if there is no such directory, or it has none.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub fn open(storage: Arc<dyn Storage>, dir: &Path) -> Result<Option<Records>, UsageError> {
        let files = match files::list(&*storage, dir) {
            Err(UsageError::File { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(None);
            }
            listed => listed?,
        };
        // Read after the list: a file that the progress names as the first one is in the list, or was removed.
        let progress = Progress::read(&*storage, dir);
        let has_any = !files.is_empty() || !progress.streams.is_empty();
        Ok(has_any.then(|| Records { storage, dir: dir.to_owned(), files, progress }))
    }

    /// Gives the records of all requests that ended since this time, Unix nanoseconds; earlier ones may be among them, and after a
    /// power cut a record may come twice. Returns the number of damaged lines.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read(&self, since_unix_ns: u64, each: &mut dyn FnMut(UsageRecord)) -> Result<u64, UsageError> {
        let mut damaged = 0;
        for name in self.files.iter().filter(|name| !name.is_of_a_day_before(since_unix_ns)) {
            let mut record = |line: &[u8]| serde_json::from_slice(line).map(&mut *each).is_ok();
            let path = self.dir.join(name.to_string());
            damaged += files::read_whole_lines(&*self.storage, &path, &mut record)?;
        }
        Ok(damaged)
    }

    /// The segment of the journal in which requests may have ended that are not recorded. `None` if nothing of the stream was
    /// recorded.
    #[must_use]
    pub fn recorded_until(&self, stream: &str) -> Option<SegmentId> {
        SegmentId::parse(&self.progress.streams.get(stream)?.segment)
    }

    /// The time, Unix nanoseconds, since which the directory has the record of each request of a stream that ended up to
    /// [`Records::recorded_until`]; 0 if it has all. `None` if that is unknown.
    #[must_use]
    pub fn complete_since_unix_ns(&self, stream: &str) -> Option<u64> {
        let recorded = self.progress.streams.get(stream)?;
        let (first, oldest) = (self.progress.first.as_ref(), self.files.first());
        let since_file = match (first, oldest) {
            (None, None) => 0,
            (Some(first), Some(oldest)) if first == oldest => 0,
            (_, Some(oldest)) => oldest.day_begins_unix_ns(),
            // All files were removed.
            (Some(_), None) => return None,
        };
        Some(since_file.max(recorded.complete_since_unix_ns))
    }

    /// The beginning of the oldest file's day, in Unix nanoseconds.
    #[must_use]
    pub fn begin_unix_ns(&self) -> u64 {
        self.files.first().map_or(0, FileName::day_begins_unix_ns)
    }
}
