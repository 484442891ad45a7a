//! The peers of a bound socket: their ids, and the reasons for closing or refusing them.

use std::time::Duration;

use crate::zmtp;

/// A peer of a [`Pull`](crate::Pull). A socket never uses a number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u64);

/// The reason for closing a peer.
#[derive(Debug, thiserror::Error)]
pub enum CloseReason {
    /// The peer closed its connection between two messages.
    #[error("left")]
    Left,
    /// The peer closed, or died, in the middle of a message. The received part was dropped.
    #[error("cut a message after {had} bytes of {of}")]
    CutMessage {
        /// Bytes of the message that were received.
        had: usize,
        /// Its size.
        of: usize,
    },
    /// The peer closed, or died, between two parts of a message. The received parts were dropped.
    #[error("cut a message after {had} parts")]
    CutParts {
        /// Parts of the message that were received.
        had: usize,
    },
    /// The peer closed in the middle of its handshake, of a command, or of a message's header.
    #[error("cut {what} after {had} bytes")]
    Cut {
        /// "handshake", "command" or "header".
        what: &'static str,
        /// Bytes of this part that were received.
        had: usize,
    },
    /// The peer sent something that is not ZMTP, not for this socket type, or past a bound.
    #[error(transparent)]
    Protocol(#[from] crate::zmtp::ZmtpError),
    /// The handshake took longer than this limit.
    #[error("no handshake in {0:?}")]
    HandshakeTimeout(Duration),
    /// The handshake was the oldest of this many when a further peer connected and no slot was free.
    #[error("handshake not done, the oldest of {0} when a further sender needed the place")]
    HandshakeCrowded(usize),
    /// Afterbay closed the socket, and the sender did not close first. Everything that the sender had sent was
    /// received.
    #[error("closed by the stop")]
    Stopped,
    /// Afterbay closed the socket before everything that the sender had sent was read.
    #[error("closed by the stop, {bytes} bytes from it were not read")]
    Unread {
        /// Bytes that are lost.
        bytes: u64,
    },
}

/// The reason for refusing a connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusalReason {
    /// The limit of peers is reached.
    #[error("{0} peers are connected, the limit")]
    TooManyPeers(usize),
    /// A system call failed, for example because no file descriptor is free.
    #[error("{0}")]
    Io(String),
}

impl CloseReason {
    /// A label for metrics: `clean`, `cut`, `timeout`, `unread`, or the label of the protocol error.
    pub fn label(&self) -> &'static str {
        match self {
            CloseReason::Left | CloseReason::Stopped => "clean",
            CloseReason::CutMessage { .. } | CloseReason::CutParts { .. } | CloseReason::Cut { .. } => "cut",
            CloseReason::Protocol(error) => error.label(),
            CloseReason::HandshakeTimeout(_) | CloseReason::HandshakeCrowded(_) => "timeout",
            CloseReason::Unread { .. } => "unread",
        }
    }

    /// The reason that fits the state in which the connection ended.
    pub(crate) fn of_end(peer: &zmtp::Conversation) -> CloseReason {
        match peer.unfinished() {
            None => CloseReason::Left,
            Some(zmtp::UnfinishedPart::Handshake { had }) => CloseReason::Cut { what: "handshake", had },
            Some(zmtp::UnfinishedPart::Header { had }) => CloseReason::Cut { what: "header", had },
            Some(zmtp::UnfinishedPart::Command { had, .. }) => CloseReason::Cut { what: "command", had },
            Some(zmtp::UnfinishedPart::Message { had, of }) => CloseReason::CutMessage { had, of },
            Some(zmtp::UnfinishedPart::Parts { had }) => CloseReason::CutParts { had },
        }
    }
}
