//! Sends aborts of requests back to the scheduler, on a socket that Afterbay binds and that the scheduler connects to
//! ([`SocketUpstream`]).
//!
//! Nothing is stored for later: without a scheduler the abort fails. The crate runs on tokio, off the path of a batch. It knows
//! no streams; its caller decides which requests to abort.

pub mod bounds;
mod error;

mod socket;

pub use error::UpstreamError;
pub use socket::{SchedulerSocket, SocketUpstream};
