//! Changes of a running stream between two batches: plugins, attributes, joining, queues, and the way to the scheduler.
//!
//! The caller has checked and prepared every part, so no change can fail here.

use crate::build::{Plan, PlannedSink};
use crate::pipeline::Pipeline;
use afterbay_batch::ledger::AbortSender;
use afterbay_batch::ledger::AttributesOf;
use afterbay_batch::{Joins, Timestamp};
use afterbay_chain::PluginChange;
use afterbay_config as config;

/// A new configuration for a running stream. The endpoint, and the sinks and their order, cannot change.
pub struct Change {
    /// The checked configuration of the stream.
    pub config: config::Stream,
    /// The plugins, in the order of the configuration.
    pub plugins: Vec<PluginChange>,
    /// The function that tells the scheduler about requests that plugins finish. `None` if it does not change.
    pub upstream: Option<Option<AbortSender>>,
    /// The source of attributes for requests that begin from now on.
    pub attributes: AttributesOf,
}

impl Change {
    pub(crate) fn apply(self, plan: &mut Plan, pipeline: &mut Pipeline, now: Timestamp) {
        let Change { config, plugins, upstream, attributes } = self;
        for planned in &mut plan.sinks {
            // The sinks of tokenizers that the rendezvous found are in no configuration.
            if let Some(sink) = config.sinks.iter().find(|sink| sink.name == planned.config.name) {
                planned.config.queue = sink.queue;
            }
        }
        plan.config = config;
        for (sink, planned) in pipeline.delivery.sinks.iter_mut().zip(&plan.sinks) {
            sink.outbox.reset(planned.outbox_options(&plan.config));
            sink.sender.joins = planned.joins_under_pressure(&plan.config);
        }
        if let Some(upstream) = upstream {
            pipeline.stages.ledger.set_upstream(upstream);
        }
        pipeline.stages.ledger.set_attributes_source((!plugins.is_empty()).then_some(attributes));
        pipeline.stages.chain.change(plugins, &pipeline.stages.ledger, now);
    }
}

/// Sets where joined rows may end for the sink of this name in the configuration.
pub(crate) fn set_joins(name: &str, joins: Joins, plan: &mut Plan, pipeline: &mut Pipeline) {
    let has_name = |(planned, _): &(&mut PlannedSink, _)| planned.config.name.as_str() == name;
    let mut sinks = plan.sinks.iter_mut().zip(&mut pipeline.delivery.sinks);
    let Some((planned, sink)) = sinks.find(has_name) else { return };
    planned.joins = joins.clone();
    sink.outbox.set_joins(joins);
    sink.sender.joins = planned.joins_under_pressure(&plan.config);
    pipeline.stages.held_rows.set_joins(plan.held_row_joins());
}
