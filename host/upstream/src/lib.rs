//! Sends aborts of requests back to the scheduler.
//!
//! An [`Upstream`] is either a PUSH that Afterbay binds and that the scheduler's PULL connects to ([`Push`]), or
//! SGLang's HTTP server ([`Http`]). Nothing is stored for later: without a scheduler the abort fails. The crate runs on
//! tokio, off the path of a batch. It knows no streams; its caller decides which requests to abort.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod bounds;

mod http;
mod push;

pub use afterbay_http::{Answer, Target};
pub use http::{ApiKey, Http, HttpError, get, post, post_within, server, socket};
pub use push::Push;

use afterbay_wire::{AbortError, AbortForm};
use std::fmt;
use thiserror::Error;

/// The way to a stream's scheduler.
#[derive(Debug)]
pub enum Upstream {
    /// The scheduler's own input socket.
    Push(Push),
    /// SGLang's HTTP server, which reaches all of its schedulers.
    Http(Http),
}

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
    /// SGLang's HTTP server did not answer, or answered with an error.
    #[error("POST {url}: {why}")]
    Http {
        /// The URL, without the key.
        url: String,
        /// The reason.
        why: String,
    },
}

impl Upstream {
    /// Asks the scheduler to end every request whose rid begins with `rid`. `form` is the message's form for a PUSH.
    /// Returns when the kernel has taken the message for the scheduler, or SGLang's HTTP server has answered.
    pub async fn abort(&self, rid: &str, form: &AbortForm) -> Result<(), UpstreamError> {
        match self {
            Upstream::Push(push) => push.send(form.encode(rid)?).await,
            Upstream::Http(http) => http.abort(rid).await,
        }
    }
}

/// Shows the endpoint or URL as in the configuration.
impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Upstream::Push(push) => write!(f, "{}", push.endpoint()),
            Upstream::Http(http) => write!(f, "{}", http.url()),
        }
    }
}
