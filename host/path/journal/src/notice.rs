//! Notices of the journal's background threads. The stream reads them and publishes events.

use std::path::PathBuf;

use crate::position::{FrameNo, SegmentId};

/// Something that happened in the background. Displays as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackgroundNotice {
    /// A sync failed. Frames after `durable` may not be on disk. The journal writes the segment to a new file
    /// and begins a new segment; `durable()` does not advance until then.
    #[error("sync of segment {segment} failed, durable up to frame {durable}: {error}")]
    SyncFailed {
        /// Segment that failed to sync.
        segment: SegmentId,
        /// Error of the system.
        error: String,
        /// Last frame that is known to be durable.
        durable: FrameNo,
    },
    /// A segment whose sync failed, or whose file vanished, was rewritten completely.
    #[error("segment {segment} was rewritten and is complete")]
    Rewritten {
        /// Segment that was rewritten.
        segment: SegmentId,
    },
    /// Rewriting a segment failed. The journal retries every second.
    #[error("segment {segment} could not be rewritten, the journal retries: {error}")]
    RewriteFailed {
        /// Segment to be rewritten.
        segment: SegmentId,
        /// Error of the system.
        error: String,
    },
    /// A segment whose sync failed could not be read back completely. Frames from `from` on may be lost.
    #[error("segment {segment} could not be read back, frames {from} to {through} may be lost")]
    FramesLost {
        /// Segment with the lost frames.
        segment: SegmentId,
        /// First frame that may be lost.
        from: FrameNo,
        /// Last frame of the segment.
        through: FrameNo,
    },
    /// The summary of a segment could not be written. Readers scan the segment, and the next start writes the
    /// summary.
    #[error("segment {segment} has no summary, the next start writes it: {error}")]
    SummaryFailed {
        /// Segment without a summary.
        segment: SegmentId,
        /// Error of the system.
        error: String,
    },
    /// The file being written is no longer at its path. The next write begins a new segment.
    #[error("{} has vanished, the next write begins a new segment", .path.display())]
    Vanished {
        /// Path of the missing file.
        path: PathBuf,
    },
    /// Retention removed a segment.
    #[error("retention removed segment {segment} of stream {stream:?}, {bytes} bytes")]
    Removed {
        /// Stream of the segment.
        stream: String,
        /// Segment removed.
        segment: SegmentId,
        /// Size of the segment.
        bytes: u64,
    },
    /// Retention removed a segment that followers had not confirmed, because the journal had reached `retain_bytes`.
    #[error(
        "retention removed segment {segment} of stream {stream:?}, {bytes} bytes, before these had read it: {followers}"
    )]
    RemovedUnconfirmed {
        /// Stream of the segment.
        stream: String,
        /// Segment removed.
        segment: SegmentId,
        /// Size of the segment.
        bytes: u64,
        /// Names of the followers that lack the segment.
        followers: String,
    },
    /// Retention could not remove a segment.
    #[error("{} could not be removed: {error}", .path.display())]
    RemoveFailed {
        /// File of the segment.
        path: PathBuf,
        /// Error of the system.
        error: String,
    },
    /// The journal is larger than `retain_bytes`, and the rest must stay: live requests or backlogs need it,
    /// or it is being written. Published once, until the journal is below the limit again.
    #[error("journal has {bytes} bytes, the limit is {limit}, and no more segments can be removed")]
    OverBudget {
        /// Size of the directory.
        bytes: u64,
        /// `retain_bytes`.
        limit: u64,
    },
    /// The file system cannot reserve space. Once it is full, records about sent frames may not fit.
    #[error(
        "file system cannot reserve space ({error}): once it is full, a restart may not know which frames were sent"
    )]
    NotReserved {
        /// Error of the system.
        error: String,
    },
    /// Requests were erased by age.
    #[error(
        "{requests} requests of stream {stream:?} were erased by age, {rows} rows; {left_frames} frames may still hold content"
    )]
    Erased {
        /// Name of the stream.
        stream: String,
        /// Number of requests.
        requests: u64,
        /// Their rows.
        rows: u64,
        /// Tokens received in the rows.
        tokens: u64,
        /// Segments that were written again.
        segments: u64,
        /// Frames that may still hold content of a request.
        left_frames: u64,
    },
    /// Requests that are due could not be erased. The journal tries again in a minute.
    #[error(
        "requests of stream {stream:?} that ended in segment {segment} could not be erased, the journal retries: {error}"
    )]
    EraseFailed {
        /// Name of the stream.
        stream: String,
        /// Segment in which the requests ended.
        segment: SegmentId,
        /// The reason.
        error: String,
    },
    /// Outcomes were dropped because too many waited while the disk refused writes.
    #[error("{count} outcomes were dropped while the disk refused writes")]
    OutcomesLost {
        /// Number of outcomes dropped.
        count: u64,
    },
}
