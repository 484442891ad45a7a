//! The files of records: JSON lines, appended and synced. A file ends at 64 MiB or with its day (UTC).
//!
//! A record counts once it is a whole line. What an earlier process left incomplete at the end of the last file is cut.

use std::fmt;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use afterbay_journal::storage::{File, Storage, read_full, write_all};
use chrono::{DateTime, NaiveDate, NaiveTime};
use serde::{Deserialize, Serialize};

use crate::usage::error::UsageError;

/// Size at which the next line begins a file.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Most bytes of a line. A record has at most 32 reasons of 4,096 bytes and a rid of as many, each byte in six at most.
const LINE_BYTES_MAX: usize = 2 << 20;
/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 20;
const DAY_NS: u64 = 86_400_000_000_000;

/// Name of a file, `usage-DAY-NUMBER.jsonl`. Names are ordered as the files were begun.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FileName {
    day: NaiveDate,
    number: u32,
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "usage-{}-{:06}.jsonl", self.day, self.number)
    }
}

impl FileName {
    fn parse(name: &str) -> Option<FileName> {
        let (day, number) = name.strip_prefix("usage-")?.strip_suffix(".jsonl")?.rsplit_once('-')?;
        let file = FileName { day: day.parse().ok()?, number: number.parse().ok()? };
        // Not another form of the same numbers.
        (file.to_string() == name).then_some(file)
    }

    /// The beginning of its day, in Unix nanoseconds. The records of requests that ended later are in this file or in later ones,
    /// unless earlier files of the day were removed.
    pub fn day_begins_unix_ns(&self) -> u64 {
        let begins = self.day.and_time(NaiveTime::MIN).and_utc().timestamp_nanos_opt();
        begins.and_then(|begins| u64::try_from(begins).ok()).unwrap_or_default()
    }

    /// Whether its day ended before this time, in Unix nanoseconds.
    pub fn is_of_a_day_before(&self, unix_ns: u64) -> bool {
        self.day < day_of(unix_ns)
    }
}

fn day_of(unix_ns: u64) -> NaiveDate {
    DateTime::from_timestamp_nanos(unix_ns.cast_signed()).date_naive()
}

/// The files of a directory, in their order.
pub(crate) fn list(storage: &dyn Storage, dir: &Path) -> Result<Vec<FileName>, UsageError> {
    let listed = storage.list(dir).map_err(|error| UsageError::file("list", dir, error))?;
    let files = listed.iter().filter(|entry| !entry.is_dir);
    let mut names: Vec<FileName> = files.filter_map(|entry| FileName::parse(&entry.name)).collect();
    names.sort();
    Ok(names)
}

impl From<FileName> for String {
    fn from(name: FileName) -> String {
        name.to_string()
    }
}

impl TryFrom<String> for FileName {
    type Error = String;

    fn try_from(name: String) -> Result<FileName, String> {
        FileName::parse(&name).ok_or_else(|| format!("{name:?} is no file of usage"))
    }
}

/// A place between two lines.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FilePosition {
    /// The file.
    pub file: FileName,
    /// Bytes before the place.
    pub offset: u64,
}

/// Damage that a start found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Bytes at the end of a file were cut.
    Cut {
        /// The file.
        file: FileName,
        /// Number of bytes.
        bytes: u64,
    },
    /// Lines inside a file are damaged.
    Damaged {
        /// The file.
        file: FileName,
        /// Number of lines.
        lines: u64,
    },
}

/// Writes the lines.
pub struct UsageFiles {
    storage: Arc<dyn Storage>,
    dir: PathBuf,
    /// Days (UTC), today included, whose files stay. `None`: all.
    kept_days: Option<u32>,
    current: Option<Current>,
    /// The first file, if there was none before.
    first: Option<FileName>,
    /// Whole lines behind `Current::synced` that no sync has made durable. They are written again after a failure.
    unsynced: Vec<u8>,
    unsynced_lines: u64,
}

struct Current {
    name: FileName,
    file: Arc<dyn File>,
    synced: u64,
}

