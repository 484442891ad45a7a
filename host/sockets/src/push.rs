//! PUSH: connects, sends frames in order, and knows what became of each.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mio::Token;
use mio::event::Event;

use crate::bounds;
use crate::conn::{PeerAddress, TokenRange};
use crate::credit::CreditState;
use crate::endpoint::Endpoint;

/// One frame to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Its number, bigger than that of the frame before (gaps are allowed).
    pub sequence: u64,
    /// One ZeroMQ message.
    pub bytes: Bytes,
    /// The reader counts this frame when it has finished it (batch outputs, also idle ones).
    pub counted: bool,
}

/// What may be changed of a [`Push`]; the defaults are in [`bounds`].
#[derive(Clone, Debug)]
pub struct PushOptions {
    /// Frames waiting for the kernel; a further one is handed back.
    pub max_queue_frames: usize,
    /// Bytes likewise; a bigger frame goes through alone.
    pub max_queue_bytes: usize,
    /// The first wait before connecting again.
    pub backoff_min: Duration,
    /// The longest.
    pub backoff_max: Duration,
    /// How long a tcp connection may take.
    pub connect_timeout: Duration,
    /// How long the reader's handshake may take.
    pub handshake_timeout: Duration,
    /// SO_SNDBUF; `None`: the kernel's. It bounds what can be lost with a reader that dies and has no credit page.
    pub send_buffer_bytes: Option<usize>,
    /// The reader's credit page.
    pub credit: Option<CreditOptions>,
    /// Seeds the backoff's jitter.
    pub jitter_seed: u64,
}

impl Default for PushOptions {
    fn default() -> Self {
        PushOptions {
            max_queue_frames: bounds::QUEUE_FRAMES_MAX,
            max_queue_bytes: bounds::QUEUE_BYTES_MAX,
            backoff_min: bounds::BACKOFF_MIN,
            backoff_max: bounds::BACKOFF_MAX,
            connect_timeout: bounds::CONNECT_MAX,
            handshake_timeout: bounds::HANDSHAKE_MAX,
            send_buffer_bytes: None,
            credit: None,
            jitter_seed: 0,
        }
    }
}

/// Where the reader's count is, and how far it is trusted.
#[derive(Clone, Debug)]
pub struct CreditOptions {
    /// The page's file. It need not be there yet.
    pub path: PathBuf,
    /// Frames the kernel may have that are not finished. At the bound nothing is written until the reader counts.
    pub max_window_frames: usize,
    /// Bytes likewise; a bigger frame goes through alone.
    pub max_window_bytes: usize,
    /// Between two looks at the page while frames are unfinished.
    pub poll: Duration,
    /// How long a new connection with unfinished frames behind it waits for the new reader's generation.
    pub generation_wait: Duration,
    /// How long a count in doubt may stand still before its frames are given up.
    pub stall: Duration,
    /// (generation, count) at which none of this Push's frames was finished, if the journal knows: then frames of an
    /// earlier process that the reader still has are not taken for ours. `None`: the count at the first look.
    pub base: Option<(u64, u64)>,
}

impl CreditOptions {
    /// The defaults for a page.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        CreditOptions {
            path: path.into(),
            max_window_frames: bounds::WINDOW_FRAMES_MAX,
            max_window_bytes: bounds::WINDOW_BYTES_MAX,
            poll: bounds::CREDIT_POLL,
            generation_wait: bounds::GENERATION_WAIT_MAX,
            stall: bounds::CREDIT_STALL_MAX,
            base: None,
        }
    }
}

/// Frames and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// How many.
    pub frames: usize,
    /// Together.
    pub bytes: usize,
}

/// Frames whose end cannot be known: they are not sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unconfirmed {
    /// The first one's number.
    pub first: u64,
    /// The last one's number.
    pub last: u64,
    /// How many.
    pub frames: usize,
}

