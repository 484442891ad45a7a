//! The reasons why the sockets of a stream cannot be set up.

use afterbay_sockets::{BindError, PushError};

/// The reason why a stream did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The endpoint of the stream cannot be bound.
    #[error("stream {stream:?}: {error}")]
    Bind {
        /// The stream.
        stream: String,
        /// The cause.
        error: BindError,
    },
    /// A socket that connects cannot be registered.
    #[error("stream {stream:?}: {error}")]
    Connect {
        /// The stream.
        stream: String,
        /// The cause.
        error: PushError,
    },
    /// The system refused a poll or a thread.
    #[error("stream {stream:?}: {error}")]
    System {
        /// The stream.
        stream: String,
        /// The cause.
        error: std::io::Error,
    },
}
