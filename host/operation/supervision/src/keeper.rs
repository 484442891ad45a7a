//! The parent process of `afterbay run --keep`, for places without systemd, such as containers.
//!
//! The keeper speaks systemd's protocol to its child, the worker: it keeps the worker's descriptors and passes them to the next
//! worker. It restarts a worker that crashed, forwards signals, and reaps orphans, so that it can be process 1. It does nothing
//! else: it reads no configuration and runs one thread.

// The time before the next start.
mod backoff;
// A start of the worker.
mod worker;
// A process as the system knows it.
mod process;
// The life of the keeper.
mod parent;

pub use backoff::{DELAY_MAX, HEALTHY_AFTER};
pub use parent::{Engine, KeeperError, Worker, run};
pub use worker::become_worker;
