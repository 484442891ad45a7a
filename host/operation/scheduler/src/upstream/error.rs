//! The errors of aborting a request.

use afterbay_wire::AbortError;
use thiserror::Error;

/// The reason why an abort failed.
#[derive(Debug, Error)]
pub enum UpstreamError {
    /// No scheduler is connected.
    #[error("no scheduler is connected to {endpoint}")]
    NotConnected {
        /// The endpoint that Afterbay listens on.
        endpoint: String,
    },
    /// Several schedulers are connected, and it is unknown which one has the request.
    #[error(
        "{schedulers} schedulers are connected to {endpoint}, must be 1: each DP rank needs an endpoint of its own"
    )]
    Several {
        /// The endpoint that Afterbay listens on.
        endpoint: String,
        /// How many are connected.
        schedulers: usize,
    },
    /// The scheduler has not received the aborts before this one.
    #[error("{waiting} aborts wait already for the scheduler on {endpoint}")]
    Full {
        /// The endpoint that Afterbay listens on.
        endpoint: String,
        /// How many aborts are queued.
        waiting: usize,
    },
    /// The scheduler took too long, or disconnected. It may have received the abort.
    #[error("the scheduler on {endpoint} did not take it: {why}")]
    NotTaken {
        /// The endpoint that Afterbay listens on.
        endpoint: String,
        /// The reason.
        why: String,
    },
    /// The abort message cannot be made.
    #[error(transparent)]
    Abort(#[from] AbortError),
}
