//! Frames that wait for one sink in the journal and nowhere else. A reader that is away costs disk space, not memory.
//!
//! The frames have been through the plugins. Each is read back with its outcome and the replaced bytes, in order, one at a
//! time, when memory has room again.

use afterbay_batch::Persisted;
use afterbay_batch::outbox::Frame;
use afterbay_journal::{BacklogFrame, BacklogItem, BacklogReader, FrameNo, ReadError};
use std::collections::VecDeque;
use std::time::Instant;

/// The frames of one sink that wait in the journal.
pub(crate) struct Spill {
    /// Reads with outcomes.
    backlog: BacklogReader,
    first: FrameNo,
    last: FrameNo,
    frames: usize,
    bytes: u64,
    /// The frames among these that the journal does not have (`on_error = "forward"`).
    unpersisted: VecDeque<Frame>,
    /// The time to read again after a read failed or found nothing.
    pub(crate) retry_at: Option<Instant>,
}

/// A frame whose wait in the journal ends.
pub(crate) enum Spilled {
    /// The frame, read from the journal.
    Read(BacklogFrame),
    /// The frame, kept in memory because the journal does not have it.
    InMemory(Frame),
}

impl Spill {
    /// Begins with the frame that `backlog`, a reader with outcomes, reads next.
    pub(crate) fn new(backlog: BacklogReader) -> Spill {
        let first = backlog.position();
        let unpersisted = VecDeque::new();
        Spill { backlog, first, last: FrameNo(0), frames: 0, bytes: 0, unpersisted, retry_at: None }
    }

    /// The frames of an earlier run up to `last`. Their bytes are not known.
    pub(crate) fn of_earlier_run(backlog: BacklogReader, last: FrameNo) -> Spill {
        let spill = Spill::new(backlog);
        let frames = last.0.saturating_sub(spill.first.0) + 1;
        Spill { last, frames: usize::try_from(frames).unwrap_or(usize::MAX), ..spill }
    }

    /// Adds a frame.
    pub(crate) fn push(&mut self, persisted: &Persisted, frame: impl FnOnce() -> Frame) {
        if persisted.frame() > self.last {
            self.last = persisted.frame();
            self.frames += 1;
        }
        match persisted.is_in_journal() {
            true => self.bytes += persisted.bytes().len() as u64,
            false => self.unpersisted.push_back(frame()),
        }
    }

    /// Number and bytes of the frames.
    pub(crate) fn size(&self) -> (usize, u64) {
        (self.frames, self.bytes)
    }

    /// The first frame that may still be read.
    pub(crate) fn first(&self) -> FrameNo {
        self.first.max(self.backlog.position())
    }

    /// Whether memory holds frames that the journal does not have.
    pub(crate) fn has_unpersisted(&self) -> bool {
        !self.unpersisted.is_empty()
    }

    /// Whether no frame waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.unpersisted.is_empty() && self.backlog.position() > self.last
    }

    /// Takes the next frame; `None` if it cannot be read yet. An error names missing frames, or the disk's failure.
    pub(crate) fn next(&mut self) -> Result<Option<Spilled>, ReadError> {
        loop {
            let position = self.backlog.position().0;
            if let Some(frame) = self.unpersisted.pop_front_if(|frame| frame.number < position) {
                self.frames = self.frames.saturating_sub(1);
                return Ok(Some(Spilled::InMemory(frame)));
            }
            if self.is_empty() {
                return Ok(None);
            }
            match self.backlog.next()? {
                None => return Ok(None),
                // Frames that this run skipped are in `unpersisted`.
                Some(BacklogItem::Skipped(..)) => {}
                Some(BacklogItem::Frame(frame)) => {
                    self.frames = self.frames.saturating_sub(1);
                    self.bytes = self.bytes.saturating_sub(frame.bytes.len() as u64);
                    return Ok(Some(Spilled::Read(frame)));
                }
            }
        }
    }
}
