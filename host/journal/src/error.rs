//! What can go wrong, and with which file.

use std::io;
use std::path::{Path, PathBuf};

use crate::bounds;
use crate::position::{FrameNo, SegmentId};
use crate::storage::is_full;

/// The system's error, what was being done and to which file.
#[derive(Debug, thiserror::Error)]
#[error("journal {path}: {what}: {source}")]
pub struct IoError {
    /// What was being done: `open`, `write`, `sync`, …
    pub what: &'static str,
    /// To which file or directory.
    pub path: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

impl IoError {
    pub(crate) fn new(what: &'static str, path: &Path, source: io::Error) -> IoError {
        IoError { what, path: path.into(), source }
    }
}

/// Why a directory or one of its streams could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process (or another `Directory` of this one) holds it.
    #[error("journal {dir}: locked by process {pid}")]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// The process that holds it, as it wrote into the lock file; `?` where it did not.
        pid: String,
    },
    /// A stream has one writer.
    #[error("journal stream {stream:?}: open already in this process")]
    StreamOpen {
        /// The stream.
        stream: String,
    },
    /// A name that cannot be a directory's.
    #[error("journal stream {stream:?}: not a file name of 1 to 128 bytes of a-z, A-Z, 0-9, '.', '_', '-'")]
    StreamName {
        /// The stream.
        stream: String,
    },
    /// An option outside of its bounds.
    #[error("journal option {option}: {value}, allowed is {allowed}")]
    Option {
        /// Its name.
        option: &'static str,
        /// What was given.
        value: u64,
        /// What may be given.
        allowed: String,
    },
    /// What is there could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The disk.
    #[error(transparent)]
    Io(#[from] IoError),
}

impl OpenError {
    /// The disk has no room.
    pub fn is_full(&self) -> bool {
        matches!(self, OpenError::Io(error) if is_full(&error.source))
    }
}

/// Why something was not written. Nothing was lost that had been accepted: the same call can be made again.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The disk.
    #[error(transparent)]
    Io(#[from] IoError),
    /// A frame over the bound that was configured. Calling again does not help.
    #[error("journal frame: {bytes} bytes, at most {limit}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// `Options::max_frame_bytes`.
        limit: usize,
    },
    /// All is written, but the last segment could not be given its summary. The next start scans it.
    #[error("journal segment {segment}: not sealed: {why}")]
    Unsealed {
        /// The segment.
        segment: SegmentId,
        /// The system's error.
        why: String,
    },
}

impl WriteError {
    /// The disk has no room.
    pub fn is_full(&self) -> bool {
        matches!(self, WriteError::Io(error) if is_full(&error.source))
    }
}

/// Why a request was not given a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The rid is too long, and was not cut by `kept_rid`.
    #[error("rid: {bytes} bytes, at most {}", bounds::RID_BYTES_MAX)]
    RidTooLong {
        /// Its size.
        bytes: usize,
    },
}

/// Why it was not noted what a sink was sent: nothing of it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "sink {sink:?}: {frames} frames not taken (at most {}), {ahead} requests ahead (at most {})",
    bounds::SENT_FRAMES_MAX,
    bounds::AHEAD_MAX
)]
pub struct SentError {
    /// The sink.
    pub sink: String,
    /// Frames that it was sent and has not taken.
    pub frames: usize,
    /// Requests that are ahead, with those in these frames and in the one refused.
    pub ahead: usize,
}

/// Why a journal could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The disk.
    #[error(transparent)]
    Io(#[from] IoError),
    /// A segment of a version that this program does not know.
    #[error("journal segment {path}: format version {version}, this program reads up to {known}")]
    Version {
        /// The file.
        path: PathBuf,
        /// What it says.
        version: u32,
        /// The newest known.
        known: u32,
    },
    /// A directory that no writer has made, and that holds no stream.
    #[error("{}: no journal: {}", .dir.display(), none_there(.folders, *.has_segments))]
    NoJournal {
        /// The directory.
        dir: PathBuf,
        /// The folders in it.
        folders: Vec<String>,
        /// It is a stream's folder.
        has_segments: bool,
    },
    /// A stream that is not in the journal.
    #[error("journal {dir}: no stream {stream:?}")]
    NoStream {
        /// The journal.
        dir: PathBuf,
        /// The stream.
        stream: String,
    },
    /// What was asked for is not, or no longer, in the journal.
    #[error("journal frame {frame}: not in the journal (retention, or never kept)")]
    NoFrame {
        /// The frame.
        frame: u64,
    },
    /// Frames that are neither there nor declared skipped.
    #[error("journal frames {from} to {through}: not in the journal ({})", match .damage {
        Some((path, offset)) => format!("{} is damaged at byte {offset}", path.display()),
        None => "retention, or damage".into(),
    })]
    Missing {
        /// The first.
        from: FrameNo,
        /// The last.
        through: FrameNo,
        /// The damage that was passed over on the way, where there was some: the file, and the byte in it.
        damage: Option<(PathBuf, u64)>,
    },
    /// The record is there and its checksum is not right.
    #[error("journal segment {path}: record at byte {offset} is corrupt")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
    },
}

impl ReadError {
    /// Frames are not there any more; the disk does what it is asked.
    pub fn is_missing(&self) -> bool {
        matches!(self, ReadError::Missing { .. })
    }
}

/// JournalFolders that are named where a directory is no journal.
const FOLDERS_NAMED: usize = 4;

/// What stands in a directory that is no journal.
fn none_there(folders: &[String], has_segments: bool) -> String {
    if has_segments {
        return "it is a stream's folder, the journal is the directory above".to_owned();
    }
    if folders.is_empty() {
        return "it has no folders".to_owned();
    }
    let named: Vec<String> = folders.iter().take(FOLDERS_NAMED).map(|name| format!("{name:?}")).collect();
    let more = folders.len() - named.len();
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("none of its folders holds a stream: {}{more}", named.join(", "))
}
