//! Frames that an earlier run persisted and did not account. They come out of the persist stage before any new frame.

use crate::{Location, Persisted, Received, Timestamp};
use afterbay_journal::{BacklogItem, BacklogReader, FrameSet, JournalWriter, ReadError, RecoveredStream};
use std::time::Instant;

/// Frames of the journal without an outcome.
pub(crate) struct UnaccountedFrames {
    backlog: BacklogReader,
    frames: FrameSet,
    /// Frames of these that were not read yet.
    pub(crate) left: usize,
    /// The time to read again after the disk failed to read.
    pub(crate) retry_at: Option<Instant>,
}

impl UnaccountedFrames {
    /// `None` if the earlier run accounted every frame.
    pub(crate) fn of(recovered: &RecoveredStream, writer: &JournalWriter) -> Option<UnaccountedFrames> {
        let frames = recovered.unfinished.clone();
        let left = usize::try_from(frames.len()).unwrap_or(usize::MAX);
        Some(UnaccountedFrames { backlog: writer.backlog(frames.first()?), frames, left, retry_at: None })
    }

    /// Reads the next frame; `None` after the last one.
    pub(crate) fn next(&mut self, now: Timestamp) -> Result<Option<Persisted>, ReadError> {
        while self.frames.last().is_some_and(|last| last >= self.backlog.position()) {
            let Some(next) = self.backlog.next()? else { return Ok(None) };
            let BacklogItem::Frame(frame) = next else { continue };
            if self.frames.contains(frame.frame) {
                self.left = self.left.saturating_sub(1);
                let at = Timestamp::from_unix_ns(frame.received_unix_ns, now);
                let received = Received { bytes: frame.bytes, at };
                return Ok(Some(Persisted::new(received, frame.frame, Location::ByNumber)));
            }
        }
        Ok(None)
    }
}
