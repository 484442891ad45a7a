//! The messages and notices of a PULL.

use bytes::Bytes;

use crate::conn::PeerAddress;
use crate::peers::{CloseReason, PeerId, RefusalReason};

/// One whole ZeroMQ message. Several parts are one frame (`afterbay_types::parts`).
#[derive(Clone, Debug)]
pub struct Message {
    /// The payload, in an allocation of its own: keeping it keeps no other message in memory.
    pub bytes: Bytes,
    /// The sender.
    pub peer: PeerId,
}

/// An event on a `Pull`.
#[derive(Debug)]
pub enum PullNotice {
    /// A peer finished its handshake.
    Connected {
        /// The peer.
        peer: PeerId,
        /// Its address.
        from: PeerAddress,
    },
    /// The connection of an earlier process continues.
    Adopted {
        /// The peer, with its earlier id.
        peer: PeerId,
        /// Its address.
        from: PeerAddress,
        /// Bytes that the earlier process had received and that the journal does not have. They are received again.
        bytes: usize,
    },
    /// A connection or the listener of an earlier process was closed instead of continued.
    NotAdopted {
        /// The name under which it was kept.
        name: String,
        /// The reason.
        why: String,
        /// Bytes that the kernel had received and that nobody has read. At least these are lost.
        lost: u64,
    },
    /// A peer was closed. All whole messages that it had sent were received.
    Closed {
        /// The peer.
        peer: PeerId,
        /// Its address.
        from: PeerAddress,
        /// The reason.
        why: CloseReason,
        /// Messages received from it.
        messages: u64,
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
    /// NoticeQueue were dropped because the queue was full.
    Missed {
        /// How many.
        count: u64,
    },
}
