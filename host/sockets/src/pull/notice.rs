//! What a PULL gives: messages, and what happened.

use std::time::Duration;

use afterbay_zmtp as zmtp;
use bytes::Bytes;

use crate::conn::PeerAddress;

/// A peer of a [`Pull`] or a [`Pub`](crate::Pub), never used again for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u64);

/// One whole ZeroMQ message.
#[derive(Clone, Debug)]
pub struct Message {
    /// Its bytes, in an allocation of their own (holding one does not hold others).
    pub bytes: Bytes,
    /// Who sent it.
    pub peer: PeerId,
}

/// Why a peer was closed.
#[derive(Debug, thiserror::Error)]
pub enum CloseReason {
    /// It ended its connection between two messages.
    #[error("left")]
    Left,
    /// It ended, or died, in the middle of a message. These bytes were dropped.
    #[error("cut a message after {had} bytes of {of}")]
    CutMessage {
        /// Bytes of the message that came.
        had: usize,
        /// Its size.
        of: usize,
    },
    /// It ended in the middle of its handshake, of a command, or of a message's header.
    #[error("cut {what} after {had} bytes")]
    Cut {
        /// handshake, command, header.
        what: &'static str,
        /// Bytes of it that came.
        had: usize,
    },
    /// What it sent is not ZMTP, not for this socket, or past a bound.
    #[error(transparent)]
    Protocol(#[from] afterbay_zmtp::Error),
    /// Its handshake took too long.
    #[error("no handshake in {0:?}")]
    HandshakeTimeout(Duration),
    /// Its handshake was the oldest of so many when a further sender connected and no place was free.
    #[error("handshake not done, the oldest of {0} when a further sender needed the place")]
    HandshakeCrowded(usize),
    /// The socket was closed, and the sender did not end its connection. Everything that it had sent was received.
    #[error("closed by the stop")]
    Stopped,
    /// The socket was closed before everything that the sender had sent was read.
    #[error("closed by the stop, {bytes} bytes from it were not read")]
    Unread {
        /// Bytes that are lost.
        bytes: u64,
    },
}

/// Why a connection was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// All places are taken.
    #[error("{0} peers are connected, the limit")]
    TooManyPeers(usize),
    /// A call failed, such as no descriptor being free.
    #[error("{0}")]
    Io(String),
}

impl CloseReason {
    /// The kind of reason in a word, for metrics: `clean`, `cut`, `timeout`, `unread`, or that of the error.
    pub fn label(&self) -> &'static str {
        match self {
            CloseReason::Left | CloseReason::Stopped => "clean",
            CloseReason::CutMessage { .. } | CloseReason::Cut { .. } => "cut",
            CloseReason::Protocol(error) => error.label(),
            CloseReason::HandshakeTimeout(_) | CloseReason::HandshakeCrowded(_) => "timeout",
            CloseReason::Unread { .. } => "unread",
        }
    }

    /// Of a connection that ended where its conversation stands.
    pub(crate) fn of_end(peer: &zmtp::Peer) -> CloseReason {
        match peer.unfinished() {
            None => CloseReason::Left,
            Some(zmtp::Unfinished::Handshake { had }) => CloseReason::Cut { what: "handshake", had },
            Some(zmtp::Unfinished::Header { had }) => CloseReason::Cut { what: "header", had },
            Some(zmtp::Unfinished::Command { had, .. }) => CloseReason::Cut { what: "command", had },
            Some(zmtp::Unfinished::Message { had, of }) => CloseReason::CutMessage { had, of },
        }
    }
}

/// What happened on a [`Pull`].
#[derive(Debug)]
pub enum PullNotice {
    /// A peer finished its handshake.
    Connected {
        /// Who.
        peer: PeerId,
        /// From where.
        from: PeerAddress,
    },
    /// A peer was closed; everything that came whole from it was received.
    Closed {
        /// Who.
        peer: PeerId,
        /// From where.
        from: PeerAddress,
        /// Why.
        why: CloseReason,
        /// Messages received of it.
        messages: u64,
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
    /// Notices were not taken in time and dropped.
    Missed {
        /// How many.
        count: u64,
    },
}
