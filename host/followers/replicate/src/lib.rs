//! The journal as messages of NATS JetStream, and back.
//!
//! [`start`] publishes every stream's segments as they grow: byte ranges of whole records, on one subject a stream, read from
//! the journal by a thread of its own. Nothing on the path of a batch waits for it. [`Mirror`] makes a journal's directory
//! of the messages of all instances. A message carries the position of its range, so that repeated messages are harmless and
//! missing ones are found. Knows neither streams nor the command line.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod range;

mod followed_stream;
mod nats;

mod publisher;

mod copied;
mod mirror;

pub use copied::Hole;
pub use mirror::{Filter, Mirror, MirrorError, mirror};
pub use publisher::{MESSAGE_BYTES_MAX, UNACKNOWLEDGED_MAX};

use std::sync::Arc;

use afterbay_config as config;
use afterbay_events::{Events, Health, ReplicateCounters};
use afterbay_journal::{Follower, FollowerThread, JournalDirectory};

use publisher::Publisher;

/// The follower for which the journal keeps its segments until NATS has them.
pub const FOLLOWER: Follower = Follower { name: "replicate", needs_ended_segments: false };

/// The reason why the journal cannot be replicated.
#[derive(Debug, thiserror::Error)]
#[error("replicate: {0}")]
pub struct ReplicateError(String);

/// Checks the credentials that a file or the environment has for NATS. No server is asked.
///
/// # Errors
/// The file cannot be read, or holds no credentials.
pub fn check_credentials(replicate: &config::Replicate) -> Result<(), ReplicateError> {
    let credentials = nats::Credentials::load(replicate.credentials.as_deref());
    credentials.and_then(|credentials| credentials.options()).map(drop).map_err(ReplicateError)
}

/// Starts to publish this journal. Servers that cannot be reached are no error: the records wait in the journal. At a stop the thread
/// publishes what the journal has; the next start continues behind what NATS has.
///
/// # Errors
/// The credentials cannot be read, or the thread cannot be started.
pub fn start(
    replicate: &config::Replicate,
    directory: Arc<JournalDirectory>,
    counters: Arc<ReplicateCounters>,
    (events, health): (Events, Health),
) -> Result<FollowerThread, ReplicateError> {
    let credentials = nats::Credentials::load(replicate.credentials.as_deref()).map_err(ReplicateError)?;
    let hold = directory.hold_back(FOLLOWER);
    let (config, state) = (replicate.clone(), Default::default());
    let thread = FollowerThread::spawn("replicate", move |stopped| {
        Publisher { config, credentials, directory, hold, counters, events, health, stopped, state }.run();
    });
    thread.map_err(|error| ReplicateError(format!("no thread: {error}")))
}