impl UsageFiles {
    /// Reads the lines from the file before this one on, by default all, and continues behind the last whole one. `record` takes a
    /// line, and returns whether the line is whole. What is not whole is cut at the end of the last file; behind `synced`, with all
    /// that follows.
    pub fn open(
        storage: Arc<dyn Storage>,
        dir: &Path,
        kept_days: Option<u32>,
        from: Option<&FileName>,
        synced: Option<&FilePosition>,
        record: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<(UsageFiles, Vec<Found>), UsageError> {
        let mut names = list(&*storage, dir)?;
        let (mut found, mut current) = (Vec::new(), None);
        let last = names.last().cloned();
        // The journal may have lost the newest ends to a power cut. Their records may be in the file before.
        let begin = from.map_or(0, |from| names.partition_point(|name| name < from).saturating_sub(1));
        for name in names.split_off(begin) {
            let is_last = Some(&name) == last.as_ref();
            let path = dir.join(name.to_string());
            let error = |operation| {
                let path = path.clone();
                move |error| UsageError::file(operation, &path, error)
            };
            let file = storage.open(&path, is_last).map_err(error("open"))?;
            let bytes = file.bytes().map_err(error("stat"))?;
            // Only what no sync has made durable can be torn, and the journal still has its requests.
            let may_be_torn = match synced {
                Some(synced) if synced.file == name && is_last => synced.offset,
                Some(synced) if synced.file < name && is_last => 0,
                _ => u64::MAX,
            };
            let lines = read_lines(&*file, may_be_torn, record).map_err(error("read"))?;
            if lines.damaged > 0 {
                found.push(Found::Damaged { file: name.clone(), lines: lines.damaged });
            }
            if is_last {
                if lines.end < bytes {
                    file.truncate(lines.end).and_then(|()| file.sync()).map_err(error("cut"))?;
                    found.push(Found::Cut { file: name.clone(), bytes: bytes - lines.end });
                }
                current = Some(Current { name, file, synced: lines.end });
            }
        }
        let (unsynced, unsynced_lines) = (Vec::new(), 0);
        let dir = dir.to_owned();
        let files = UsageFiles { storage, dir, kept_days, current, first: None, unsynced, unsynced_lines };
        Ok((files, found))
    }

    /// Adds a line for the next [`UsageFiles::commit`].
    pub fn push(&mut self, line: &[u8]) {
        self.unsynced.extend_from_slice(line);
        self.unsynced_lines += 1;
    }

    /// Bytes that wait for [`UsageFiles::commit`].
    pub fn waiting(&self) -> usize {
        self.unsynced.len()
    }

    /// The newest file; `None` before the first one.
    pub fn newest(&self) -> Option<FileName> {
        Some(self.current.as_ref()?.name.clone())
    }

    /// The first file, if the directory had none at the start.
    pub fn first(&self) -> Option<&FileName> {
        self.first.as_ref()
    }

    /// The end of the synced lines; `None` before the first file.
    pub fn synced(&self) -> Option<FilePosition> {
        let current = self.current.as_ref()?;
        Some(FilePosition { file: current.name.clone(), offset: current.synced })
    }

    /// Writes the lines that wait, and syncs. Returns their number and their bytes. After an error they keep waiting, and the next
    /// call writes them again.
    pub fn commit(&mut self) -> Result<(u64, u64), UsageError> {
        if self.unsynced.is_empty() {
            return Ok((0, 0));
        }
        self.begin_file()?;
        let Some(current) = &mut self.current else { return Ok((0, 0)) };
        let path = self.dir.join(current.name.to_string());
        write_all(&*current.file, &mut [IoSlice::new(&self.unsynced)], current.synced)
            .map_err(|error| UsageError::file("write", &path, error))?;
        current.file.sync().map_err(|error| UsageError::file("sync", &path, error))?;
        let bytes = self.unsynced.len() as u64;
        current.synced += bytes;
        self.unsynced.clear();
        Ok((std::mem::take(&mut self.unsynced_lines), bytes))
    }

    /// Begins the next file if the current one is full or of another day.
    fn begin_file(&mut self) -> Result<(), UsageError> {
        let now = self.storage.now_unix_ns();
        let today = day_of(now);
        let next = match &self.current {
            // A clock that was set back begins no file of a day before.
            Some(Current { name, file, synced }) if today <= name.day => {
                // The directory may have been removed meanwhile.
                if *synced < FILE_BYTES_MAX && file.is_at(&self.dir.join(name.to_string())) {
                    return Ok(());
                }
                FileName { day: name.day, number: name.number + 1 }
            }
            Some(_) | None => FileName { day: today, number: 1 },
        };
        let path = self.dir.join(next.to_string());
        let create = || -> io::Result<Arc<dyn File>> {
            let file = self.storage.create(&path)?;
            self.storage.sync_dir(&self.dir)?;
            Ok(file)
        };
        let file = match create() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.storage.make_dir(&self.dir).and_then(|()| create())
            }
            created => created,
        };
        let file = file.map_err(|error| UsageError::file("create", &path, error))?;
        if self.current.is_none() {
            self.first = Some(next.clone());
        }
        self.current = Some(Current { name: next, file, synced: 0 });
        self.remove_old(now);
        Ok(())
    }

    /// Removes the files of days that are not kept. What the disk refuses is removed with the next file.
    fn remove_old(&self, now_unix_ns: u64) {
        let Some(days) = self.kept_days else { return };
        let kept = now_unix_ns.saturating_sub(u64::from(days.saturating_sub(1)) * DAY_NS);
        for name in list(&*self.storage, &self.dir).unwrap_or_default() {
            if name.is_of_a_day_before(kept) {
                let _ = self.storage.remove(&self.dir.join(name.to_string()));
            }
        }
    }
}

