//! The frames, sums and notices of a PUSH.

use std::time::Duration;

use bytes::Bytes;

use crate::conn::PeerAddress;
use crate::credit::CreditState;

/// A frame to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutgoingFrame {
    /// The frame's number, greater than that of the frame before. Numbers may be skipped.
    pub sequence: u64,
    /// One ZeroMQ message.
    pub bytes: Bytes,
    /// Whether the reader counts this frame when it has finished it (batch outputs, also idle ones).
    pub counted: bool,
}

/// A number of frames and the sum of their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// The number of frames.
    pub frames: usize,
    /// The sum of their bytes.
    pub bytes: usize,
}

/// Sums since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PushTotals {
    /// Frames that the kernel took whole, including frames sent again.
    pub frames_written: u64,
    /// Their bytes.
    pub bytes_written: u64,
    /// Counted frames that readers have finished, according to the credit page.
    pub frames_finished: u64,
}

/// Frames that a reader may or may not have received. They are not sent again. (A live reader that has them still
/// counts them.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unconfirmed {
    /// The first one's number.
    pub first: u64,
    /// The last one's number.
    pub last: u64,
    /// The number of frames.
    pub frames: usize,
}

/// A count of finished frames within one generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditPosition {
    /// The reader's generation.
    pub generation: u64,
    /// Its count.
    pub count: u64,
}

/// The reason why a connection ended or was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LossReason {
    /// The name does not exist, or no process listens there.
    #[error("nobody listens")]
    NoListener,
    /// The host name has no address.
    #[error("no address: {0}")]
    NoAddress(String),
    /// A system call failed.
    #[error("{0}")]
    Io(String),
    /// Connecting or the handshake took too long.
    #[error("{what} took longer than {limit:?}")]
    Timeout {
        /// "connection" or "handshake".
        what: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// The reader closed the connection, and as far as can be seen had read everything that the kernel had.
    #[error("the reader closed the connection")]
    Closed,
    /// The reader died, or closed the connection with bytes unread.
    #[error("the reader reset the connection with bytes unread")]
    Reset,
    /// The reader sent something that is not ZMTP, or is not a PULL.
    #[error(transparent)]
    Protocol(#[from] crate::zmtp::ZmtpError),
}

/// An event on a `Push`.
#[derive(Debug)]
pub enum PushNotice {
    /// The handshake with a reader is done.
    Connected {
        /// The reader's address.
        to: PeerAddress,
    },
    /// The connection of an earlier process continues.
    Adopted {
        /// The reader's address.
        to: PeerAddress,
        /// Frames that the kernel has and the reader has not finished, with credit.
        unfinished: Pending,
        /// Frames of the earlier process that the kernel does not have whole.
        pending: Pending,
    },
    /// There is no reader. Sent once per reason, not per attempt.
    Waiting {
        /// The reason.
        why: LossReason,
    },
    /// The connection ended. If frames may be lost, a [`PushNotice::Settled`] says what happens to them.
    Lost {
        /// The reason.
        why: LossReason,
        /// The frame that was only partly written. It is sent again, whole.
        cut: Option<u64>,
    },
    /// The decision about the frames that the kernel had when a connection ended.
    Settled {
        /// Frames sent again, in order: certainly no reader finished them.
        resent: usize,
        /// Frames not sent again: a reader may have them.
        unconfirmed: Option<Unconfirmed>,
    },
    /// The state of the credit page changed. A change of the count alone is not reported.
    Credit {
        /// The new state.
        state: CreditState,
    },
    /// NoticeQueue were dropped because the queue was full.
    Missed {
        /// How many.
        count: u64,
    },
}
