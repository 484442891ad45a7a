//! What may be changed of a PULL, and why it may not be bound.

use std::time::Duration;

use crate::bounds;
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
