//! The journal as messages of NATS JetStream, and back.
//!
//! [`Replicate`] publishes every stream's segments as they grow: byte ranges of whole records, on one subject a stream, read from
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
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use afterbay_config as config;
use afterbay_events::{Events, ReplicateCounters};
use afterbay_journal::{Follower, JournalDirectory};
use tokio::sync::watch;

use publisher::Publisher;

/// The follower for which the journal keeps its segments until NATS has them.
pub const FOLLOWER: Follower = Follower { name: "replicate", needs_ended_segments: false };

/// The reason why the journal cannot be replicated.
#[derive(Debug, thiserror::Error)]
#[error("replicate: {0}")]
pub struct ReplicateError(String);

/// The thread that publishes the journal.
pub struct Replicate {
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
    /// Disconnected at the thread's end.
    done: Receiver<()>,
}

impl Replicate {
    /// Starts to publish this journal. Servers that cannot be reached are no error: the records wait in the journal.
    ///
    /// # Errors
    /// The credentials cannot be read, or the thread cannot be started.
    pub fn start(
        replicate: &config::Replicate,
        directory: Arc<JournalDirectory>,
        counters: Arc<ReplicateCounters>,
        events: Events,
    ) -> Result<Replicate, ReplicateError> {
        let credentials =
            nats::Credentials::load(replicate.credentials.as_deref()).map_err(ReplicateError)?;
        let hold = directory.hold_back(FOLLOWER);
        let (stop, stopped) = watch::channel(false);
        let publisher = Publisher {
            config: replicate.clone(),
            credentials,
            directory,
            hold,
            counters,
            events,
            stop: stopped,
            state: Default::default(),
        };
        let (is_done, done) = channel::<()>();
        let thread = Builder::new().name("replicate".to_owned()).spawn(move || {
            publisher.run();
            drop(is_done);
        });
        let thread = thread.map_err(|error| ReplicateError(format!("no thread: {error}")))?;
        Ok(Replicate { stop, thread, done })
    }

    /// Publishes what the journal has, for at most this time, and stops. Returns false if the time was over: the thread ends by
    /// itself, and the next start continues behind what NATS has.
    pub fn stop(self, within: Duration) -> bool {
        // Without a receiver, the thread has ended.
        let _ = self.stop.send(true);
        self.thread.thread().unpark();
        if self.done.recv_timeout(within) != Err(RecvTimeoutError::Disconnected) {
            return false;
        }
        // A panic has nobody to be reported to but the log.
        let _ = self.thread.join();
        true
    }
}
