//! A running stream changes between two batches: its plugins, taps, attributes, pace, queues, and its way to the scheduler.
//!
//! All of it was checked and made ready off the path: nothing here can fail.

use crate::build::{Plan, PlannedSink, outbox_options};
use crate::pipeline::Pipeline;
use afterbay_batch::Timestamp;
use afterbay_chain::{AttributesOf, PluginChange};
use afterbay_config as config;
use afterbay_delivery::{StartError, Tap, TapSetup, end_taps};
use afterbay_events::StreamTelemetry;
use afterbay_events::{Events, Metrics};
use afterbay_ledger::AbortSender;
use afterbay_outbox::Joins;

/// What is to be otherwise in a running stream; where it listens, and its sinks and their order, stay.
pub struct Change {
    /// The checked configuration of the stream.
    pub config: config::Stream,
    /// Its plugins, in the order of the config.
    pub plugins: Vec<PluginChange>,
    /// Its taps, in the order of the config.
    pub taps: Vec<TapChange>,
    /// Who tells the scheduler of requests that plugins finish, where that is another.
    pub upstream: Option<Option<AbortSender>>,
    /// What attributes requests have, for those that begin from now on.
    pub attributes: AttributesOf,
}

/// A tap of a stream that changes.
pub enum TapChange {
    /// That of this name goes on.
    Stays(String),
    /// One more.
    New(RunningTap),
}

/// A tap that is bound, or connects, and is given nothing yet.
pub struct RunningTap(Tap);

impl RunningTap {
    /// Binds or connects it.
    pub fn start(
        stream: &str,
        setup: TapSetup,
        events: &Events,
        metrics: &Metrics,
    ) -> Result<RunningTap, StartError> {
        let counters = metrics.stream(stream);
        let telemetry = StreamTelemetry { stream: stream.into(), events: events.clone(), counters };
        let counters = metrics.tap(stream, setup.config.name.as_str());
        Ok(RunningTap(Tap::start(setup, telemetry, counters)?))
    }
}

impl Change {
    /// Between two batches: from now on it is so.
    pub(crate) fn apply(self, plan: &mut Plan, path: &mut Pipeline, now: Timestamp) {
        let Change { config, plugins, taps, upstream, attributes } = self;
        for planned in &mut plan.sinks {
            let config = config.sinks.iter().find(|config| config.name == planned.config.name);
            // The tokenizers of a rendezvous are in no configuration.
            planned.config.queue = config.map_or(planned.config.queue, |config| config.queue);
        }
        plan.config = config;
        for (sink, planned) in path.sinks.iter_mut().zip(&plan.sinks) {
            sink.outbox.reset(outbox_options(&plan.config, planned));
            sink.send.set_joins(planned.joins_under_pressure(&plan.config));
        }
        if let Some(upstream) = upstream {
            path.ledger.set_upstream(upstream);
        }
        path.chain.change(plugins, attributes, &path.ledger, now);
        change_taps(taps, path);
    }
}

/// Where joined rows may end for a sink of the configuration from now on.
pub(crate) fn set_joins(name: &str, joins: Joins, plan: &mut Plan, path: &mut Pipeline) {
    let is_it = |(planned, _): &(&mut PlannedSink, _)| planned.config.name.as_str() == name;
    let mut sinks = plan.sinks.iter_mut().zip(&mut path.sinks);
    let Some((planned, sink)) = sinks.find(is_it) else { return };
    planned.joins = joins.clone();
    sink.outbox.set_joins(joins);
    sink.send.set_joins(planned.joins_under_pressure(&plan.config));
    path.held_rows.set_joins(plan.held_rows());
}

fn change_taps(taps: Vec<TapChange>, path: &mut Pipeline) {
    let mut before = std::mem::take(&mut path.taps);
    for change in taps {
        match change {
            TapChange::New(RunningTap(tap)) => path.taps.push(tap),
            TapChange::Stays(name) => {
                if let Some(at) = before.iter().position(|tap| tap.name() == name) {
                    path.taps.push(before.remove(at));
                }
            }
        }
    }
    if !before.is_empty() {
        // They send what they have, which the stream does not wait for. Where there can be no thread, it does.
        let _ended = std::thread::Builder::new().name("taps' end".into()).spawn(move || end_taps(before));
    }
}
