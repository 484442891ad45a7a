//! The options, totals and notices of a PUB.

use std::time::Duration;

use crate::bounds;
use crate::conn::PeerAddress;
use crate::peers::{CloseReason, PeerId, RefusalReason};

/// The options of a [`Pub`](crate::Pub). The defaults are in [`bounds`].
#[derive(Clone, Debug)]
pub struct PubOptions {
    /// The longest queue of a subscriber, in frames. A further frame is dropped for it.
    pub max_queue_frames: usize,
    /// The longest queue of a subscriber, in bytes. A bigger frame is queued when the queue is empty.
    pub max_queue_bytes: u64,
    /// A further subscriber is closed as soon as it connects. At least 1; the token range limits it too.
    pub max_subscribers: usize,
    /// Mode of the ipc file, set before anybody can connect. Default: 0600.
    pub listen_mode: u32,
    /// A subscriber whose handshake takes longer is closed.
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

/// Sums since the start, over all subscribers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PubTotals {
    /// Copies that the kernel took whole.
    pub frames_written: u64,
    /// Their bytes.
    pub bytes_written: u64,
    /// Copies dropped because the subscriber's queue was full.
    pub frames_dropped: u64,
    /// Their bytes.
    pub bytes_dropped: u64,
}

/// An event on a [`Pub`](crate::Pub).
#[derive(Debug)]
pub enum PubNotice {
    /// A subscriber finished its handshake. From now on it gets the frames of its topics.
    Connected {
        /// The subscriber.
        subscriber: PeerId,
        /// Its address.
        from: PeerAddress,
    },
    /// A subscriber was closed.
    Closed {
        /// The subscriber.
        subscriber: PeerId,
        /// Its address.
        from: PeerAddress,
        /// The reason.
        why: CloseReason,
        /// Frames that the kernel took whole for this subscriber.
        frames: u64,
        /// Frames that were still queued for this subscriber.
        unsent: u64,
    },
    /// Connections were refused. Sent at most once a second.
    Refused {
        /// The address of the last one.
        from: PeerAddress,
        /// The reason for refusing the last one.
        why: RefusalReason,
        /// Connections refused since the last such notice.
        times: u64,
    },
    /// A subscriber's queue is full: it misses this frame and those after it until [`PubNotice::Dropped`].
    Dropping {
        /// The subscriber.
        subscriber: PeerId,
        /// Its address.
        from: PeerAddress,
        /// The number of the first frame that it missed.
        first: u64,
    },
    /// A subscriber takes frames again, or closed, after it had missed frames.
    Dropped {
        /// The subscriber.
        subscriber: PeerId,
        /// How many frames of its topics it missed.
        frames: u64,
        /// The first one's number.
        first: u64,
        /// The last one's number.
        last: u64,
    },
    /// NoticeQueue were dropped because the queue was full.
    Missed {
        /// How many.
        count: u64,
    },
}
