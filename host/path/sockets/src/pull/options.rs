//! The options of a PULL.

use std::time::Duration;

use crate::bounds;

/// The options of a `Pull`. The defaults are in [`bounds`].
#[derive(Clone, Debug)]
pub struct PullOptions {
    /// A bigger message closes its peer before anything is allocated for it.
    pub max_message_bytes: usize,
    /// Mode of the ipc file, set before anybody can connect. Default: 0600.
    pub listen_mode: u32,
    /// A further peer is closed as soon as it connects. At least 1; the token range limits it too.
    pub max_peers: usize,
    /// A peer whose handshake takes longer is closed.
    pub handshake_timeout: Duration,
    /// SO_RCVBUF of tcp connections. `None`: the kernel's default. (On Linux, only the sender's SO_SNDBUF counts over
    /// ipc.)
    pub receive_buffer_bytes: Option<usize>,
    /// The last frame of the journal. An earlier process noted the frame of its last message: with this number or a lower one
    /// the journal has the message.
    pub last_frame: u64,
}

impl Default for PullOptions {
    fn default() -> Self {
        PullOptions {
            max_message_bytes: bounds::MESSAGE_BYTES_MAX,
            listen_mode: 0o600,
            max_peers: bounds::PEERS_MAX,
            handshake_timeout: bounds::HANDSHAKE_MAX,
            receive_buffer_bytes: None,
            last_frame: 0,
        }
    }
}
