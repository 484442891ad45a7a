//! The receive stage: takes whole messages from the scheduler's connections, in turn from each.
//!
//! Owns the PULL socket. The persist stage takes what this stage returns.

use crate::clock::Clock;
use afterbay_batch::Received;
use afterbay_sockets::{Pull, PullNotice};
use std::collections::VecDeque;
use std::time::Instant;

/// The PULL socket that the scheduler connects to.
pub(crate) struct Receive {
    pull: Pull,
    /// Frames that were received before a panic and that the journal does not have.
    returned: VecDeque<Received>,
    /// Frames received since the start.
    pub(crate) frames: u64,
    /// Bytes received since the start.
    pub(crate) bytes: u64,
}

impl Receive {
    pub(crate) fn new(pull: Pull) -> Receive {
        Receive { pull, returned: VecDeque::new(), frames: 0, bytes: 0 }
    }

    /// Takes the next frame, if there is one.
    pub(crate) fn next(&mut self, clock: &dyn Clock) -> Option<Received> {
        if let Some(returned) = self.returned.pop_front() {
            return Some(returned);
        }
        let message = self.pull.receive()?;
        self.frames += 1;
        self.bytes += message.bytes.len() as u64;
        Some(Received { bytes: message.bytes, at: clock.now() })
    }

    /// Gives back a frame that the journal does not have after a panic. It is received again, before all others.
    pub(crate) fn give_back(&mut self, received: Received) {
        self.returned.push_front(received);
    }

    /// Frames that were given back and not taken again.
    pub(crate) fn returned(&self) -> usize {
        self.returned.len()
    }

    /// Whether there may be a frame without a further event of the poll.
    pub(crate) fn has_more(&self) -> bool {
        !self.returned.is_empty() || self.pull.has_more()
    }

    /// Begins the drain: no sender may connect any more, and each sender is read to its end.
    pub(crate) fn close(&mut self, now: Instant) {
        self.pull.close(now);
    }

    /// Whether the drain has begun.
    pub(crate) fn is_closing(&self) -> bool {
        self.pull.is_closing()
    }

    /// Whether the drain has ended: every byte that a sender gave to the kernel was received.
    pub(crate) fn is_closed(&self) -> bool {
        self.pull.is_closed()
    }

    /// Closes the remaining connections. Returns the bytes of these senders that are lost.
    pub(crate) fn abandon(&mut self) -> u64 {
        self.pull.abandon()
    }

    pub(crate) fn socket(&self) -> &Pull {
        &self.pull
    }

    pub(crate) fn socket_mut(&mut self) -> &mut Pull {
        &mut self.pull
    }

    pub(crate) fn next_notice(&mut self) -> Option<PullNotice> {
        self.pull.next_notice()
    }
}
