//! Why a peer is refused. Every one ends its connection; none harms another peer.

/// What a peer sent that is not ZMTP 3 for a PULL, a PUSH or a PUB, or is past a bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The first bytes are no signature. ZMTP 1.0 (libzmq 2.x) begins like this too.
    #[error("peer begins with {0:02x?}, not with a ZMTP signature")]
    Signature(Vec<u8>),
    /// ZMTP 1.0 or 2.0 (libzmq 3.x and older).
    #[error("peer speaks ZMTP {0}, the oldest understood is 3.0")]
    Version(&'static str),
    /// PLAIN, CURVE, GSSAPI, …
    #[error("peer wants mechanism {0:?}, only \"NULL\" is understood")]
    Mechanism(String),
    /// Not READY where READY must be.
    #[error("handshake has {0:?} where READY must be")]
    NotReady(String),
    /// A message where READY must be.
    #[error("message before the handshake's end")]
    EarlyMessage,
    /// The metadata of READY cannot be read.
    #[error("READY cannot be read: {0}")]
    Metadata(&'static str),
    /// Two sockets that do not belong together.
    #[error("peer is a {theirs:?} socket, a {ours} takes only a {wanted}")]
    SocketType {
        /// What the peer is.
        theirs: String,
        /// What we are.
        ours: &'static str,
        /// What it should be.
        wanted: &'static str,
    },
    /// Bits that no version of ZMTP has, or that do not go together.
    #[error("frame begins with flags {0:#04x}")]
    Flags(u8),
    /// A message of several frames.
    #[error("multipart message (MORE flag): a message must be one frame")]
    Multipart,
    /// A message past the bound, by its header.
    #[error("message has {bytes} bytes, the limit is {limit}")]
    MessageTooLong {
        /// As its header says.
        bytes: u64,
        /// The bound.
        limit: usize,
    },
    /// No memory for a message within the bound.
    #[error("message has {bytes} bytes, and there is no memory for it")]
    NoMemory {
        /// As its header says.
        bytes: usize,
    },
    /// A command past the bound, by its header.
    #[error("command has {bytes} bytes, the limit is {limit}")]
    CommandTooLong {
        /// As its header says.
        bytes: u64,
        /// The bound.
        limit: usize,
    },
    /// A command without a name.
    #[error("command has no name")]
    CommandName,
    /// A message from a socket that only receives.
    #[error("message from a PULL peer, which never sends one")]
    MessageFromPull,
    /// A SUB that wants more different topics at once than are held for it.
    #[error("more than {limit} subscriptions at once, the limit")]
    Subscriptions {
        /// The bound.
        limit: usize,
    },
    /// The peer refuses us.
    #[error("peer says: {0:?}")]
    Peer(String),
}

impl Error {
    /// The kind of error in a word, for metrics: `too_large`, `multipart`, or `garbage` for the rest.
    pub fn label(&self) -> &'static str {
        match self {
            Error::MessageTooLong { .. } | Error::CommandTooLong { .. } | Error::Subscriptions { .. } => {
                "too_large"
            }
            Error::Multipart => "multipart",
            _ => "garbage",
        }
    }
}
