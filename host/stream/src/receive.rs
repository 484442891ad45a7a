//! The scheduler's end: whole messages off its socket, in turn from each sender.
//!
//! Owns the PULL socket. What it hands out is a [`Received`], and only the journal takes one.

use afterbay_batch::{Received, Timestamp};
use afterbay_sockets::{Pull, PullNotice};
use std::time::Instant;

/// The PULL socket that the scheduler connects to.
pub(crate) struct Receive {
    pull: Pull,
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
}

impl Receive {
    pub(crate) fn new(pull: Pull) -> Receive {
        Receive { pull, frames: 0, bytes: 0 }
    }

    /// The next frame, if one is there.
    pub(crate) fn next(&mut self) -> Option<Received> {
        let message = self.pull.receive()?;
        self.frames += 1;
        self.bytes += message.bytes.len() as u64;
        Some(Received { bytes: message.bytes, at: Timestamp::now() })
    }

    /// Something may be there without a further event of the poll.
    pub(crate) fn has_more(&self) -> bool {
        self.pull.has_more()
    }

    /// The stream stops: nobody connects any more, and each sender is read until it has seen our end and ended, too.
    pub(crate) fn close(&mut self, now: Instant) {
        self.pull.close(now);
    }

    /// The stream stops, and frames may still come.
    pub(crate) fn is_closing(&self) -> bool {
        self.pull.is_closing()
    }

    /// The stream stops, and everything that senders had handed to the kernel was received.
    pub(crate) fn is_closed(&self) -> bool {
        self.pull.is_closed()
    }

    /// Closes the senders that are left. Returns the bytes that came from them and are lost.
    pub(crate) fn abandon(&mut self) -> u64 {
        self.pull.abandon()
    }

    pub(crate) fn socket(&self) -> &Pull {
        &self.pull
    }

    pub(crate) fn pull(&mut self) -> &mut Pull {
        &mut self.pull
    }

    pub(crate) fn next_notice(&mut self) -> Option<PullNotice> {
        self.pull.next_notice()
    }
}
