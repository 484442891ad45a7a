//! PULL: binds, takes whole messages from any number of senders, fairly.

use std::time::{Duration, Instant};

use bytes::Bytes;
use mio::Token;
use mio::event::Event;

use crate::bounds;
use crate::conn::{PeerAddress, TokenRange};
use crate::endpoint::Endpoint;

/// What may be changed of a [`Pull`]; the defaults are in [`bounds`].
#[derive(Clone, Debug)]
pub struct PullOptions {
    /// A bigger message closes its peer before anything is allocated for it.
    pub max_message_bytes: usize,
    /// Mode of the ipc file, set before anybody can connect. Default 0600.
    pub listen_mode: u32,
    /// A further peer is closed as soon as it connects. At least 1; the token range bounds it too.
    pub max_peers: usize,
    /// A peer that has not finished its handshake by then is closed.
    pub handshake_timeout: Duration,
    /// SO_RCVBUF of tcp connections; `None`: the kernel's. (Over ipc the sender's SO_SNDBUF is what counts on Linux.)
    pub receive_buffer_bytes: Option<usize>,
}

impl Default for PullOptions {
    fn default() -> Self {
        PullOptions {
            max_message_bytes: bounds::MESSAGE_BYTES_MAX,
            listen_mode: 0o600,
            max_peers: bounds::PEERS_MAX,
            handshake_timeout: bounds::HANDSHAKE_MAX,
            receive_buffer_bytes: None,
        }
    }
}

/// Why an endpoint could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody listens there.
    #[error("{endpoint} has a listener that is alive")]
    InUse {
        /// The endpoint.
        endpoint: Endpoint,
    },
    /// The name is that of something that is not replaced.
    #[error("{endpoint} is a {kind}, only a socket or a regular file is replaced")]
    WrongKind {
        /// The endpoint.
        endpoint: Endpoint,
        /// directory, device, …
        kind: &'static str,
    },
    /// A host name that has no address.
    #[error("{endpoint} has no address: {why}")]
    NoAddress {
        /// The endpoint.
        endpoint: Endpoint,
        /// As the resolver says.
        why: String,
    },
    /// A mode that is not one.
    #[error("listen_mode {mode:o} is not a mode, the limit is 777")]
    Mode {
        /// As given.
        mode: u32,
    },
    /// A call failed.
    #[error("{endpoint}: {call}: {error}")]
    Io {
        /// The endpoint.
        endpoint: Endpoint,
        /// Which.
        call: &'static str,
        /// How.
        error: std::io::Error,
    },
}

/// A peer of a [`Pull`], never used again for another.
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
    /// What it sent is not ZMTP, not for a PULL, or past a bound.
    #[error(transparent)]
    Protocol(#[from] afterbay_zmtp::Error),
    /// Its handshake took too long.
    #[error("no handshake in {0:?}")]
    HandshakeTimeout(Duration),
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
    /// A connection was not taken.
    Refused {
        /// From where.
        from: PeerAddress,
        /// Why.
        why: Refusal,
    },
    /// Notices were not taken in time and dropped.
    Missed {
        /// How many.
        count: u64,
    },
}

/// A bound PULL socket.
#[derive(Debug)]
pub struct Pull {}

#[allow(clippy::todo, unused_variables)]
impl Pull {
    /// Binds. On ipc a regular file or a stale socket of that name is replaced, a living listener is not.
    pub fn bind(
        registry: &mio::Registry,
        tokens: TokenRange,
        endpoint: &Endpoint,
        options: PullOptions,
    ) -> Result<Pull, BindError> {
        todo!()
    }
    /// Whether an event with this token is for this socket.
    pub fn owns(&self, token: Token) -> bool {
        todo!()
    }
    /// Notes what an event of the poll says, and accepts connections.
    pub fn ready(&mut self, event: &Event, now: Instant) {
        todo!()
    }
    /// Closes peers whose handshake takes too long. Call it when [`Pull::deadline`] is due.
    pub fn tick(&mut self, now: Instant) {
        todo!()
    }
    /// When [`Pull::tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        todo!()
    }
    /// The next whole message. `None`: nothing to read now; wait on the poll, unless [`Pull::has_more`].
    pub fn receive(&mut self) -> Option<Message> {
        todo!()
    }
    /// Something may be received without a further event: do not wait on the poll.
    pub fn has_more(&self) -> bool {
        todo!()
    }
    /// Nothing is read until [`Pull::resume`]: the kernel's buffer fills, and the senders keep the rest.
    pub fn pause(&mut self) {
        todo!()
    }
    /// Reads again.
    pub fn resume(&mut self) {
        todo!()
    }
    /// What happened, oldest first.
    pub fn next_notice(&mut self) -> Option<PullNotice> {
        todo!()
    }
    /// Where it is bound, with the real port.
    pub fn endpoint(&self) -> &Endpoint {
        todo!()
    }
}
