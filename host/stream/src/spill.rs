//! Frames that wait in the journal and nowhere else: a sink that is away costs disk, not memory.
//!
//! Owns where they begin and end. They come back in order, a frame at a time, when there is room for them again.

use crate::keep::Kept;
use crate::receive::Arrival;
use crate::resume::Resume;
use afterbay_journal::{Backlog, Backlogged, FrameNo, ReadError};
use std::collections::VecDeque;

/// Frames that wait in the journal.
pub(crate) struct Spill {
    backlog: Backlog,
    /// The last of them.
    through: FrameNo,
    frames: usize,
    bytes: u64,
    /// Those among them that went unkept (`on_error = "forward"`): the journal has only their numbers.
    unkept: VecDeque<Kept>,
}

impl Spill {
    /// Begins with what `backlog` reads next.
    pub(crate) fn new(backlog: Backlog) -> Spill {
        Spill { backlog, through: FrameNo(0), frames: 0, bytes: 0, unkept: VecDeque::new() }
    }

    /// What an earlier run has left.
    pub(crate) fn of_earlier_run(backlog: Backlog, resume: &Resume) -> Spill {
        let frames = usize::try_from(resume.frames()).unwrap_or(usize::MAX);
        Spill { through: resume.through(), frames, ..Spill::new(backlog) }
    }

    /// A further frame waits, which is in the journal.
    pub(crate) fn push(&mut self, frame: FrameNo, bytes: usize) {
        self.through = frame;
        self.frames += 1;
        self.bytes += bytes as u64;
    }

    /// A further frame waits, which is not.
    pub(crate) fn push_unkept(&mut self, kept: Kept) {
        self.push(kept.frame, kept.bytes.len());
        self.unkept.push_back(kept);
    }

    /// Frames, and their bytes.
    pub(crate) fn backlog(&self) -> (usize, u64) {
        (self.frames, self.bytes)
    }

    /// Whether memory holds any of them.
    pub(crate) fn has_unkept(&self) -> bool {
        !self.unkept.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.unkept.is_empty() && self.backlog.position() > self.through
    }

    /// The number of the next frame.
    pub(crate) fn position(&self) -> FrameNo {
        self.unkept.front().map_or(self.backlog.position(), |kept| kept.frame.min(self.backlog.position()))
    }

    /// The next frame. `None`: it is not to be had now. An error names frames that are missing, or the disk's trouble.
    pub(crate) fn next(&mut self) -> Result<Option<Kept>, ReadError> {
        loop {
            if let Some(kept) = self.unkept.pop_front_if(|kept| kept.frame < self.backlog.position()) {
                return Ok(Some(self.popped(kept)));
            }
            if self.is_empty() {
                return Ok(None);
            }
            match self.backlog.next()? {
                None => return Ok(None),
                // Those that this run let go on are in memory.
                Some(Backlogged::Skipped(..)) => {}
                Some(Backlogged::Frame(frame)) => {
                    let at = Arrival::at(frame.received_unix_ns);
                    return Ok(Some(self.popped(Kept::read_back(
                        frame.frame,
                        frame.bytes,
                        at,
                        frame.outcome,
                    ))));
                }
            }
        }
    }

    fn popped(&mut self, kept: Kept) -> Kept {
        self.frames = self.frames.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(kept.bytes.len() as u64);
        kept
    }
}
