//! The reader's end: frames onto its socket, and what it has taken.
//!
//! Owns the PUSH socket of one sink, and how long each frame took from the scheduler's socket to the kernel.

use crate::outbox::Waiting;
use afterbay_sockets::{Outgoing, Push, PushNotice};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The PUSH socket of a sink.
pub(crate) struct Send {
    name: String,
    push: Push,
    /// Frames that are not all in the kernel: their number, and when they came.
    timed: VecDeque<(u64, Instant)>,
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
}

impl Send {
    pub(crate) fn new(name: String, push: Push) -> Send {
        Send { name, push, timed: VecDeque::new(), frames: 0, bytes: 0 }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn has_room(&self) -> bool {
        self.push.room()
    }

    /// Queues a frame; the caller has looked for room.
    pub(crate) fn send(&mut self, waiting: Waiting) {
        let Waiting { frame, bytes, counted, at } = waiting;
        self.frames += 1;
        self.bytes += bytes.len() as u64;
        self.timed.push_back((frame.0, at.instant));
        let queued = self.push.send(Outgoing { sequence: frame.0, bytes, counted });
        debug_assert!(queued.is_ok(), "a frame is sent only where there is room");
    }

    /// Hands to the kernel what it takes; tells of each frame that is whole in it how long it took.
    pub(crate) fn flush(&mut self, now: Instant, mut took: impl FnMut(Duration)) {
        self.push.flush(now);
        let written = self.push.written();
        if self.timed.front().is_none_or(|(sequence, _)| *sequence > written) {
            return;
        }
        let now = Instant::now();
        while let Some((_, at)) = self.timed.pop_front_if(|(sequence, _)| *sequence <= written) {
            took(now.saturating_duration_since(at));
        }
    }

    pub(crate) fn push(&mut self) -> &mut Push {
        &mut self.push
    }

    pub(crate) fn socket(&self) -> &Push {
        &self.push
    }

    pub(crate) fn next_notice(&mut self) -> Option<PushNotice> {
        self.push.next_notice()
    }
}
