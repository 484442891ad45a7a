//! The options of a PUSH.

use std::path::PathBuf;
use std::time::Duration;

use afterbay_supervision::fdstore::{FdName, FdStore};

use crate::bounds;

/// The options of a `Push`. The defaults are in [`bounds`].
#[derive(Clone, Debug)]
pub struct PushOptions {
    /// Frames in the queue. At the bound [`Push::send`](crate::Push::send) hands a further one back.
    pub max_queue_frames: usize,
    /// Bytes in the queue. At the bound a further frame is handed back, so the queue may exceed it by one frame.
    pub max_queue_bytes: usize,
    /// The first wait before connecting again.
    pub backoff_min: Duration,
    /// The longest wait before connecting again.
    pub backoff_max: Duration,
    /// The timeout of a tcp connect.
    pub connect_timeout: Duration,
    /// The timeout of the reader's handshake.
    pub handshake_timeout: Duration,
    /// SO_SNDBUF. `None`: the kernel's default. It limits how much is lost when a reader without a credit page dies.
    pub send_buffer_bytes: Option<usize>,
    /// The last frame that need not be sent again. [`Push::taken`](crate::Push::taken) begins here.
    pub taken: u64,
    /// The reader's credit page.
    pub credit: Option<CreditOptions>,
    /// The seed of the backoff's jitter.
    pub jitter_seed: u64,
    /// The place of the connection for a later process. `None`: the connection ends with the process.
    pub keep: Option<KeepAs>,
}

/// The store and the name under which a connection outlives the process: its socket, then its memory. Only connections
/// whose handshake is complete are kept.
#[derive(Clone, Debug)]
pub struct KeepAs {
    /// The store.
    pub store: FdStore,
    /// The name.
    pub name: FdName,
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
            keep: None,
        }
    }
}

/// The path of the credit page and the limits of its use.
#[derive(Clone, Debug)]
pub struct CreditOptions {
    /// The page's file. It may not exist yet.
    pub path: PathBuf,
    /// Unfinished frames that the kernel may have. At the bound nothing is written until the reader counts one.
    pub max_window_frames: usize,
    /// Bytes of the same frames. A bigger frame is written when no other frame is unfinished.
    pub max_window_bytes: usize,
    /// How often the page is read while frames are unfinished.
    pub poll: Duration,
    /// How long a new connection waits for the new reader's generation if frames of the last connection are unfinished.
    pub generation_wait: Duration,
    /// How long a doubtful count may stand still before its frames are given up.
    pub stall: Duration,
}

impl CreditOptions {
    /// The default options for the page at `path`.
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
