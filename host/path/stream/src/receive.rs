//! The receive stage: takes whole messages from the scheduler's connections, in turn from each.
//!
//! Owns the PULL socket. The persist stage takes what this stage returns.

use crate::clock::Clock;
use afterbay_batch::Received;
use afterbay_journal::FrameNo;
use afterbay_sockets::Pull;

/// The PULL socket that the scheduler connects to.
pub(crate) struct Receive {
    pub(crate) pull: Pull,
    /// Frames received since the start.
    pub(crate) frames: u64,
    /// Bytes received since the start.
    pub(crate) bytes: u64,
}

impl Receive {
    pub(crate) fn new(pull: Pull) -> Receive {
        Receive { pull, frames: 0, bytes: 0 }
    }

    /// Takes the next frame, if there is one. The journal gets it as frame `number`: if this process dies, the next one finds
    /// out by the number whether the journal has the frame.
    pub(crate) fn next(&mut self, number: FrameNo, clock: &dyn Clock) -> Option<Received> {
        let message = self.pull.receive()?;
        self.pull.note(number.0);
        self.frames += 1;
        self.bytes += message.bytes.len() as u64;
        Some(Received { bytes: message.bytes, at: clock.now() })
    }

    /// The last frame is in the journal, or goes on without the journal. No process receives it again.
    pub(crate) fn forget_last(&mut self) {
        self.pull.done();
    }

    /// After a panic, receives the last frame again, before all others, if the journal does not have it.
    pub(crate) fn receive_again(&mut self, last_in_journal: FrameNo) {
        if let Some(bytes) = self.pull.take_back(last_in_journal.0) {
            self.frames -= 1;
            self.bytes -= bytes as u64;
        }
    }
}
