//! Where a stream's events and counters go. Every stage has one of these.

use afterbay_events::{Event, Events, Name, StreamCounters};
use std::sync::Arc;

/// The stream's name, where its events go, and its counters.
#[derive(Clone)]
pub(crate) struct Telemetry {
    pub(crate) stream: Name,
    pub(crate) events: Events,
    pub(crate) counters: Arc<StreamCounters>,
}

impl Telemetry {
    pub(crate) fn publish(&self, event: impl Into<Event>) {
        self.events.publish(event);
    }
}
