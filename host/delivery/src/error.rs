//! Why the sockets of a stream could not be set up.

use afterbay_sockets::{BindError, PushError};

/// Why a stream did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its listen name, or that of one of its taps, could not be bound.
    #[error("stream {stream:?}: {error}")]
    Bind {
        /// The stream.
        stream: String,
        /// Why.
        error: BindError,
    },
    /// Its socket could not be registered.
    #[error("stream {stream:?}: {error}")]
    Connect {
        /// The stream.
        stream: String,
        /// Why.
        error: PushError,
    },
    /// The system refused a poll or a thread.
    #[error("stream {stream:?}: {error}")]
    System {
        /// The stream.
        stream: String,
        /// Why.
        error: std::io::Error,
    },
}
