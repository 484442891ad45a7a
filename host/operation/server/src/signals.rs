//! The scheduler's own load, for each stream: background readers, and their values in events, `/metrics` and `/v1/status`.
//!
//! A reader outlives a stream's sockets.

use crate::rendezvous::{self, RendezvousFile, StreamSockets};
use afterbay_config as config;
use afterbay_events::event::{
    NoticesMissed, SignalFound, SignalFresh, SignalInvalid, SignalLost, SignalStale,
};
use afterbay_events::{Event, Events, Metrics, Name, SchedulerLoad, SignalSource, Total};
use afterbay_runtime::signals::Load;
use afterbay_scheduler::signals::{
    LoadConfig, LoadReader, LoadSnapshot, LoadSource, LoadValues, SourceChange, SourceNotice, SourceReport,
    instance_path,
};
use afterbay_stream::{FrameLoads, SchedulerLoad as LoadForPlugins};
use anyhow::Context;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The readers of a process, in the order of the configuration's streams. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Signals(Arc<Mutex<Vec<Arc<StreamSignals>>>>);

/// The signals of one stream.
struct StreamSignals {
    stream: String,
    /// Those of the configuration, and of the tokenizers of the rendezvous file.
    sinks: Mutex<Vec<String>>,
    engine: config::Engine,
    config: config::Signals,
    /// `None` if there is no source.
    source: Mutex<Option<Source>>,
}

/// A stream, its sinks, and the scheduler's load.
pub(crate) struct StreamLoad {
    pub(crate) stream: String,
    pub(crate) sinks: Vec<String>,
    /// `None` without a source. Stale values are the last known ones.
    pub(crate) load: Option<LoadSnapshot>,
    pub(crate) load_source: Option<SourceReport>,
}

struct Source {
    reader: LoadReader,
    /// The configuration of the reader, with the load file that it follows now.
    reads: LoadConfig,
}

impl Signals {
    /// The signals of every stream of a configuration. Nothing is read before [`Signals::attach`].
    pub(crate) fn new(config: &config::Config, metrics: &Metrics) -> Signals {
        let signals = Signals::default();
        signals.follow(config, metrics);
        signals
    }

