//! Every bound of this crate, with what happens when it is reached.

use std::time::Duration;

/// Aborts that wait for one scheduler to take them; a further one is refused.
pub const QUEUE_MAX: usize = 64;

/// Connections to one PUSH, those in their handshake counted; a further one is closed.
pub const PEERS_MAX: usize = 16;

/// A peer that has not finished its handshake by then is closed.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// An abort that the kernel has not taken for the scheduler by then is given up.
pub const TAKEN_MAX: Duration = Duration::from_secs(2);

/// An HTTP exchange that is not over by then, connecting included, is given up.
pub const HTTP_MAX: Duration = Duration::from_secs(5);

/// A longer answer is an error.
pub const ANSWER_BYTES_MAX: usize = 64 << 10;
