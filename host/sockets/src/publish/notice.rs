//! What may be changed of a PUB, and what it tells.

use std::time::Duration;

use crate::bounds;
use crate::conn::PeerAddress;
use crate::pull::{CloseReason, PeerId, Refusal};

/// What may be changed of a [`Pub`](crate::Pub); the defaults are in [`bounds`].
#[derive(Clone, Debug)]
pub struct PubOptions {
    /// A frame is dropped for a subscriber for which so many wait.
    pub max_queue_frames: usize,
    /// A frame is dropped for a subscriber for which more bytes than this would wait. One frame always fits.
    pub max_queue_bytes: u64,
    /// A further subscriber is closed as soon as it connects. At least 1; the token range bounds it too.
    pub max_subscribers: usize,
    /// Mode of the ipc file, set before anybody can connect. Default 0600.
    pub listen_mode: u32,
    /// A subscriber that has not finished its handshake by then is closed.
    pub handshake_timeout: Duration,
}

impl Default for PubOptions {
    fn default() -> Self {
        PubOptions {
            max_queue_frames: bounds::QUEUE_FRAMES_MAX,
            max_queue_bytes: bounds::QUEUE_BYTES_MAX as u64,
            max_subscribers: bounds::SUBSCRIBERS_MAX,
            listen_mode: 0o600,
            handshake_timeout: bounds::HANDSHAKE_MAX,
        }
    }
}

/// What was done so far, for all subscribers together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PubTotals {
    /// Copies that the kernel has whole.
    pub frames_written: u64,
    /// Bytes of them.
    pub bytes_written: u64,
    /// Copies that were dropped for a subscriber whose queue was full.
    pub frames_dropped: u64,
    /// Bytes of them.
    pub bytes_dropped: u64,
}

/// What happened on a [`Pub`](crate::Pub).
#[derive(Debug)]
pub enum PubNotice {
    /// A subscriber finished its handshake. It gets what it subscribes to, from then on.
    Connected {
        /// Who.
        subscriber: PeerId,
        /// From where.
        from: PeerAddress,
    },
    /// A subscriber was closed.
    Closed {
        /// Who.
        subscriber: PeerId,
        /// From where.
        from: PeerAddress,
        /// Why.
        why: CloseReason,
        /// Frames that the kernel had whole for it.
        frames: u64,
        /// Frames that still waited for it.
        unsent: u64,
    },
    /// A connection was not taken. Told at most once a second.
    Refused {
        /// From where.
        from: PeerAddress,
        /// Why.
        why: Refusal,
        /// How many were refused since the last such notice, this one with them.
        times: u64,
    },
    /// A subscriber's queue is full: it does not get this frame, nor those after it until [`PubNotice::Dropped`].
    Dropping {
        /// Who.
        subscriber: PeerId,
        /// From where.
        from: PeerAddress,
        /// The number of the first frame that it did not get.
        first: u64,
    },
    /// A subscriber takes frames again, or has left: what it did not get of what it wanted.
    Dropped {
        /// Who.
        subscriber: PeerId,
        /// How many.
        frames: u64,
        /// The number of the first.
        first: u64,
        /// The number of the last.
        last: u64,
    },
    /// Notices were not taken in time and dropped.
    Missed {
        /// How many.
        count: u64,
    },
}
