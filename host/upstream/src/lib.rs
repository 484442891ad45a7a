//! What goes back to the scheduler: the end of a request.
//!
//! An [`Upstream`] is one way there: a PUSH that Afterbay binds and that the scheduler's PULL connects to ([`Push`]), or
//! SGLang's HTTP server ([`Http`]). Nothing is kept for later: where nobody is there, that is the answer. It runs on
//! tokio, off the path of a batch. Must not know streams, or whether a request should end: that comes from the binary.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod bounds;

// The two ways.
mod http;
mod push;

pub use afterbay_http::{Answer, Target};
pub use http::{ApiKey, Http, HttpError, get, post, post_within, server, socket};
pub use push::Push;

use afterbay_wire::{AbortError, AbortForm};
use std::fmt;
use thiserror::Error;

/// A way to a stream's scheduler.
#[derive(Debug)]
pub enum Upstream {
    /// The scheduler's own input socket.
    Push(Push),
    /// SGLang's HTTP server, in front of every scheduler that it has.
    Http(Http),
}

/// Why the scheduler was not told.
#[derive(Debug, Error)]
pub enum UpstreamError {
    /// Nobody has connected, or not any more.
    #[error("no scheduler is connected to {endpoint}")]
    NotConnected {
        /// Where Afterbay listens.
        endpoint: String,
    },
    /// Several have, and it is not known which one has the request.
    #[error(
        "{schedulers} schedulers are connected to {endpoint}, must be 1: each DP rank needs an endpoint of its own"
    )]
    Several {
        /// Where Afterbay listens.
        endpoint: String,
        /// So many.
        schedulers: usize,
    },
    /// The scheduler has not taken what it was sent before.
    #[error("{waiting} aborts wait already for the scheduler on {endpoint}")]
    Full {
        /// Where Afterbay listens.
        endpoint: String,
        /// So many.
        waiting: usize,
    },
    /// It took too long, or the scheduler went away. It may have been told.
    #[error("the scheduler on {endpoint} did not take it: {why}")]
    NotTaken {
        /// Where Afterbay listens.
        endpoint: String,
        /// What happened.
        why: String,
    },
    /// The message.
    #[error(transparent)]
    Abort(#[from] AbortError),
    /// SGLang's HTTP server did not answer, or with an error.
    #[error("POST {url}: {why}")]
    Http {
        /// Without a key.
        url: String,
        /// What happened.
        why: String,
    },
}

impl Upstream {
    /// Tells the scheduler to end `rid`, and so every request whose rid begins with it; `form` is for a PUSH. It is done
    /// when the kernel has it for the scheduler, or SGLang's HTTP server has answered.
    pub async fn abort(&self, rid: &str, form: &AbortForm) -> Result<(), UpstreamError> {
        match self {
            Upstream::Push(push) => push.send(form.encode(rid)?).await,
            Upstream::Http(http) => http.abort(rid).await,
        }
    }
}

/// Where it goes, as in the configuration.
impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Upstream::Push(push) => write!(f, "{}", push.endpoint()),
            Upstream::Http(http) => write!(f, "{}", http.url()),
        }
    }
}
