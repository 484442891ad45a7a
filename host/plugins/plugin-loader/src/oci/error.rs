//! The errors of fetching a component.

use std::time::Duration;

use thiserror::Error;

/// The reason why a component was not fetched.
#[derive(Debug, Error)]
pub enum TransferError {
    /// The registry was not reached, or refused the request.
    #[error("registry {registry}: {why}")]
    Registry {
        /// The registry's host and port.
        registry: String,
        /// The reason.
        why: String,
    },
    /// The registry took too long.
    #[error("registry {registry}: no complete answer within {within:?}")]
    Slow {
        /// The registry's host and port.
        registry: String,
        /// The limit.
        within: Duration,
    },
    /// The received bytes have another digest.
    #[error("{what} has the digest {received}, the pinned one is {pinned}")]
    Digest {
        /// The manifest, or the component.
        what: &'static str,
        /// The digest of the received bytes.
        received: String,
        /// The pinned digest.
        pinned: String,
    },
    /// The declared size exceeds the limit.
    #[error("{what} has {bytes} bytes, the limit is {max}")]
    TooLarge {
        /// The manifest, or the component.
        what: &'static str,
        /// The declared size.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// The body exceeds its limit or its declared size.
    #[error("{what} has more than {max} bytes")]
    Longer {
        /// The manifest, the component, or a token.
        what: &'static str,
        /// The limit; for a component, the size in its manifest.
        max: u64,
    },
    /// The artifact is not one component.
    #[error("the artifact is not a component: {0}")]
    Artifact(String),
    /// The thread or the HTTP client could not be made.
    #[error("cannot make the client of registries: {0}")]
    Client(String),
}