/// The lines of a file.
struct Lines {
    /// End of the last whole line.
    end: u64,
    /// Lines before that are not whole.
    damaged: u64,
}

/// Reads the whole lines of a file that may grow. Returns the lines inside that are damaged.
pub(crate) fn read_whole_lines(
    storage: &dyn Storage,
    path: &Path,
    record: &mut dyn FnMut(&[u8]) -> bool,
) -> Result<u64, UsageError> {
    let file = storage.open(path, false).map_err(|error| UsageError::file("open", path, error))?;
    let lines = read_lines(&*file, u64::MAX, record);
    Ok(lines.map_err(|error| UsageError::file("read", path, error))?.damaged)
}

/// Reads lines up to the end, or up to the first line behind `may_be_torn` that is not whole.
fn read_lines(file: &dyn File, may_be_torn: u64, record: &mut dyn FnMut(&[u8]) -> bool) -> io::Result<Lines> {
    let mut lines = Lines { end: 0, damaged: 0 };
    let mut buffer: Vec<u8> = Vec::new();
    let mut chunk = vec![0; READ_BYTES];
    // Offset of the buffer in the file, and lines that are not whole since the last whole one.
    let (mut at, mut not_whole) = (0, 0);
    loop {
        let read = read_full(file, &mut chunk, at + buffer.len() as u64)?;
        if read == 0 {
            return Ok(lines);
        }
        buffer.extend_from_slice(&chunk[..read]);
        let mut taken = 0;
        while let Some(bytes) = buffer[taken..].iter().position(|byte| *byte == b'\n') {
            if record(&buffer[taken..taken + bytes]) {
                lines.damaged += std::mem::take(&mut not_whole);
                lines.end = at + (taken + bytes + 1) as u64;
            } else if at + taken as u64 >= may_be_torn {
                return Ok(lines);
            } else {
                not_whole += 1;
            }
            taken += bytes + 1;
        }
        buffer.drain(..taken);
        at += taken as u64;
        if buffer.len() > LINE_BYTES_MAX {
            if at >= may_be_torn {
                return Ok(lines);
            }
            // Its rest counts as a line of its own, which is not whole either.
            at += buffer.len() as u64;
            buffer.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_ordered_as_the_files_were_begun_and_others_are_no_files_of_usage() {
        let name = |text: &str| FileName::parse(text).unwrap();
        assert!(name("usage-2026-11-20-000009.jsonl") < name("usage-2026-11-20-000010.jsonl"));
        assert!(name("usage-2026-11-20-000010.jsonl") < name("usage-2026-11-21-000001.jsonl"));
        assert_eq!(name("usage-2026-11-20-000009.jsonl").to_string(), "usage-2026-11-20-000009.jsonl");
        for other in
            ["usage-2026-11-20.jsonl", "usage-2026-11-20-1.jsonl", "x", "usage-2026/11-20-000001.jsonl"]
        {
            assert_eq!(FileName::parse(other), None, "{other}");
        }
    }
}
