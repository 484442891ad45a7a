//! The file `PROGRESS` beside the records: where the next start begins to read the journal and the records, and since when the
//! records are complete.
//!
//! A start without the file, or with an old one, reads more: all segments, and all records.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::path::Path;

use afterbay_journal::storage::{Storage, read_full, write_all};
use serde::{Deserialize, Serialize};

use crate::usage::error::UsageError;
use crate::usage::files::{FileName, FilePosition};

const PROGRESS: &str = "PROGRESS";
const PART: &str = "PROGRESS.part";
/// Largest file that is read.
const BYTES_MAX: usize = 1 << 20;

/// The places where the next start begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The end of the records when the file was written: they are synced.
    pub synced: Option<FilePosition>,
    /// The first file of records that was ever begun. If it is missing, files were removed.
    pub first: Option<FileName>,
    /// By stream.
    pub streams: BTreeMap<String, StreamProgress>,
}

/// The places where the next start begins for one stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamProgress {
    /// Name of the oldest segment that is needed.
    pub segment: String,
    /// The newest file of records when this segment was opened: the records of requests that ended in the segment or later are in
    /// this file or in later ones. `None`: there was no file.
    pub records: Option<FileName>,
    /// The time, Unix nanoseconds, since which every request that ended was recorded: the journal had lost earlier segments before
    /// they were read. 0: all were.
    pub complete_since_unix_ns: u64,
}

impl Progress {
    /// Reads the file. A file that is missing or unreadable gives nothing.
    pub fn read(storage: &dyn Storage, dir: &Path) -> Progress {
        let read = || {
            let file = storage.open(&dir.join(PROGRESS), false).ok()?;
            let mut bytes = vec![0; BYTES_MAX];
            let read = read_full(&*file, &mut bytes, 0).ok()?;
            serde_json::from_slice(&bytes[..read]).ok()
        };
        read().unwrap_or_default()
    }

    /// Replaces the file, whole or not at all. The records up to `synced` are durable.
    pub fn write(&self, storage: &dyn Storage, dir: &Path) -> Result<(), UsageError> {
        let part = dir.join(PART);
        let bytes = serde_json::to_vec(self).unwrap_or_default();
        let write = || {
            let file = storage.create(&part)?;
            write_all(&*file, &mut [IoSlice::new(&bytes)], 0)?;
            file.sync()?;
            storage.rename(&part, &dir.join(PROGRESS))?;
            storage.sync_dir(dir)
        };
        write().map_err(|error| UsageError::file("write", &dir.join(PROGRESS), error))
    }

    /// The oldest file with records that a start must know; `None`: all.
    pub fn records(&self) -> Option<&FileName> {
        let all: Option<Vec<&FileName>> =
            self.streams.values().map(|stream| stream.records.as_ref()).collect();
        all?.into_iter().min()
    }
}
