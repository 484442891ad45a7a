//! What may be changed of a PUSH.

use std::path::PathBuf;
use std::time::Duration;

use crate::bounds;

/// What may be changed of a [`Push`]; the defaults are in [`bounds`].
#[derive(Clone, Debug)]
pub struct PushOptions {
    /// A frame is taken while fewer than this wait for the kernel, and handed back otherwise.
    pub max_queue_frames: usize,
    /// A frame is taken while fewer bytes than this wait (so they can be more by one frame).
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
    /// Every frame up to this is settled already, and [`Push::taken`](crate::Push::taken) begins here.
    pub taken: u64,
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
            taken: 0,
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
        }
    }
}
