//! Every bound of this crate, and what happens when it is reached.

use std::time::Duration;

/// Aborts queued for one scheduler. A further one is refused.
pub const QUEUE_MAX: usize = 64;

/// The message with which vLLM's engine says that it is ready. A peer with a longer message is closed.
pub const READY_BYTES_MAX: usize = 1 << 20;

/// Connections to one bound socket, including those in their handshake. A further one is closed.
pub const PEERS_MAX: usize = 16;

/// A peer whose handshake takes longer is closed.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// How long an abort waits until the kernel takes it for the scheduler. Then it is given up.
pub const TAKEN_MAX: Duration = Duration::from_secs(2);
