//! A sink as it is configured. It outlives the pipeline, which is rebuilt after a panic.

use crate::setup::SinkSetup;
use afterbay_batch::outbox::{Options, When};
use afterbay_batch::{JoinEnds, Joins, SinkTarget};
use afterbay_config as config;
use afterbay_sockets::Endpoint;

/// A sink as it is configured.
pub(crate) struct PlannedSink {
    /// The sink's name in the journal. A new reader has a new name, so that it does not get the frames of another.
    pub(crate) name: String,
    pub(crate) config: config::Sink,
    pub(crate) connect: Endpoint,
    pub(crate) joins: Joins,
}

impl PlannedSink {
    pub(crate) fn new(setup: SinkSetup) -> PlannedSink {
        let SinkSetup { config, connect, reader_id, joins } = setup;
        let name = match &reader_id {
            Some(id) => format!("{}@{id}", config.name),
            None => config.name.to_string(),
        };
        PlannedSink { name, config, connect, joins }
    }

    /// Whether rows that wait for the sink are joined under backpressure.
    pub(crate) fn joins_under_pressure(&self, config: &config::Stream) -> bool {
        config.join.when == config::JoinWhen::Backpressure && self.joins.is_any()
    }

    pub(crate) fn outbox_options(&self, config: &config::Stream) -> Options {
        Options {
            when: match config.join.when {
                config::JoinWhen::Never => When::Never,
                config::JoinWhen::Backpressure => When::Backpressure,
            },
            joins: self.joins.clone(),
            max_rows: config.join.max_rows,
            max_frames: self.config.queue.frames,
            max_bytes: self.config.queue.bytes,
        }
    }

    pub(crate) fn target(&self) -> SinkTarget {
        let takes = self.config.takes;
        let connect = self.config.connect.as_ref().filter(|_| takes == config::Takes::FrontEnd);
        SinkTarget {
            name: self.config.name.clone(),
            journal_name: self.name.clone(),
            takes,
            front_end: connect.map(ToString::to_string),
        }
    }
}

/// The rule for joining held rows: every reader of the stream must allow the join.
pub(crate) fn held_row_joins(sinks: &[PlannedSink]) -> Joins {
    let ends = || sinks.iter().map(|sink| &sink.joins.ends);
    let nowhere = ends().find(|ends| matches!(ends, JoinEnds::Nowhere));
    let somewhere = || ends().find(|ends| matches!(ends, JoinEnds::WhereTextIsWhole(_)));
    let single = sinks.iter().find(|sink| sink.joins.has_single_rows());
    Joins {
        ends: nowhere.or_else(somewhere).cloned().unwrap_or_default(),
        single: single.map(|sink| sink.joins.single.clone()).unwrap_or_default(),
    }
}
