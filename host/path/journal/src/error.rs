//! Errors of the journal.

use std::io;
use std::path::{Path, PathBuf};

use crate::position::{FrameNo, SegmentId};
use crate::storage::is_full;

/// Error of the system on a file or directory.
#[derive(Debug, thiserror::Error)]
#[error("journal {path}: {what}: {source}")]
pub struct IoError {
    /// Operation that failed: `open`, `write`, `sync`, …
    pub what: &'static str,
    /// File or directory of the operation.
    pub path: PathBuf,
    /// Error of the system.
    pub source: io::Error,
}

impl IoError {
    pub(crate) fn new(what: &'static str, path: &Path, source: io::Error) -> IoError {
        IoError { what, path: path.into(), source }
    }
}

/// Error of opening a directory or one of its streams.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process, or another `JournalDirectory` of this process, holds the lock.
    #[error("journal {dir}: locked by process {pid}")]
    Locked {
        /// Journal directory.
        dir: PathBuf,
        /// Pid in the lock file; `?` if the file has none.
        pid: String,
    },
    /// The stream already has a writer in this process.
    #[error("journal stream {stream:?}: already open in this process")]
    StreamOpen {
        /// Name of the stream.
        stream: String,
    },
    /// The name cannot be used for a directory.
    #[error("journal stream {stream:?}: not a file name of 1 to 128 bytes of a-z, A-Z, 0-9, '.', '_', '-'")]
    StreamName {
        /// Name of the stream.
        stream: String,
    },
    /// The option is outside its bounds.
    #[error("journal option {option}: {value}, allowed is {allowed}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Value given.
        value: u64,
        /// Range allowed.
        allowed: String,
    },
    /// The existing journal cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Error of the disk.
    #[error(transparent)]
    Io(#[from] IoError),
}

impl OpenError {
    /// Whether the disk is full.
    pub fn is_full(&self) -> bool {
        matches!(self, OpenError::Io(error) if is_full(&error.source))
    }
}

/// State of a journal that has reached `retain_bytes`, with oldest segments that followers have not confirmed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("journal has {bytes} bytes, the limit is {limit}, and its oldest segments wait for: {followers}")]
pub struct HeldBack {
    /// Size of the directory.
    pub bytes: u64,
    /// `retain_bytes`.
    pub limit: u64,
    /// Names of the followers that need the segments.
    pub followers: String,
}

/// Error of a write. Everything accepted before is still there, and the caller may retry.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Error of the disk.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The frame is larger than the configured bound. A retry does not help.
    #[error("journal frame: {bytes} bytes, at most {limit}")]
    TooLarge {
        /// Size of the frame.
        bytes: usize,
        /// `JournalOptions::max_frame_bytes`.
        limit: usize,
    },
    /// The journal has reached `retain_bytes` and followers need its oldest segments.
    #[error(transparent)]
    HeldBack(#[from] HeldBack),
    /// Everything is written, but the last segment has no summary. The next start scans the segment.
    #[error("journal segment {segment}: no summary: {why}")]
    NoSummary {
        /// Segment without a summary.
        segment: SegmentId,
        /// Error of the system.
        why: String,
    },
}

impl WriteError {
    /// Whether the disk is full.
    pub fn is_full(&self) -> bool {
        matches!(self, WriteError::Io(error) if is_full(&error.source))
    }
}

/// Error of reading a journal.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Error of the disk.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The segment has another format version.
    #[error("journal segment {path}: format version {version}, this program reads version {known}")]
    Version {
        /// File of the segment.
        path: PathBuf,
        /// Version in the file.
        version: u32,
        /// Version that this program reads.
        known: u32,
    },
    /// The directory was not made by a writer and holds no stream.
    #[error("{}: no journal: {}", .dir.display(), none_there(.folders, *.has_segments))]
    NoJournal {
        /// Directory given.
        dir: PathBuf,
        /// Sub-directories found.
        folders: Vec<String>,
        /// Whether the directory is a stream's directory.
        has_segments: bool,
    },
    /// The journal has no stream of this name.
    #[error("journal {dir}: no stream {stream:?}")]
    NoStream {
        /// Journal directory.
        dir: PathBuf,
        /// Name of the stream.
        stream: String,
    },
    /// Several rids begin with the given text, and none equals it.
    #[error("rid {rid:?}: {count} requests begin with it, among them {first:?} and {second:?}")]
    AmbiguousRid {
        /// Text given.
        rid: String,
        /// Number of rids that begin with the text.
        count: usize,
        /// First of these rids in alphabetical order.
        first: String,
        /// Second of these rids.
        second: String,
    },
    /// The frame is not in the journal, or no longer.
    #[error("journal frame {frame}: not in the journal (removed by retention, or never stored)")]
    NoFrame {
        /// Number of the frame.
        frame: u64,
    },
    /// Frames are neither stored nor recorded as skipped.
    #[error("journal frames {from} to {through}: not in the journal ({})", match .damage {
        Some((path, offset)) => format!("{} is damaged at byte {offset}", path.display()),
        None => "removed by retention, or damaged".into(),
    })]
    Missing {
        /// First missing frame.
        from: FrameNo,
        /// Last missing frame.
        through: FrameNo,
        /// Damage before the missing frames, if any: file and offset.
        damage: Option<(PathBuf, u64)>,
    },
    /// The file `INSTANCE` holds something else than the name of an instance.
    #[error(
        "journal {path}: {text:?} is no instance, an instance has 1 to 64 bytes of a-z, A-Z, 0-9, '_', '-'"
    )]
    Instance {
        /// The file.
        path: PathBuf,
        /// Begin of its text.
        text: String,
    },
    /// The record's checksum is wrong.
    #[error("journal segment {path}: record at byte {offset} is corrupt")]
    Corrupt {
        /// File of the segment.
        path: PathBuf,
        /// Offset of the record.
        offset: u64,
    },
}

impl ReadError {
    /// Whether frames are missing although the disk works.
    pub fn is_missing(&self) -> bool {
        matches!(self, ReadError::Missing { .. })
    }
}

/// Sub-directories that the message names.
const FOLDERS_NAMED: usize = 4;

/// Describes the contents of a directory that is no journal.
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
