//! Sends aborts of requests back to the scheduler.
//!
//! An [`Upstream`] is either a socket that Afterbay binds and that the scheduler connects to ([`SocketUpstream`]), or
//! SGLang's HTTP server ([`HttpUpstream`]). Nothing is stored for later: without a scheduler the abort fails. The crate runs on
//! tokio, off the path of a batch. It knows no streams; its caller decides which requests to abort.

pub mod bounds;
mod error;

mod http;
mod socket;

use std::fmt;

use afterbay_wire::AbortForm;

pub use afterbay_http::{HttpAnswer, HttpTarget};
pub use error::UpstreamError;
pub use http::{ApiKey, HttpError, HttpUpstream, get, post, post_within, server, socket};
pub use socket::{SchedulerSocket, SocketUpstream};

/// The way to a stream's scheduler.
#[derive(Debug)]
pub enum Upstream {
    /// The scheduler's own input socket.
    Socket(SocketUpstream),
    /// SGLang's HTTP server, which reaches all of its schedulers.
    Http(HttpUpstream),
}

impl Upstream {
    /// Asks the scheduler to end `rid`; SGLang's HTTP server also ends every request whose rid begins with it. `form` is the message's
    /// form for a socket.
    /// Returns when the kernel has taken the message for the scheduler, or SGLang's HTTP server has answered.
    pub async fn abort(&self, rid: &str, form: &AbortForm) -> Result<(), UpstreamError> {
        match self {
            Upstream::Socket(socket) => socket.send(form.encode(rid)?).await,
            Upstream::Http(http) => http.abort(rid).await,
        }
    }
}

/// Shows the endpoint or URL as in the configuration.
impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Upstream::Socket(socket) => write!(f, "{}", socket.endpoint()),
            Upstream::Http(http) => write!(f, "{}", http.url()),
        }
    }
}
