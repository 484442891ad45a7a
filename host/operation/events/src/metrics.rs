//! `/metrics`: every block of counters with its labels, in OpenMetrics text. It is read while the streams write.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::counter::Gauge;
use crate::exposition::Exposition;
use crate::log::{self, LogQueue};
use crate::own::{Own, OwnMetrics};
use crate::reading::{Block, Reading};
use crate::{
    AbortCounters, ArchiveCounters, CallCounters, Events, FollowerCounters, Health, PluginCounters,
    ReplicateCounters, SchedulerLoad, SignalSource, SinkCounters, StoreCounters, StreamCounters, TapCounters,
    TracesCounters, UsageCounters,
};

/// The load of a stream's scheduler at one moment, and the state of each source by its name.
pub type Signals = (SchedulerLoad, Vec<(&'static str, SignalSource)>);

/// The counters of the process. Clones share them.
#[derive(Clone)]
pub struct Metrics {
    blocks: Arc<Blocks>,
    registry: Arc<Registry>,
}

/// The blocks with their labels, in the order of their creation.
type Labelled<B> = Mutex<Vec<(Labels, Arc<B>)>>;
type Labels = Vec<(&'static str, String)>;

struct Blocks {
    streams: Labelled<StreamCounters>,
    aborts: Labelled<AbortCounters>,
    sinks: Labelled<SinkCounters>,
    plugins: Labelled<PluginCounters>,
    calls: Labelled<CallCounters>,
    stores: Labelled<StoreCounters>,
    followers: Labelled<FollowerCounters>,
    traces: Labelled<TracesCounters>,
    replicate: Labelled<ReplicateCounters>,
    archive: Labelled<ArchiveCounters>,
    usage: Labelled<UsageCounters>,
    tap: Labelled<TapCounters>,
    own: Own,
    signals: Mutex<Vec<(String, ReadSignals)>>,
    events: Events,
    health: Health,
    /// Whether only blocks are published: another process has the rest.
    is_follower: bool,
    /// The metrics of the process that follows the journal, as OpenMetrics text.
    of_follower: Mutex<String>,
    config_last_reload_successful: Gauge,
}

/// `None` if no source is read.
type ReadSignals = Box<dyn Fn() -> Option<Signals> + Send + Sync>;

impl Metrics {
    /// Metrics without blocks. `events` and `health` are published with them.
    pub fn new(events: Events, health: Health) -> Metrics {
        Metrics::with(events, health, false)
    }

    /// The metrics of the process that follows the journal. Another process publishes them beside its own.
    pub fn of_follower(events: Events, health: Health) -> Metrics {
        Metrics::with(events, health, true)
    }

    fn with(events: Events, health: Health, is_follower: bool) -> Metrics {
        let (streams, aborts, sinks, plugins, calls, stores, traces, own, signals) = Default::default();
        let (followers, replicate) = (Labelled::default(), Labelled::default());
        let archive = Labelled::default();
        let usage = Labelled::default();
        let tap = Labelled::default();
        let config_last_reload_successful = Gauge::default();
        config_last_reload_successful.set(1);
        let blocks = Arc::new(Blocks {
            streams,
            aborts,
            sinks,
            plugins,
            calls,
            stores,
            followers,
            traces,
            replicate,
            archive,
            usage,
            tap,
            own,
            signals,
            events,
            health,
            is_follower,
            of_follower: Mutex::default(),
            config_last_reload_successful,
        });
        let mut registry = Registry::with_prefix("afterbay");
        registry.register_collector(Box::new(blocks.clone()));
        Metrics { blocks, registry: Arc::new(registry) }
    }

    /// The block of a stream; the same one for each call. Only one thread at a time may write to it.
    pub fn stream(&self, stream: &str) -> Arc<StreamCounters> {
        block(&self.blocks.streams, vec![("stream", stream.to_owned())])
    }

    /// The plugins of a stream with their blocks, in the order of their creation.
    pub fn plugins_of(&self, stream: &str) -> Vec<(String, Arc<PluginCounters>)> {
        blocks_of(&self.blocks.plugins, stream, "plugin")
    }

    /// The block of a stream's aborts; the same one for each call. Only one thread at a time may write to it.
    pub fn aborts(&self, stream: &str) -> Arc<AbortCounters> {
        block(&self.blocks.aborts, vec![("stream", stream.to_owned())])
    }

    /// The block of a sink; the same one for each call. Only one thread at a time may write to it.
    pub fn sink(&self, stream: &str, sink: &str) -> Arc<SinkCounters> {
        block(&self.blocks.sinks, vec![("stream", stream.to_owned()), ("sink", sink.to_owned())])
    }

    /// The block of a plugin; the same one for each call. Only one thread at a time may write to it.
    pub fn plugin(&self, stream: &str, plugin: &str) -> Arc<PluginCounters> {
        block(&self.blocks.plugins, vec![("stream", stream.to_owned()), ("plugin", plugin.to_owned())])
    }

    /// The block of an endpoint that plugins call; the same one for each call. Only one thread at a time may write to it.
    pub fn call(&self, endpoint: &str) -> Arc<CallCounters> {
        block(&self.blocks.calls, vec![("endpoint", endpoint.to_owned())])
    }

    /// The block of a plugin's store; the same one for each call. Only one thread at a time may write to it.
    pub fn store(&self, plugin: &str) -> Arc<StoreCounters> {
        block(&self.blocks.stores, vec![("plugin", plugin.to_owned())])
    }

    /// Removes the store of a plugin.
    pub fn forget_store(&self, plugin: &str) {
        forget(&self.blocks.stores, &[("plugin", plugin)]);
    }

    /// The block of a consumer of the journal; the same one for each call. One thread writes to it.
    pub fn follower(&self, follower: &str) -> Arc<FollowerCounters> {
        block(&self.blocks.followers, vec![("follower", follower.to_owned())])
    }

    /// The block of the traces; the same one for each call. Each counter has one thread that writes to it.
    pub fn traces(&self) -> Arc<TracesCounters> {
        block(&self.blocks.traces, Vec::new())
    }

    /// The block of the journal's copy in NATS; the same one for each call. One thread writes to it.
    pub fn replicate(&self) -> Arc<ReplicateCounters> {
        block(&self.blocks.replicate, Vec::new())
    }

    /// The block of the archive; the same one for each call. Only one thread at a time may write to it.
    pub fn archive(&self) -> Arc<ArchiveCounters> {
        block(&self.blocks.archive, Vec::new())
    }

    /// The block of the records of usage; the same one for each call. Only one thread at a time may write to it.
    pub fn usage(&self) -> Arc<UsageCounters> {
        block(&self.blocks.usage, Vec::new())
    }

    /// The block of the tap; the same one for each call. Only one thread at a time may write to it.
    pub fn tap(&self) -> Arc<TapCounters> {
        block(&self.blocks.tap, Vec::new())
    }

    /// The metrics that a plugin names itself.
    pub fn own(&self, stream: &str, plugin: &str) -> OwnMetrics {
        self.blocks.own.of(stream, plugin)
    }

    /// Sets the function that reads the load of a stream's scheduler. It is called for every scrape, since a stored load may
    /// be stale. The last function of a stream wins. `read` must not call these metrics.
    pub fn signals(&self, stream: &str, read: impl Fn() -> Option<Signals> + Send + Sync + 'static) {
        let mut signals = lock(&self.blocks.signals);
        signals.retain(|(other, _)| other != stream);
        signals.push((stream.to_owned(), Box::new(read)));
    }

    /// Publishes the metrics of the process that follows the journal, OpenMetrics text without its end, in place of the last ones.
    pub fn set_of_follower(&self, text: String) {
        *lock(&self.blocks.of_follower) = text;
    }

    /// Records the result of the last reload of the configuration.
    pub fn config_reloaded(&self, is_successful: bool) {
        self.blocks.config_last_reload_successful.set(u64::from(is_successful));
    }

    /// Removes a stream with the blocks of its sinks and plugins.
    pub fn forget_stream(&self, stream: &str) {
        // All are named, so that a further family is not forgotten here.
        let Blocks {
            streams,
            aborts,
            sinks,
            plugins,
            calls: _,
            stores: _,
            followers: _,
            traces: _,
            replicate: _,
            archive: _,
            usage: _,
            tap: _,
            own,
            signals,
            events: _,
            health: _,
            is_follower: _,
            of_follower: _,
            config_last_reload_successful: _,
        } = &*self.blocks;
        let of = [("stream", stream)];
        forget(streams, &of);
        forget(aborts, &of);
        forget(sinks, &of);
        forget(plugins, &of);
        own.forget(|other, _| other == stream);
        lock(signals).retain(|(other, _)| other != stream);
    }

    /// Removes a plugin of a stream.
    pub fn forget_plugin(&self, stream: &str, plugin: &str) {
        forget(&self.blocks.plugins, &[("stream", stream), ("plugin", plugin)]);
        self.blocks.own.forget(|of, name| (of, name) == (stream, plugin));
    }

    /// Removes an endpoint that plugins call.
    pub fn forget_call(&self, endpoint: &str) {
        forget(&self.blocks.calls, &[("endpoint", endpoint)]);
    }

    /// Writes every metric.
    pub fn encode(&self, exposition: Exposition) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = text::encode(&mut out, &self.registry);
        out.insert_str(out.rfind("# EOF").unwrap_or(out.len()), &lock(&self.blocks.of_follower));
        exposition.of_open_metrics(out)
    }
}

fn lock<T>(blocks: &Mutex<T>) -> MutexGuard<'_, T> {
    blocks.lock().unwrap_or_else(PoisonError::into_inner)
}

fn block<B: Default>(labelled: &Labelled<B>, labels: Labels) -> Arc<B> {
    let mut blocks = lock(labelled);
    if let Some((_, found)) = blocks.iter().find(|(other, _)| *other == labels) {
        return found.clone();
    }
    let block = Arc::new(B::default());
    blocks.push((labels, block.clone()));
    block
}

/// The blocks of a stream, each with the value of its label `name`.
fn blocks_of<B>(labelled: &Labelled<B>, stream: &str, name: &str) -> Vec<(String, Arc<B>)> {
    let value = |labels: &Labels, name: &str| {
        labels.iter().find_map(|(other, value)| (*other == name).then(|| value.clone()))
    };
    let blocks = lock(labelled);
    let of = blocks.iter().filter(|(labels, _)| value(labels, "stream").is_some_and(|is| is == stream));
    of.filter_map(|(labels, block)| Some((value(labels, name)?, block.clone()))).collect()
}

/// Removes the blocks that have these labels, and perhaps more.
fn forget<B>(labelled: &Labelled<B>, of: &[(&'static str, &str)]) {
    let has = |labels: &Labels, (name, value): &(&str, &str)| {
        labels.iter().any(|(other, is)| other == name && is == value)
    };
    lock(labelled).retain(|(labels, _)| !of.iter().all(|label| has(labels, label)));
}

impl Collector for Blocks {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        encode_blocks(&lock(&self.streams), &mut encoder)?;
        encode_blocks(&lock(&self.aborts), &mut encoder)?;
        encode_blocks(&lock(&self.sinks), &mut encoder)?;
        encode_blocks(&lock(&self.plugins), &mut encoder)?;
        encode_blocks(&lock(&self.calls), &mut encoder)?;
        encode_blocks(&lock(&self.stores), &mut encoder)?;
        encode_blocks(&lock(&self.followers), &mut encoder)?;
        encode_blocks(&lock(&self.traces), &mut encoder)?;
        encode_blocks(&lock(&self.replicate), &mut encoder)?;
        encode_blocks(&lock(&self.archive), &mut encoder)?;
        encode_blocks(&lock(&self.usage), &mut encoder)?;
        encode_blocks(&lock(&self.tap), &mut encoder)?;
        self.own.encode(&mut encoder)?;
        let (mut loads, mut sources) = (Vec::new(), Vec::new());
        for (stream, read) in lock(&self.signals).iter() {
            let Some((load, of)) = read() else { continue };
            let labels = vec![("stream", stream.clone())];
            loads.push((labels.clone(), Arc::new(load)));
            sources.extend(of.into_iter().map(|(name, source)| {
                ([labels.clone(), vec![("source", name.to_owned())]].concat(), Arc::new(source))
            }));
        }
        encode_blocks(&loads, &mut encoder)?;
        encode_blocks(&sources, &mut encoder)?;
        if self.is_follower {
            return Ok(());
        }
        let help = "Events published, by kind, those that the log's rate limit left out included";
        let mut metric = encoder.encode_descriptor("events", help, None, MetricType::Counter)?;
        for (name, count) in self.events.counts() {
            metric.encode_family(&[("event", name)])?.encode_counter::<NoLabelSet, _, f64>(&count, None)?;
        }
        let help =
            "Lines of the log that were dropped, because standard error took none and a megabyte waited";
        let mut metric = encoder.encode_descriptor("log_lines_dropped", help, None, MetricType::Counter)?;
        let dropped = log::queue().map_or(0, LogQueue::dropped);
        metric.encode_counter::<NoLabelSet, _, f64>(&dropped, None)?;
        let help = "1 while every stream can do its work, as /readyz says";
        let mut metric = encoder.encode_descriptor("ready", help, None, MetricType::Gauge)?;
        metric.encode_gauge(&u64::from(self.health.is_ready()))?;
        let degraded = self.health.degraded_by_kind();
        if !degraded.is_empty() {
            let help = "Conditions that degrade this process now, by kind; /readyz lists them";
            let mut metric = encoder.encode_descriptor("degraded", help, None, MetricType::Gauge)?;
            for (kind, count) in degraded {
                metric.encode_family(&[("condition", kind)])?.encode_gauge(&count)?;
            }
        }
        let help = "1 unless the last reload of the configuration was refused";
        let name = "config_last_reload_successful";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        metric.encode_gauge(&self.config_last_reload_successful.get())?;
        let help = "Version of this binary";
        let mut metric = encoder.encode_descriptor("build", help, None, MetricType::Info)?;
        metric.encode_info(&[("version", env!("CARGO_PKG_VERSION"))])
    }
}

/// Writes all series of one name together, as the format demands.
fn encode_blocks<B: Block>(blocks: &[(Labels, Arc<B>)], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    for series in B::SERIES {
        let kind = blocks.iter().find_map(|(_, block)| (series.read)(block).kind());
        let Some(kind) = kind else { continue };
        let mut metric = encoder.encode_descriptor(series.name, series.help, None, kind)?;
        for (labels, block) in blocks {
            match (series.read)(block) {
                // Without labels there are no braces.
                Reading::Count(count) if labels.is_empty() => {
                    metric.encode_counter::<NoLabelSet, _, f64>(&count, None)?;
                }
                Reading::Count(count) => {
                    metric.encode_family(labels)?.encode_counter::<NoLabelSet, _, f64>(&count, None)?;
                }
                Reading::Seconds(seconds) => {
                    metric.encode_family(labels)?.encode_counter::<NoLabelSet, _, f64>(&seconds, None)?;
                }
                Reading::Gauge(value) if labels.is_empty() => metric.encode_gauge(&value)?,
                Reading::Gauge(value) => metric.encode_family(labels)?.encode_gauge(&value)?,
                Reading::Ratio(value) if labels.is_empty() => metric.encode_gauge(&value)?,
                Reading::Ratio(value) => metric.encode_family(labels)?.encode_gauge(&value)?,
                Reading::OneOf(label, values, is) => {
                    for (at, value) in values.iter().enumerate() {
                        let mut labels = labels.clone();
                        labels.push((label, (*value).to_owned()));
                        metric.encode_family(&labels)?.encode_gauge(&u64::from(at == is))?;
                    }
                }
                Reading::Absent => {}
                Reading::By(label, counts) => {
                    for (value, count) in counts {
                        let mut labels = labels.clone();
                        labels.push((label, value.to_owned()));
                        metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(&count, None)?;
                    }
                }
                Reading::Histogram(histogram) => {
                    // The count is that of the buckets, so that the two agree while the stream writes on.
                    let buckets = histogram.buckets();
                    let count = buckets.iter().map(|(_, count)| count).sum();
                    let sum = histogram.sum().as_secs_f64();
                    let mut metric = metric.encode_family(labels)?;
                    metric.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
                }
            }
        }
    }
    Ok(())
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocks").finish_non_exhaustive()
    }
}
