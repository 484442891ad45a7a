//! What the journal's own threads have to tell. The journal does not log: the stream reads these and makes events of them.

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
    /// While the disk refused writes more outcomes came than could wait: so many frames have none.
    OutcomesLost {
        /** How many. */
        count: u64,
    },
}