    /// Changes to the streams of another configuration. Readers whose configuration did not change go on.
    pub(crate) fn follow(&self, config: &config::Config, metrics: &Metrics) {
        let mut held = self.lock();
        let before = std::mem::take(&mut *held);
        for stream in &config.streams {
            let sinks: Vec<String> = stream.sinks.iter().map(|sink| sink.name.to_string()).collect();
            let (name, follows) = (stream.name.to_string(), of_its_own(stream));
            let is_same = |known: &&Arc<StreamSignals>| {
                (&known.stream, known.engine, &known.config) == (&name, stream.engine, &follows)
            };
            if let Some(before) = before.iter().find(is_same) {
                *before.sinks() = sinks;
                held.push(before.clone());
                continue;
            }
            let signals = self.clone();
            metrics.signals(&name.clone(), {
                let name = name.clone();
                move || signals.of(&name)?.metrics()
            });
            let (sinks, source) = (Mutex::new(sinks), Mutex::default());
            let (engine, config) = (stream.engine, follows);
            held.push(Arc::new(StreamSignals { stream: name, sinks, engine, config, source }));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<StreamSignals>>> {
        // No code panics with a half-written value.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> Vec<Arc<StreamSignals>> {
        self.lock().clone()
    }

    fn of(&self, stream: &str) -> Option<Arc<StreamSignals>> {
        self.lock().iter().find(|stream_signals| stream_signals.stream == stream).cloned()
    }

    /// Starts to read the source that the configuration and each stream's rendezvous file name.
    pub(crate) fn attach(&self, config: &config::Config, sockets: &[StreamSockets]) -> anyhow::Result<()> {
        for (stream_signals, (stream, sockets)) in self.all().iter().zip(config.streams.iter().zip(sockets)) {
            let rendezvous = sockets.file();
            let workers = rendezvous::workers(stream, rendezvous)?;
            let sinks = stream.sinks.iter().chain(&workers);
            *stream_signals.sinks() = sinks.map(|sink| sink.name.to_string()).collect();
            stream_signals
                .attach(rendezvous)
                .with_context(|| format!("stream {:?}", stream_signals.stream))?;
        }
        Ok(())
    }

    /// The scheduler's load of a stream, for its plugins.
    pub(crate) fn load_of(&self, stream: &str) -> LoadForPlugins {
        let (signals, stream) = (self.clone(), stream.to_owned());
        Box::new(move || {
            let stream_signals = signals.of(&stream)?;
            let load = stream_signals.lock().as_ref()?.reader.handle().read();
            for_plugins(&load)
        })
    }

    /// The place for the load that a stream's frames have; `None` if they have none, or the signals are not attached.
    pub(crate) fn frames_of(&self, stream: &str) -> Option<FrameLoads> {
        let stream_signals = self.of(stream).filter(|signals| signals.engine.traits().has_load_in_frames)?;
        let frames = stream_signals.lock().as_ref()?.reader.frames();
        Some(Box::new(move |load| {
            frames.send(LoadValues {
                running: Some(load.running),
                waiting: Some(load.waiting),
                kv_cache_usage: Some(load.kv_cache_usage),
            });
        }))
    }

    /// Publishes the changes of the sources since the last call.
    pub(crate) fn publish_notices(&self, events: &Events) {
        for stream_signals in self.all() {
            let notices = stream_signals.lock().as_ref().map(|source| source.reader.notices());
            let stream: Name = stream_signals.stream.as_str().into();
            for notice in notices.into_iter().flatten() {
                events.publish(event(stream.clone(), notice));
            }
        }
    }

    /// The name of each configured stream, and those of its sinks.
    pub(crate) fn names(&self) -> Vec<(String, Vec<String>)> {
        let names = |stream_signals: &Arc<StreamSignals>| {
            (stream_signals.stream.clone(), stream_signals.sinks().clone())
        };
        self.all().iter().map(names).collect()
    }

    /// Each configured stream with its sinks and the scheduler's load.
    pub(crate) fn streams(&self) -> Vec<StreamLoad> {
        let read = |stream_signals: &Arc<StreamSignals>| {
            let (load, load_source) = stream_signals.read().unzip();
            let (stream, sinks) = (stream_signals.stream.clone(), stream_signals.sinks().clone());
            StreamLoad { stream, sinks, load, load_source: load_source.flatten() }
        };
        self.all().iter().map(read).collect()
    }
}

impl StreamSignals {
    fn lock(&self) -> MutexGuard<'_, Option<Source>> {
        // After a panic the reader still works.
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sinks(&self) -> MutexGuard<'_, Vec<String>> {
        // The list is only ever replaced.
        self.sinks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attach(&self, rendezvous: Option<&RendezvousFile>) -> std::io::Result<()> {
        let mut held = self.lock();
        let reads = reads(&self.config, self.engine, rendezvous);
        if let (Some(source), Some(reads)) = (held.as_mut(), &reads) {
            if source.reads == *reads {
                return Ok(());
            }
            if let Some(path) = source.elsewhere(reads) {
                source.reader.follow(path);
                source.reads = reads.clone();
                return Ok(());
            }
        }
        // There is no reader, or its values are of another scheduler or rank.
        *held = None;
        let start =
            |reads: LoadConfig| LoadReader::start(reads.clone()).map(|reader| Source { reader, reads });
        *held = reads.map(start).transpose()?;
        Ok(())
    }

    /// The load and the state of its source; `None` if there is no source.
    fn read(&self) -> Option<(LoadSnapshot, Option<SourceReport>)> {
        self.lock().as_ref().map(|source| (source.reader.handle().read(), source.reader.source()))
    }

    fn metrics(&self) -> Option<afterbay_events::Signals> {
        let (load, report) = self.read()?;
        let source = report.map(|report| (report.source.name(), of_source(&report)));
        Some((of_load(&load), source.into_iter().collect()))
    }
}

impl Source {
    /// The path of the new load file, if nothing else differs.
    fn elsewhere(&self, reads: &LoadConfig) -> Option<PathBuf> {
        let there = LoadConfig { source: reads.source.clone(), ..self.reads.clone() };
        match (&self.reads.source, &reads.source) {
            (LoadSource::File(_), LoadSource::File(path)) if there == *reads => Some(path.clone()),
            _ => None,
        }
    }
}

/// A second leg does not look for the scheduler's load file by itself, because the first leg reads it.
fn of_its_own(stream: &config::Stream) -> config::Signals {
    let mut signals = stream.signals.clone();
    let has_file = stream.after.is_empty() && !stream.engine.traits().has_load_in_frames;
    if !has_file && signals.load_snapshot == config::LoadSnapshot::Auto {
        signals.load_snapshot = config::LoadSnapshot::Off;
    }
    signals
}

/// The source for a stream's load reader; `None` if there is none.
fn reads(
    config: &config::Signals,
    engine: config::Engine,
    rendezvous: Option<&RendezvousFile>,
) -> Option<LoadConfig> {
    // SGLang before 0.5.13 has no instance id, and writes no load file.
    let instance =
        rendezvous.and_then(|rendezvous| rendezvous.instance_id.as_ref()).filter(|id| !id.is_empty());
    let source = match &config.load_snapshot {
        _ if engine.traits().has_load_in_frames => LoadSource::Frames,
        config::LoadSnapshot::Auto => LoadSource::File(instance_path(instance?)),
        config::LoadSnapshot::Off => return None,
        config::LoadSnapshot::Path(path) => LoadSource::File(path.clone()),
        config::LoadSnapshot::Instance(id) => LoadSource::File(instance_path(id)),
    };
    let rank = rendezvous.and_then(|rendezvous| rendezvous.dp_rank);
    let dp_rank = config.dp_rank.or(rank).unwrap_or(0);
    Some(LoadConfig { dp_rank, stale_after: config.stale_after, ..LoadConfig::new(source) })
}

fn event(stream: Name, notice: SourceNotice) -> Event {
    let (source, place) = (notice.source.name(), notice.name);
    match notice.change {
        SourceChange::Found => SignalFound { stream, source, place }.into(),
        SourceChange::Lost { why } => SignalLost { stream, source, place, why }.into(),
        SourceChange::Invalid { why } => SignalInvalid { stream, source, place, why }.into(),
        SourceChange::Stale { age_ns } => {
            SignalStale { stream, source, place, age_ms: age_ns / 1_000_000 }.into()
        }
        SourceChange::Fresh => SignalFresh { stream, source, place }.into(),
        SourceChange::NoticesMissed { notices } => {
            NoticesMissed { stream, of: "signals", missed: notices }.into()
        }
    }
}

fn seconds(nanos: u64) -> f64 {
    std::time::Duration::from_nanos(nanos).as_secs_f64()
}

/// The load as gauges. Stale values are left out, because a gauge has no age.
fn of_load(load: &LoadSnapshot) -> SchedulerLoad {
    let fresh = load.fresh().copied();
    let values = fresh.unwrap_or_default();
    SchedulerLoad {
        load_fresh: u64::from(fresh.is_some()),
        load_age_seconds: load.age_ns.map(seconds),
        running_requests: values.running,
        waiting_requests: values.waiting,
        kv_cache_usage: values.kv_cache_usage,
    }
}

/// The load for plugins; `None` before the first reading.
fn for_plugins(load: &LoadSnapshot) -> Option<Load> {
    let values = &load.values;
    Some(Load {
        age_ms: load.age_ns? / 1_000_000,
        stale: load.fresh().is_none(),
        running: values.running,
        waiting: values.waiting,
        kv_cache_usage: values.kv_cache_usage,
    })
}

fn of_source(report: &SourceReport) -> SignalSource {
    SignalSource { state: Some(report.state), readings: Total(report.readings) }
}
