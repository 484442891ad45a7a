//! The traces of requests, as `[traces]` says: they start and stop with the process, and at a reload that changes them.

use crate::attributes::Attributes;
use crate::journal_follower::JournalFollower;
use crate::requests::Requests;
use afterbay_config as config;
use afterbay_events::event::TracesPathTwice;
use afterbay_events::{Events, Metrics};
use afterbay_http::redacted;
use afterbay_traces::{TraceSource, TracesError};
use afterbay_wire::Layouts;
use std::sync::Arc;
use std::time::Duration;

/// Time at a stop to export the requests that have ended.
const STOP_MAX: Duration = Duration::from_secs(2);
/// The attribute of a request with the W3C context of the engine's span.
const TRACEPARENT: &str = "traceparent";

/// The traces of a process.
pub(crate) struct RequestTraces {
    source: Arc<Source>,
    metrics: Metrics,
    events: Events,
    follower: JournalFollower<config::Traces>,
}

/// The facts about requests that are not in the journal.
struct Source {
    requests: Requests,
    attributes: Attributes,
}

impl RequestTraces {
    pub(crate) fn new(
        requests: &Requests,
        attributes: &Attributes,
        metrics: &Metrics,
        events: &Events,
    ) -> RequestTraces {
        let source = Source { requests: requests.clone(), attributes: attributes.clone() };
        let (metrics, events) = (metrics.clone(), events.clone());
        RequestTraces { source: Arc::new(source), metrics, events, follower: JournalFollower::new(STOP_MAX) }
    }

    /// Follows the configuration.
    ///
    /// # Errors
    /// The client of the collector cannot be made. The traces before continue.
    pub(crate) fn follow(&self, config: &config::Config) -> Result<(), TracesError> {
        self.follower.follow(config.traces.as_ref(), |traces| {
            path_twice(traces).into_iter().for_each(|event| self.events.publish(event));
            let (source, counters) = (self.source.clone(), self.metrics.traces());
            afterbay_traces::start(traces, &config.journal.dir, source, counters, self.events.clone())
        })
    }

    /// Exports the requests that have ended, for at most 2 seconds, and stops.
    pub(crate) fn stop(&self) {
        self.follower.stop();
    }
}

/// The warning about an endpoint with the path that the exporter adds.
pub(crate) fn path_twice(traces: &config::Traces) -> Option<TracesPathTwice> {
    let endpoint = traces.endpoint.trim_end_matches('/');
    endpoint.ends_with("/v1/traces").then(|| TracesPathTwice { endpoint: redacted(endpoint) })
}

impl TraceSource for Source {
    fn layouts(&self, stream: &str) -> Layouts {
        self.requests.layouts(stream)
    }

    fn traceparent(&self, stream: &str, rid: &str) -> Option<String> {
        match self.attributes.member(stream, rid, TRACEPARENT)? {
            serde_json::Value::String(text) => Some(text),
            // A value of another type is no traceparent either, and is counted as one that is not valid.
            other => Some(other.to_string()),
        }
    }
}
