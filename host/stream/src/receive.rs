//! The scheduler's end: whole messages off its socket, in turn from each sender.
//!
//! Owns the PULL socket. What it hands out is a [`Received`], and only the journal takes one.

use afterbay_sockets::{Pull, PullNotice};
use bytes::Bytes;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// When a frame came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) instant: Instant,
    pub(crate) unix_ns: u64,
}

impl Arrival {
    pub(crate) fn now() -> Arrival {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Arrival { instant: Instant::now(), unix_ns: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX) }
    }

    /// Of a frame that was read back.
    pub(crate) fn at(unix_ns: u64) -> Arrival {
        let now = Arrival::now();
        let ago = Duration::from_nanos(now.unix_ns.saturating_sub(unix_ns));
        Arrival { instant: now.instant.checked_sub(ago).unwrap_or(now.instant), unix_ns }
    }
}

/// A frame that was read whole, and is nowhere yet but in memory.
#[derive(Clone)]
pub(crate) struct Received {
    pub(crate) bytes: Bytes,
    pub(crate) at: Arrival,
}

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
        Some(Received { bytes: message.bytes, at: Arrival::now() })
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
