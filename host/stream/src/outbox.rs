//! What waits for a sink, in order.
//!
//! Owns the frames between the plugins and the socket, and their bound: while it is full, nothing is received, so that
//! the scheduler's own queue holds. Knows nothing of sockets.

use crate::ledger::Settled;
use crate::receive::Arrival;
use afterbay_config::Queue;
use afterbay_journal::FrameNo;
use bytes::Bytes;
use std::collections::VecDeque;

/// A frame on its way to the sink.
pub(crate) struct Waiting {
    pub(crate) frame: FrameNo,
    pub(crate) bytes: Bytes,
    /// The reader counts it (credit).
    pub(crate) counted: bool,
    pub(crate) at: Arrival,
}

/// The frames that wait for one sink.
pub(crate) struct Outbox {
    waiting: VecDeque<Waiting>,
    bytes: u64,
    bound: Queue,
}

impl Outbox {
    pub(crate) fn new(bound: Queue) -> Outbox {
        Outbox { waiting: VecDeque::new(), bytes: 0, bound }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.waiting.len() < self.bound.frames && self.bytes < self.bound.bytes
    }

    /// Takes a frame. The caller has looked for room before it received it.
    pub(crate) fn put(&mut self, settled: Settled) {
        let Settled { kept, bytes, counted } = settled;
        // Nothing is left of a batch whose rows were all dropped.
        let Some(bytes) = bytes else { return };
        self.bytes += bytes.len() as u64;
        self.waiting.push_back(Waiting { frame: kept.frame, bytes, counted, at: kept.at });
    }

    pub(crate) fn take(&mut self) -> Option<Waiting> {
        let waiting = self.waiting.pop_front()?;
        self.bytes -= waiting.bytes.len() as u64;
        Some(waiting)
    }

    pub(crate) fn frames(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}
