//! Where a stream's events and counters go. Every stage has one of these.

use crate::{Event, Events, Name, StreamCounters};
use std::sync::Arc;

/// The stream's name, where its events go, and its counters.
#[derive(Clone)]
pub struct StreamTelemetry {
    /// The stream.
    pub stream: Name,
    /// Where its events go.
    pub events: Events,
    /// Its counters.
    pub counters: Arc<StreamCounters>,
}

impl StreamTelemetry {
    /// Publishes an event.
    pub fn publish(&self, event: impl Into<Event>) {
        self.events.publish(event);
    }
}
