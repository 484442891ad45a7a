//! Requests of the journal as OpenTelemetry traces: one trace for each selected request, sent to a collector as OTLP over HTTP.
//!
//! Everything is read from the journal, off the path of batches: one thread follows the journal and makes spans, a second one
//! sends them. While the collector is slow or away, spans are dropped and counted. Knows neither streams nor the command line.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod leg;
mod source;
mod stream;

mod identity;
mod spans;

mod export;
mod follow;

#[cfg(test)]
mod tests;

pub use export::{QUEUE_SPANS_MAX, TracesError};
pub use source::TraceSource;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use afterbay_config as config;
use afterbay_events::{Events, TracesCounters};

/// Time between two looks for new records.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The threads that make and send traces.
pub struct Traces {
    /// Dropped to stop.
    stop: Sender<()>,
    follower: JoinHandle<()>,
    exporter: JoinHandle<()>,
    /// Disconnected when everything is sent.
    done: Receiver<()>,
}

impl Traces {
    /// Starts to trace the requests of this journal that end from now on.
    ///
    /// # Errors
    /// The client of the collector cannot be made, or a thread cannot be started.
    pub fn start(
        traces: &config::Traces,
        journal: &Path,
        source: Arc<dyn TraceSource>,
        counters: Arc<TracesCounters>,
        events: Events,
    ) -> Result<Traces, TracesError> {
        let (queue, exporter) = export::open(traces, counters.clone(), events)?;
        let mut follower = follow::Follower::new(journal, traces.sample, source, counters);
        let (stop, stopped) = channel::<()>();
        let (is_done, done) = channel::<()>();
        let thread = |name: &str| Builder::new().name(name.to_owned());
        let no_thread = |error| TracesError(format!("no thread: {error}"));
        let follower = thread("traces").spawn(move || {
            let mut is_last = false;
            loop {
                // A journal that cannot be read now is read at the next look.
                let _ = follower.advance(is_last, &mut |spans| queue.push(spans));
                if is_last {
                    return;
                }
                is_last = stopped.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Timeout);
            }
        });
        let exporter = thread("traces-export").spawn(move || {
            exporter.run();
            drop(is_done);
        });
        Ok(Traces {
            stop,
            follower: follower.map_err(no_thread)?,
            exporter: exporter.map_err(no_thread)?,
            done,
        })
    }

    /// Exports the requests that have ended, for at most this time, and stops. Live requests are not exported. Returns false
    /// if the time was over: the threads end by themselves.
    pub fn stop(self, within: Duration) -> bool {
        let until = Instant::now() + within;
        drop(self.stop);
        let left = until.saturating_duration_since(Instant::now());
        if self.done.recv_timeout(left) != Err(RecvTimeoutError::Disconnected) {
            return false;
        }
        // Both threads are at their end. A panic has nobody to be reported to but the log.
        let _ = (self.follower.join(), self.exporter.join());
        true
    }
}
