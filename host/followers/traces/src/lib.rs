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
use std::thread::Builder;
use std::time::Duration;

use afterbay_config as config;
use afterbay_events::{Events, TracesCounters};
use afterbay_journal::FollowerThread;

/// Time between two looks for new records.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Starts to trace the requests of this journal that end from now on. At a stop the threads export the requests that have ended;
/// live requests are not exported.
///
/// # Errors
/// The client of the collector cannot be made, or a thread cannot be started.
pub fn start(
    traces: &config::Traces,
    journal: &Path,
    source: Arc<dyn TraceSource>,
    counters: Arc<TracesCounters>,
    events: Events,
) -> Result<FollowerThread, TracesError> {
    let (queue, exporter) = export::open(traces, counters.clone(), events)?;
    let mut follower = follow::Follower::new(journal, traces.sample, source, counters);
    let no_thread = |error| TracesError(format!("no thread: {error}"));
    let exporter = Builder::new().name("traces-export".to_owned()).spawn(move || exporter.run());
    let exporter = exporter.map_err(no_thread)?;
    let thread = FollowerThread::spawn("traces", move |stopped| {
        stopped.look_every(LOOK_EVERY, |is_last| {
            // A journal that cannot be read now is read at the next look.
            let _ = follower.advance(is_last, &mut |spans| queue.push(spans));
        });
        // The exporter ends with its queue. A panic has nobody to be reported to but the log.
        drop(queue);
        let _ = exporter.join();
    });
    thread.map_err(no_thread)
}
