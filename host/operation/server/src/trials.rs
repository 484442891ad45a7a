//! The streams of a configuration off the path, for `afterbay plugin run --config`: plugins, limits, grants, settings,
//! attributes and tokenizers as a start gives them. No socket is opened, and the stores of plugins begin empty and are discarded.

use crate::attributes::Attributes;
use crate::loading::Loader;
use crate::sinks::Sinks;
use afterbay_config as config;
use afterbay_events::event::SinkUnjoined;
use afterbay_events::{Events, Health, Metrics, Recorder};
use afterbay_journal::storage::DiscardingStorage;
use afterbay_plugin_loader::Tokenizers;
use afterbay_plugin_services::store::{Background, StoreDirectory, StoreTelemetry};
use afterbay_runtime::Host;
use afterbay_stream::{SinkSetup, Trial, TrialSetup};
use afterbay_wire::Layouts;
use anyhow::Context;
use std::path::Path;
use std::sync::Arc;

/// Stands for the endpoint of a sink that a rendezvous file would name. Nothing connects to it.
const NO_ENDPOINT: &str = "ipc:///trial";

/// Starts the streams of a configuration off the path. The streams share the stores of their plugins.
pub struct Trials {
    config: config::Config,
    loader: Loader,
    sinks: Sinks,
    attributes: Attributes,
    events: Recorder,
}

impl Trials {
    /// Trials of this configuration, with compiled plugins of this host.
    pub fn new(config: config::Config, host: Host) -> anyhow::Result<Trials> {
        let (events, recorder) = Events::recorded();
        let health = Health::default();
        let metrics = Metrics::new(events.clone(), health.clone());
        let tokenizers = Arc::new(Tokenizers::default());
        let sinks = Sinks::new(&tokenizers, &events, &health);
        let events_of_loader = events.clone();
        let telemetry = StoreTelemetry { events, metrics: metrics.clone(), health };
        let storage = Arc::new(DiscardingStorage::default());
        let stores = StoreDirectory::open_on(storage, Path::new("/trial"), telemetry, Background::Caller)?;
        let loader = Loader {
            host,
            tokenizers,
            metrics,
            awaits_builds: false,
            stores: Arc::new(stores),
            events: events_of_loader,
        };
        Ok(Trials { config, loader, sinks, attributes: Attributes::default(), events: recorder })
    }

    /// Starts the stream of this name, whose first frame was received at this time. Returns sentences about what a running
    /// stream would have and the trial has not.
    ///
    /// # Errors
    /// The configuration has no such stream, or a plugin or a tokenizer cannot be loaded.
    pub fn start(&self, stream: &str, begins_unix_ns: u64) -> anyhow::Result<(Trial, Vec<String>)> {
        let found = self.config.streams.iter().find(|it| it.name.as_str() == stream);
        let mut stream = found.with_context(|| format!("stream {stream:?}: not configured"))?.clone();
        for sink in stream.sinks.iter_mut().filter(|sink| sink.connect.is_none()) {
            sink.connect = Some(NO_ENDPOINT.parse()?);
        }
        let mut plugins = Vec::new();
        for plugin in &stream.plugins {
            plugins.push(self.loader.load(&stream, plugin, None)?.0);
        }
        self.events.clear();
        let sinks = stream.sinks.iter().map(|sink| self.sinks.setup(&self.config, &stream, sink, None));
        let sinks: Vec<SinkSetup> = sinks.collect::<anyhow::Result<_>>()?;
        let missing = self.events.of::<SinkUnjoined>().iter().map(ToString::to_string).collect();
        let trial = Trial::start(TrialSetup {
            sinks,
            layouts: Layouts::of(stream.engine),
            plugins,
            attributes: self.attributes.of(&stream),
            abandon_after: self.config.journal.abandon_after,
            begins_unix_ns,
            metrics: self.loader.metrics.clone(),
            config: stream,
        })?;
        Ok((trial, missing))
    }
}
