//! The places that a follower of the journal has confirmed: it needs no segment before them. One small file for each follower,
//! which the process that writes the journal reads before it removes segments.
//!
//! The first line names the copy that the follower makes. Each further line has a stream and the oldest segment of it that the
//! follower needs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{IoError, ReadError};
use crate::position::SegmentId;
use crate::storage::Storage;
use crate::text_file;

/// The directory in a journal's directory that has the files of its followers.
const DIR: &str = ".followers";
/// Age at which a segment ends if a follower reads only segments that have ended.
pub(crate) const SEGMENT_AGE_MAX: Duration = Duration::from_secs(600);

/// A reader of the whole journal that must have read a segment before retention removes the segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Follower {
    /// Name of its file, and for messages.
    pub name: &'static str,
    /// The copy that it makes. Places that were confirmed for another copy do not count.
    pub copy: String,
    /// Whether the follower reads only segments that have ended: a segment then ends 10 minutes after its first record, also if
    /// the stream is idle.
    pub needs_ended_segments: bool,
}

/// The places that a follower has confirmed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Confirmed(BTreeMap<String, SegmentId>);

/// The directory of the followers' files of a journal.
#[must_use]
pub fn followers_dir(journal: &Path) -> PathBuf {
    journal.join(DIR)
}

/// The followers that have ever confirmed a place in this journal, and may have copies of it.
pub(crate) fn names(storage: &dyn Storage, journal: &Path) -> Result<Vec<String>, ReadError> {
    let dir = followers_dir(journal);
    let listed = match storage.list(&dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        listed => listed.map_err(|error| IoError::new("list", &dir, error))?,
    };
    // The names of other files there are in capitals, or have a dot.
    let is_follower = |name: &String| name.bytes().all(|byte| byte.is_ascii_lowercase());
    let mut names: Vec<String> = listed.into_iter().map(|entry| entry.name).filter(is_follower).collect();
    names.sort();
    Ok(names)
}

impl Confirmed {
    /// Reads the places of a follower. There are none before the follower has written the file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(storage: &dyn Storage, journal: &Path, follower: &Follower) -> Result<Confirmed, ReadError> {
        let text = text_file::read(storage, &followers_dir(journal), follower.name)?;
        let mut lines = text.lines();
        if lines.next() != Some(&*first_line(follower)) {
            return Ok(Confirmed::default());
        }
        let place = |line: &str| {
            let (stream, segment) = line.split_once(' ')?;
            Some((stream.to_owned(), SegmentId::parse(segment)?))
        };
        Ok(Confirmed(lines.filter_map(place).collect()))
    }

    /// Replaces the follower's file durably, if anything has changed.
    ///
    /// # Errors
    /// The disk.
    pub fn write(&self, storage: &dyn Storage, journal: &Path, follower: &Follower) -> Result<(), IoError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let dir = followers_dir(journal);
        storage.make_dir(&dir).map_err(|error| IoError::new("make directory", &dir, error))?;
        let places = self.0.iter().map(|(stream, segment)| format!("{stream} {segment}\n"));
        let text: String = [first_line(follower) + "\n"].into_iter().chain(places).collect();
        text_file::write(storage, &dir, follower.name, &text)
    }

    /// Confirms all segments of a stream before this one.
    pub fn confirm(&mut self, stream: &str, oldest_needed: SegmentId) {
        self.0.insert(stream.to_owned(), oldest_needed);
    }

    /// The oldest segment of a stream that is needed. `None`: all are.
    #[must_use]
    pub fn oldest_needed(&self, stream: &str) -> Option<SegmentId> {
        self.0.get(stream).copied()
    }

    /// Whether the follower needs this segment.
    #[must_use]
    pub fn needs(&self, stream: &str, segment: SegmentId) -> bool {
        self.oldest_needed(stream).is_none_or(|oldest| segment >= oldest)
    }
}

fn first_line(follower: &Follower) -> String {
    follower.copy.replace('\n', " ")
}