/// Why a connection ended or was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LossReason {
    /// The name does not exist, or nobody listens there.
    #[error("nobody listens")]
    NoListener,
    /// A host name that has no address.
    #[error("no address: {0}")]
    NoAddress(String),
    /// A call failed.
    #[error("{0}")]
    Io(String),
    /// The connection or the handshake took too long.
    #[error("{what} took longer than {limit:?}")]
    Timeout {
        /// connection, handshake.
        what: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// The reader closed it, having read all that the kernel had taken (as far as can be seen).
    #[error("the reader closed the connection")]
    Closed,
    /// The reader died or closed it with bytes unread.
    #[error("the reader reset the connection with bytes unread")]
    Reset,
    /// What the reader sent is not ZMTP, or not from a PULL.
    #[error(transparent)]
    Protocol(#[from] afterbay_zmtp::Error),
}

/// What happened on a [`Push`].
#[derive(Debug)]
pub enum PushNotice {
    /// The handshake with a reader is done.
    Connected {
        /// Where.
        to: PeerAddress,
    },
    /// No reader yet. Told once per reason, not per attempt.
    Waiting {
        /// Why.
        why: LossReason,
    },
    /// The connection ended. What becomes of frames that it may have lost is told by [`PushNotice::Settled`].
    Lost {
        /// Why.
        why: LossReason,
        /// A frame of which only a part was written: it is sent again, whole.
        cut: Option<u64>,
    },
    /// After a loss: what is sent again (certain not to have been finished), and what cannot be known.
    Settled {
        /// Frames sent again, in order.
        resent: usize,
        /// Frames not sent again, whose end cannot be known.
        unconfirmed: Option<Unconfirmed>,
    },
    /// What is known of the credit page changed (not told when only the count moved).
    Credit {
        /// Now.
        state: CreditState,
    },
    /// Notices were not taken in time and dropped.
    Missed {
        /// How many.
        count: u64,
    },
}

/// A call for the poll failed when the socket was made.
#[derive(Debug, thiserror::Error)]
#[error("push to {endpoint}: {error}")]
pub struct PushError {
    endpoint: Endpoint,
    error: std::io::Error,
}

/// A connecting PUSH socket.
#[derive(Debug)]
pub struct Push {}

#[allow(clippy::todo, unused_variables)]
impl Push {
    /// Starts to connect. Never fails because the reader is absent.
    pub fn connect(
        registry: &mio::Registry,
        tokens: TokenRange,
        endpoint: &Endpoint,
        options: PushOptions,
        now: Instant,
    ) -> Result<Push, PushError> {
        todo!()
    }
    /// Whether an event with this token is for this socket.
    pub fn owns(&self, token: Token) -> bool {
        todo!()
    }
    /// Whether [`Push::send`] takes a further frame.
    pub fn room(&self) -> bool {
        todo!()
    }
    /// Queues a frame; full: handed back. It is written by [`Push::flush`].
    pub fn send(&mut self, frame: Outgoing) -> Result<(), Outgoing> {
        todo!()
    }
    /// Writes what the kernel takes. Call it after a round of sends (many frames leave in one call).
    pub fn flush(&mut self, now: Instant) {
        todo!()
    }
    /// Notes what an event of the poll says and goes on.
    pub fn ready(&mut self, event: &Event, now: Instant) {
        todo!()
    }
    /// Connects again, looks at the credit page, flushes. Call it when [`Push::deadline`] is due.
    pub fn tick(&mut self, now: Instant) {
        todo!()
    }
    /// When [`Push::tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        todo!()
    }
    /// Every frame numbered up to this need never be sent again: the reader has finished it (credit), or, without
    /// credit, the kernel has it whole. Never goes back. This is what a journal keeps.
    pub fn taken(&self) -> u64 {
        todo!()
    }
    /// The number of the last frame the kernel has whole. Goes back when frames are to be sent again.
    pub fn written(&self) -> u64 {
        todo!()
    }
    /// With a usable credit page: every frame up to this is finished.
    pub fn finished(&self) -> Option<u64> {
        todo!()
    }
    /// Not yet in the kernel.
    pub fn pending(&self) -> Pending {
        todo!()
    }
    /// In the kernel and not finished (credit): the reader's lag.
    pub fn unfinished(&self) -> Pending {
        todo!()
    }
    /// Everything is in the kernel and, where there is credit, finished.
    pub fn is_drained(&self) -> bool {
        todo!()
    }
    /// A reader's handshake is done.
    pub fn is_connected(&self) -> bool {
        todo!()
    }
    /// What is known of the credit page.
    pub fn credit(&self) -> CreditState {
        todo!()
    }
    /// What happened, oldest first.
    pub fn next_notice(&mut self) -> Option<PushNotice> {
        todo!()
    }
    /// Where it connects to.
    pub fn endpoint(&self) -> &Endpoint {
        todo!()
    }
}
