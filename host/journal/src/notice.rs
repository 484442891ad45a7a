//! What the journal's own threads have to tell. The journal does not log: the stream reads these and makes events of them.

use std::fmt;
use std::path::PathBuf;

use crate::position::{FrameNo, SegmentId};

/// Something that happened off the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A sync failed: frames after `durable` are not on disk for certain. The segment is written again in full to a
    /// new file, and a new segment is begun; `durable()` stays until that has worked.
    SyncFailed {
        /** The segment. */
        segment: SegmentId,
        /** The system's error. */
        error: String,
        /** The last frame known durable. */
        durable: FrameNo,
    },
    /// A segment whose sync had failed, or whose file had vanished, was written again and is whole.
    Rewritten {
        /** The segment. */
        segment: SegmentId,
    },
    /// Writing it again failed; it is tried again.
    RewriteFailed {
        /** The segment. */
        segment: SegmentId,
        /** The system's error. */
        error: String,
    },
    /// A segment whose sync had failed could not be read back whole: frames from `from` on may be gone.
    FramesLost {
        /** The segment. */
        segment: SegmentId,
        /** The first frame that may be gone. */
        from: FrameNo,
        /** The last frame it held. */
        through: FrameNo,
    },
    /// A segment's summary could not be written. It stays readable by scanning, and is summed up at the next start.
    SealFailed {
        /** The segment. */
        segment: SegmentId,
        /** The system's error. */
        error: String,
    },
    /// The file being written is no longer where it should be. A new segment is begun at the next write.
    Vanished {
        /** The file. */
        path: PathBuf,
    },
    /// Retention removed a segment.
    Removed {
        /** The stream. */
        stream: String,
        /** The segment. */
        segment: SegmentId,
        /** Its size. */
        bytes: u64,
    },
    /// Retention could not remove a segment.
    RemoveFailed {
        /** The file. */
        path: PathBuf,
        /** The system's error. */
        error: String,
    },
    /// The journal is over `retain_bytes` and nothing may be removed: the rest is held by live requests, by
    /// `keep_from`, or is being written. Told once, until it is under again.
    OverBudget {
        /** Size of the directory. */
        bytes: u64,
        /** `retain_bytes`. */
        limit: u64,
    },
    /// The file system cannot set room aside: once it is full, records about frames that left may find no room.
    NotReserved {
        /** The system's error. */
        error: String,
    },
    /// While the disk refused writes more outcomes came than could wait: so many frames have none.
    OutcomesLost {
        /** How many. */
        count: u64,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::SyncFailed { segment, error, durable } => {
                write!(f, "sync of segment {segment} failed, durable up to frame {durable}: {error}")
            }
            Notice::Rewritten { segment } => write!(f, "segment {segment} was written again and is whole"),
            Notice::RewriteFailed { segment, error } => {
                write!(f, "segment {segment} could not be written again, it is tried again: {error}")
            }
            Notice::FramesLost { segment, from, through } => {
                write!(f, "segment {segment} could not be read back, frames {from} to {through} may be gone")
            }
            Notice::SealFailed { segment, error } => {
                write!(f, "segment {segment} has no summary, it is made at the next start: {error}")
            }
            Notice::Vanished { path } => write!(f, "{} has vanished, a new segment is begun", path.display()),
            Notice::Removed { stream, segment, bytes } => {
                write!(f, "segment {segment} of {stream:?} removed by retention, {bytes} bytes")
            }
            Notice::RemoveFailed { path, error } => {
                write!(f, "{} could not be removed: {error}", path.display())
            }
            Notice::OverBudget { bytes, limit } => {
                write!(f, "journal has {bytes} bytes, the limit is {limit}, and nothing more may be removed")
            }
            Notice::NotReserved { error } => {
                write!(
                    f,
                    "no room can be set aside on this file system ({error}): once it is full, a restart may not know what left"
                )
            }
            Notice::OutcomesLost { count } => {
                write!(f, "{count} outcomes were lost while the disk refused writes")
            }
        }
    }
}
