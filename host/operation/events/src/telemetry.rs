//! The events and counters of one stream, as every stage gets them.

use crate::{Event, Events, Name, StreamCounters};
use std::sync::Arc;

/// Publishes the events of one stream and holds its counters.
#[derive(Clone)]
pub struct StreamTelemetry {
    /// The stream's name.
    pub stream: Name,
    /// The receiver of events.
    pub events: Events,
    /// The stream's counters.
    pub counters: Arc<StreamCounters>,
}

impl StreamTelemetry {
    /// Publishes an event.
    pub fn publish(&self, event: impl Into<Event>) {
        self.events.publish(event);
    }
}
