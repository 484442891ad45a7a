//! The errors that end a connection. None of them affects another connection.

/// The peer sent bytes that are not ZMTP 3 for our socket type, or that exceed a limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZmtpError {
    /// The first bytes are not a ZMTP 3 signature. ZMTP 1.0 (libzmq 2.x) begins like this too.
    #[error("peer begins with {0:02x?}, not with a ZMTP signature")]
    Signature(Vec<u8>),
    /// The peer speaks ZMTP 1.0 or 2.0 (libzmq 3.x and older).
    #[error("peer speaks ZMTP {0}, the oldest understood is 3.0")]
    Version(&'static str),
    /// The peer wants PLAIN, CURVE, GSSAPI or another mechanism.
    #[error("peer wants mechanism {0:?}, only \"NULL\" is understood")]
    Mechanism(String),
    /// The handshake has another command than READY.
    #[error("handshake has {0:?} where READY must be")]
    NotReady(String),
    /// A message arrived before READY.
    #[error("message before the handshake's end")]
    EarlyMessage,
    /// The metadata of READY is invalid.
    #[error("READY cannot be read: {0}")]
    Metadata(&'static str),
    /// The socket types of both ends do not match.
    #[error("peer is a {theirs:?} socket, a {ours} takes only a {wanted}")]
    SocketType {
        /// The peer's socket type.
        theirs: String,
        /// Our socket type.
        ours: &'static str,
        /// The socket types that we accept.
        wanted: &'static str,
    },
    /// The frame's flags are undefined, or exclude each other.
    #[error("frame begins with flags {0:#04x}")]
    Flags(u8),
    /// The message has too many parts.
    #[error("message of more than {limit} parts, the limit")]
    TooManyParts {
        /// The limit.
        limit: usize,
    },
    /// The message's header exceeds the size limit. Of a message of several parts, all parts together exceed it.
    #[error("message has {bytes} bytes, the limit is {limit}")]
    MessageTooLong {
        /// The size in the header. Of a message of several parts: the bytes of all frames so far, with their headers.
        bytes: u64,
        /// The limit.
        limit: usize,
    },
    /// There is no memory for a message within the limit.
    #[error("message has {bytes} bytes, and there is no memory for it")]
    NoMemory {
        /// The size in the header.
        bytes: usize,
    },
    /// The command's header exceeds the size limit.
    #[error("command has {bytes} bytes, the limit is {limit}")]
    CommandTooLong {
        /// The size in the header.
        bytes: u64,
        /// The limit.
        limit: usize,
    },
    /// The command has no name.
    #[error("command has no name")]
    CommandName,
    /// The peer is a PULL and sent a message.
    #[error("message from a PULL peer, which never sends one")]
    MessageFromPull,
    /// The peer sent ERROR.
    #[error("peer says: {0:?}")]
    Peer(String),
}

impl ZmtpError {
    /// A label for metrics: `too_large`, or `garbage` for all other errors.
    pub fn label(&self) -> &'static str {
        match self {
            ZmtpError::MessageTooLong { .. }
            | ZmtpError::TooManyParts { .. }
            | ZmtpError::CommandTooLong { .. } => "too_large",
            _ => "garbage",
        }
    }
}
