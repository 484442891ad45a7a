//! The sinks that a stream is to have: those of the configuration, and those that leave and have yet to get something.

use crate::SinkSetup;
use crate::route::{Leaving, Shares, Target};
use crate::telemetry::Telemetry;
use afterbay_config as config;
use afterbay_events::event::JournalNotice;
use afterbay_journal::Recovered;
use afterbay_outbox::Joins;
use afterbay_sockets::Endpoint;

/// A sink as it is made, and made anew after a panic.
pub(crate) struct PlannedSink {
    /// In the journal.
    pub(crate) name: String,
    pub(crate) config: config::Sink,
    pub(crate) connect: Endpoint,
    pub(crate) joins: Joins,
    /// It left in an earlier run, and leaves: who reads is not known, so nothing is joined for it.
    pub(crate) was_leaving: bool,
}

impl PlannedSink {
    pub(crate) fn new(setup: SinkSetup) -> PlannedSink {
        let SinkSetup { config, connect, reader_id, joins } = setup;
        // A reader that is another has a name of its own.
        let name = match &reader_id {
            Some(id) => format!("{}@{id}", config.name),
            None => config.name.to_string(),
        };
        PlannedSink { name, config, connect, joins, was_leaving: false }
    }

    /// That of an earlier run; `None` where what is kept of it is none of ours.
    fn of_leaving(leaving: &Leaving, takes: config::Takes) -> Option<PlannedSink> {
        let config = config::Sink::new(leaving.name.parse().ok()?, leaving.connect.parse().ok()?);
        let config = config::Sink { credit: leaving.credit.clone(), takes, ..config };
        let (name, connect) = (leaving.kept_as.clone(), leaving.connect.parse().ok()?);
        Some(PlannedSink { name, config, connect, joins: Joins::Nowhere, was_leaving: true })
    }

    /// For the next start.
    pub(crate) fn to_leaving(&self) -> Leaving {
        Leaving {
            name: self.config.name.to_string(),
            kept_as: self.name.clone(),
            connect: self.connect.to_string(),
            credit: self.config.credit.clone(),
        }
    }

    /// Rows that wait for it may be joined under backpressure.
    pub(crate) fn joins_under_pressure(&self, config: &config::Stream) -> bool {
        config.coalesce.when == config::CoalesceWhen::Backpressure && !matches!(self.joins, Joins::Nowhere)
    }

    pub(crate) fn target(&self) -> Target {
        let takes = self.config.takes;
        let connect = self.config.connect.as_ref().filter(|_| takes == config::Takes::Worker);
        Target {
            name: self.config.name.as_str().into(),
            kept_as: self.name.clone(),
            takes,
            worker: connect.map(ToString::to_string),
            leaves: self.was_leaving,
        }
    }
}

/// How an earlier run shared requests out, with the sinks added that left then and have yet to get something. `None`: it is as the
/// configuration says, and nothing is kept for sinks that it does not have.
pub(super) fn shares_of(
    recovered: &Recovered,
    sinks: &mut Vec<PlannedSink>,
    telemetry: &Telemetry,
) -> Option<Shares> {
    if recovered.shares.is_empty() {
        return None;
    }
    let mut shares: Shares = match serde_json::from_str(&recovered.shares) {
        Ok(shares) => shares,
        Err(error) => {
            let what = format!("how sinks shared its requests cannot be read: {error}");
            let stream = telemetry.stream.clone();
            telemetry.publish(JournalNotice { stream, is_wrong: true, what });
            return None;
        }
    };
    let mut left = Vec::new();
    for leaving in std::mem::take(&mut shares.leaving) {
        let name = leaving.kept_as.as_str();
        if sinks.iter().any(|sink| sink.name == name) {
            continue;
        }
        let sink = shares.takes(name).and_then(|takes| PlannedSink::of_leaving(&leaving, takes));
        match sink.filter(|_| recovered.sinks.iter().any(|known| known.name() == name)) {
            Some(sink) => left.push(sink),
            // It had all it was to get.
            None => shares.is_gone(name),
        }
    }
    let is_there = |name: &str| sinks.iter().chain(&left).any(|sink| sink.name == name);
    if !shares.sinks().all(is_there) {
        return None;
    }
    sinks.extend(left);
    Some(shares)
}
