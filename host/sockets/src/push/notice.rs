//! What a PUSH is given, and what it tells.

use std::time::Duration;

use bytes::Bytes;

use crate::conn::PeerAddress;
use crate::credit::CreditState;

/// One frame to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Its number, bigger than that of the frame before (gaps are allowed).
    pub sequence: u64,
    /// One ZeroMQ message.
    pub bytes: Bytes,
    /// The reader counts this frame when it has finished it (batch outputs, also idle ones).
    pub counted: bool,
}

/// Frames and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// How many.
    pub frames: usize,
    /// Together.
    pub bytes: usize,
}

/// What has happened since the start; only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Frames that the kernel took whole, those sent again included.
    pub frames_written: u64,
    /// Their bytes.
    pub bytes_written: u64,
    /// Counted frames that readers have finished, by their credit.
    pub frames_finished: u64,
}

/// Frames that a reader may or may not have: they are not sent again. (If the reader lives and has them, it counts them yet.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unconfirmed {
    /// The first one's number.
    pub first: u64,
    /// The last one's number.
    pub last: u64,
    /// How many.
    pub frames: usize,
}

/// A count of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditPosition {
    /// The reader's generation.
    pub generation: u64,
    /// Its count.
    pub count: u64,
}

/// Why a connection ended or was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LossReason {
    /// The name does not exist, or nobody listens there.
    #[error("nobody listens")]
    NoListener,
    /// A host name that has no address.
    #[error("no address: {0}")]
    NoAddress(String),
    /// A call failed.
    #[error("{0}")]
    Io(String),
    /// The connection or the handshake took too long.
    #[error("{what} took longer than {limit:?}")]
    Timeout {
        /// connection, handshake.
        what: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// The reader closed it, having read all that the kernel had taken (as far as can be seen).
    #[error("the reader closed the connection")]
    Closed,
    /// The reader died or closed it with bytes unread.
    #[error("the reader reset the connection with bytes unread")]
    Reset,
    /// What the reader sent is not ZMTP, or not from a PULL.
    #[error(transparent)]
    Protocol(#[from] afterbay_zmtp::Error),
}

/// What happened on a [`Push`].
#[derive(Debug)]
pub enum PushNotice {
    /// The handshake with a reader is done.
    Connected {
        /// Where.
        to: PeerAddress,
    },
    /// No reader yet. Told once per reason, not per attempt.
    Waiting {
        /// Why.
        why: LossReason,
    },
    /// The connection ended. What becomes of frames that it may have lost is told by [`PushNotice::Settled`].
    Lost {
        /// Why.
        why: LossReason,
        /// A frame of which only a part was written: it is sent again, whole.
        cut: Option<u64>,
    },
    /// What becomes of the frames that were in the kernel when a connection ended.
    Settled {
        /// Frames sent again, in order: it is certain that no reader finished them.
        resent: usize,
        /// Frames not sent again: it cannot be known if a reader has them.
        unconfirmed: Option<Unconfirmed>,
    },
    /// What is known of the credit page changed (not told when only the count moved).
    Credit {
        /// Now.
        state: CreditState,
    },
    /// Notices were not taken in time and dropped.
    Missed {
        /// How many.
        count: u64,
    },
}
