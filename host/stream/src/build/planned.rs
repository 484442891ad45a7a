//! A sink of a stream as it is configured: it outlives the path, which is built anew after a panic.

use crate::setup::SinkSetup;
use afterbay_batch::SinkTarget;
use afterbay_config as config;
use afterbay_outbox::Joins;
use afterbay_sockets::Endpoint;

/// A sink as it is configured.
pub(crate) struct PlannedSink {
    /// In the journal.
    pub(crate) name: String,
    pub(crate) config: config::Sink,
    pub(crate) connect: Endpoint,
    pub(crate) joins: Joins,
}

impl PlannedSink {
    pub(crate) fn new(setup: SinkSetup) -> PlannedSink {
        let SinkSetup { config, connect, reader_id, joins } = setup;
        // A reader that is another has a name of its own.
        let name = match &reader_id {
            Some(id) => format!("{}@{id}", config.name),
            None => config.name.to_string(),
        };
        PlannedSink { name, config, connect, joins }
    }

    /// Rows that wait for it may be joined under backpressure.
    pub(crate) fn joins_under_pressure(&self, config: &config::Stream) -> bool {
        config.coalesce.when == config::CoalesceWhen::Backpressure && !matches!(self.joins, Joins::Nowhere)
    }

    pub(crate) fn target(&self) -> SinkTarget {
        let takes = self.config.takes;
        let connect = self.config.connect.as_ref().filter(|_| takes == config::Takes::Worker);
        SinkTarget {
            name: self.config.name.as_str().into(),
            journal_name: self.name.clone(),
            takes,
            worker: connect.map(ToString::to_string),
        }
    }
}
