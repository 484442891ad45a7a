//! `/metrics`: every block of counters with its labels, in Prometheus' text format. It is read while the streams write.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::counter::Gauge;
use crate::exposition::{Kind, Page};
use crate::log::{self, LogQueue};
use crate::own::{Own, OwnMetrics};
use crate::reading::{Block, Reading};
use crate::{
    AbortCounters, ArchiveCounters, CallCounters, ClientsCounters, Events, FollowerCounters, Health,
    LeaseCounters, PluginCounters, ReplicateCounters, SchedulerLoad, SignalSource, SinkCounters,
    StoreCounters, StreamCounters, TapCounters, TracesCounters, UsageCounters,
};

/// The load of a stream's scheduler at one moment, and the state of each source by its name.
pub type Signals = (SchedulerLoad, Vec<(&'static str, SignalSource)>);

/// The counters of the process. Clones share them.
#[derive(Clone)]
pub struct Metrics(Arc<Blocks>);

/// The blocks with their labels, in the order of their creation.
type Labelled<B> = Mutex<Vec<(Labels, Arc<B>)>>;
type Labels = Vec<(&'static str, String)>;

#[derive(Default)]
struct Blocks {
    streams: Labelled<StreamCounters>,
    aborts: Labelled<AbortCounters>,
    leases: Labelled<LeaseCounters>,
    sinks: Labelled<SinkCounters>,
    plugins: Labelled<PluginCounters>,
    calls: Labelled<CallCounters>,
    stores: Labelled<StoreCounters>,
    followers: Labelled<FollowerCounters>,
    traces: Labelled<TracesCounters>,
    replicate: Labelled<ReplicateCounters>,
    archive: Labelled<ArchiveCounters>,
    usage: Labelled<UsageCounters>,
    clients: Labelled<ClientsCounters>,
    tap: Labelled<TapCounters>,
    own: Own,
    signals: Mutex<Vec<(String, ReadSignals)>>,
    events: Events,
    health: Health,
    /// Whether only blocks are published: another process has the rest.
    is_follower: bool,
    /// The metrics of the process that follows the journal, as text.
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
        let blocks = Blocks { events, health, is_follower, ..Blocks::default() };
        blocks.config_last_reload_successful.set(1);
        Metrics(Arc::new(blocks))
    }

    /// The block of a stream; the same one for each call. Only one thread at a time may write to it.
    pub fn stream(&self, stream: &str) -> Arc<StreamCounters> {
        block(&self.0.streams, vec![("stream", stream.to_owned())])
    }

    /// The plugins of a stream with their blocks, in the order of their creation.
    pub fn plugins_of(&self, stream: &str) -> Vec<(String, Arc<PluginCounters>)> {
        blocks_of(&self.0.plugins, stream, "plugin")
    }

    /// The block of a stream's aborts; the same one for each call. Only one thread at a time may write to it.
    pub fn aborts(&self, stream: &str) -> Arc<AbortCounters> {
        block(&self.0.aborts, vec![("stream", stream.to_owned())])
    }

    /// The block of a stream's leases; the same one for each call. Only one thread at a time may write to it.
    pub fn leases(&self, stream: &str) -> Arc<LeaseCounters> {
        block(&self.0.leases, vec![("stream", stream.to_owned())])
    }

    /// The block of a sink; the same one for each call. Only one thread at a time may write to it.
    pub fn sink(&self, stream: &str, sink: &str) -> Arc<SinkCounters> {
        block(&self.0.sinks, vec![("stream", stream.to_owned()), ("sink", sink.to_owned())])
    }

    /// The block of a plugin; the same one for each call. Only one thread at a time may write to it.
    pub fn plugin(&self, stream: &str, plugin: &str) -> Arc<PluginCounters> {
        block(&self.0.plugins, vec![("stream", stream.to_owned()), ("plugin", plugin.to_owned())])
    }

    /// The block of an endpoint that plugins call; the same one for each call. Only one thread at a time may write to it.
    pub fn call(&self, endpoint: &str) -> Arc<CallCounters> {
        block(&self.0.calls, vec![("endpoint", endpoint.to_owned())])
    }

    /// The block of a plugin's store; the same one for each call. Only one thread at a time may write to it.
    pub fn store(&self, plugin: &str) -> Arc<StoreCounters> {
        block(&self.0.stores, vec![("plugin", plugin.to_owned())])
    }

    /// Removes the store of a plugin.
    pub fn forget_store(&self, plugin: &str) {
        forget(&self.0.stores, &[("plugin", plugin)]);
    }

    /// The block of a consumer of the journal; the same one for each call. One thread writes to it.
    pub fn follower(&self, follower: &str) -> Arc<FollowerCounters> {
        block(&self.0.followers, vec![("follower", follower.to_owned())])
    }

    /// The block of the traces; the same one for each call. Each counter has one thread that writes to it.
    pub fn traces(&self) -> Arc<TracesCounters> {
        block(&self.0.traces, Vec::new())
    }

    /// The block of the journal's copy in NATS; the same one for each call. One thread writes to it.
    pub fn replicate(&self) -> Arc<ReplicateCounters> {
        block(&self.0.replicate, Vec::new())
    }

    /// The block of the archive; the same one for each call. Only one thread at a time may write to it.
    pub fn archive(&self) -> Arc<ArchiveCounters> {
        block(&self.0.archive, Vec::new())
    }

    /// The block of the records of usage; the same one for each call. Only one thread at a time may write to it.
    pub fn usage(&self) -> Arc<UsageCounters> {
        block(&self.0.usage, Vec::new())
    }

    /// The block of the address for clients; the same one for each call.
    pub fn clients(&self) -> Arc<ClientsCounters> {
        block(&self.0.clients, Vec::new())
    }

    /// The block of the tap; the same one for each call. Only one thread at a time may write to it.
    pub fn tap(&self) -> Arc<TapCounters> {
        block(&self.0.tap, Vec::new())
    }

    /// The metrics that a plugin names itself.
    pub fn own(&self, stream: &str, plugin: &str) -> OwnMetrics {
        self.0.own.of(stream, plugin)
    }

    /// Sets the function that reads the load of a stream's scheduler. It is called for every scrape, since a stored load may
    /// be stale. The last function of a stream wins. `read` must not call these metrics.
    pub fn signals(&self, stream: &str, read: impl Fn() -> Option<Signals> + Send + Sync + 'static) {
        let mut signals = lock(&self.0.signals);
        signals.retain(|(other, _)| other != stream);
        signals.push((stream.to_owned(), Box::new(read)));
    }

    /// Publishes the metrics of the process that follows the journal, as text, in place of the last ones.
    pub fn set_of_follower(&self, text: String) {
        *lock(&self.0.of_follower) = text;
    }

    /// Records the result of the last reload of the configuration.
    pub fn config_reloaded(&self, is_successful: bool) {
        self.0.config_last_reload_successful.set(u64::from(is_successful));
    }

    /// Removes a stream with the blocks of its sinks and plugins.
    pub fn forget_stream(&self, stream: &str) {
        let of = [("stream", stream)];
        forget(&self.0.streams, &of);
        forget(&self.0.aborts, &of);
        forget(&self.0.leases, &of);
        forget(&self.0.sinks, &of);
        forget(&self.0.plugins, &of);
        self.0.own.forget(|other, _| other == stream);
        lock(&self.0.signals).retain(|(other, _)| other != stream);
    }

    /// Removes a plugin of a stream.
    pub fn forget_plugin(&self, stream: &str, plugin: &str) {
        forget(&self.0.plugins, &[("stream", stream), ("plugin", plugin)]);
        self.0.own.forget(|of, name| (of, name) == (stream, plugin));
    }

    /// Removes an endpoint that plugins call.
    pub fn forget_call(&self, endpoint: &str) {
        forget(&self.0.calls, &[("endpoint", endpoint)]);
    }

    /// Writes every metric.
    pub fn encode(&self) -> String {
        let mut page = Page::default();
        self.0.write(&mut page);
        page.text + &lock(&self.0.of_follower)
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

impl Blocks {
    fn write(&self, page: &mut Page) {
        write_blocks(&lock(&self.streams), page);
        write_blocks(&lock(&self.aborts), page);
        write_blocks(&lock(&self.leases), page);
        write_blocks(&lock(&self.sinks), page);
        write_blocks(&lock(&self.plugins), page);
        write_blocks(&lock(&self.calls), page);
        write_blocks(&lock(&self.stores), page);
        write_blocks(&lock(&self.followers), page);
        write_blocks(&lock(&self.traces), page);
        write_blocks(&lock(&self.replicate), page);
        write_blocks(&lock(&self.archive), page);
        write_blocks(&lock(&self.usage), page);
        write_blocks(&lock(&self.clients), page);
        write_blocks(&lock(&self.tap), page);
        self.own.write(page);
        let (mut loads, mut sources) = (Vec::new(), Vec::new());
        for (stream, read) in lock(&self.signals).iter() {
            let Some((load, of)) = read() else { continue };
            let labels = vec![("stream", stream.clone())];
            loads.push((labels.clone(), Arc::new(load)));
            sources.extend(of.into_iter().map(|(name, source)| {
                ([labels.clone(), vec![("source", name.to_owned())]].concat(), Arc::new(source))
            }));
        }
        write_blocks(&loads, page);
        write_blocks(&sources, page);
        if self.is_follower {
            return;
        }
        let help = "Events published, by kind, those that the log's rate limit left out included";
        page.metric("events", help, Kind::Counter);
        self.events.counts().for_each(|(name, count)| page.value(&[("event", name)], count));
        let help =
            "Lines of the log that were dropped, because standard error took none and a megabyte waited";
        page.metric("log_lines_dropped", help, Kind::Counter);
        page.value(&[], log::queue().map_or(0, LogQueue::dropped));
        page.metric("ready", "1 while every stream can do its work, as /readyz says", Kind::Gauge);
        page.value(&[], u64::from(self.health.is_ready()));
        let degraded = self.health.degraded_by_kind();
        if !degraded.is_empty() {
            let help = "Conditions that degrade this process now, by kind; /readyz lists them";
            page.metric("degraded", help, Kind::Gauge);
            degraded.into_iter().for_each(|(kind, count)| page.value(&[("condition", &kind)], count));
        }
        let help = "1 unless the last reload of the configuration was refused";
        page.metric("config_last_reload_successful", help, Kind::Gauge);
        page.value(&[], self.config_last_reload_successful.get());
        page.metric("build_info", "Version of this binary", Kind::Gauge);
        page.value(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    }
}

/// Writes all series of one name together, as the format demands.
fn write_blocks<B: Block>(blocks: &[(Labels, Arc<B>)], page: &mut Page) {
    for series in B::SERIES {
        let kind = blocks.iter().find_map(|(_, block)| (series.read)(block).kind());
        let Some(kind) = kind else { continue };
        page.metric(series.name, series.help, kind);
        for (labels, block) in blocks {
            let labels: Vec<(&str, &str)> = labels.iter().map(|(name, value)| (*name, &**value)).collect();
            let with = |name, value| [&labels[..], &[(name, value)]].concat();
            match (series.read)(block) {
                Reading::Count(value) | Reading::Gauge(value) => page.value(&labels, value),
                Reading::Ratio(value) => page.float(&labels, value),
                Reading::OneOf(label, values, is) => {
                    for (at, value) in values.iter().enumerate() {
                        page.value(&with(label, value), u64::from(at == is));
                    }
                }
                Reading::Absent => {}
                Reading::By(label, counts) => {
                    counts.into_iter().for_each(|(value, count)| page.value(&with(label, value), count));
                }
                Reading::Histogram(histogram) => {
                    page.histogram(&labels, &histogram.buckets(), histogram.sum().as_secs_f64());
                }
            }
        }
    }
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
