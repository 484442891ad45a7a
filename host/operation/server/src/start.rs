//! Starts streams: journal, plugins and sockets, in this order. Holds the running streams and the watches over their component
//! files.

use crate::aborts::{AbortSocket, OpenChannel};
use crate::calls::PluginCalls;
use crate::grants;
use crate::layouts::KnownLayouts;
use crate::loading::{Key, Loader};
use crate::plugins;
use crate::rendezvous::{self, RendezvousFile, StreamSockets};
use crate::requests::StreamContent;
use crate::shared::Shared;
use afterbay_config as config;
use afterbay_events::event::{
    JournalCorrupt, JournalCut, JournalNotice, JournalRecovered, PluginReloadUnwatched, StreamStarted,
};
use afterbay_journal::{Background, OpenError, ProblemKind, RecoveredStream};
use afterbay_runtime::{Watch, Watched};
use afterbay_stream::{
    ConnectorMessages, JournalPolicy, PreparedStream, Setup, SinkSetup, Stream, StreamHandle, StreamState,
    SystemClock,
};
use afterbay_supervision::fdstore::{FdName, Inherited};
use afterbay_wire::BarrierKind;
use anyhow::Context;
use std::collections::HashMap;
use std::os::unix::fs::DirBuilderExt;
use std::sync::Arc;

/// Makes the missing directories of the journal and of `ipc://` endpoints that Afterbay binds. Only their owner may enter them.
pub(crate) fn make_dirs(config: &config::Config) -> anyhow::Result<()> {
    let mut dirs = vec![config.journal.dir.as_path()];
    let mut listens: Vec<&config::Endpoint> = Vec::new();
    for stream in &config.streams {
        listens.push(&stream.listen);
        listens.extend(&stream.abort);
    }
    for listen in listens {
        if let config::Endpoint::Ipc(path) = listen {
            dirs.extend(path.parent());
        }
    }
    for dir in dirs {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.with_context(|| dir.display().to_string())?;
    }
    Ok(())
}

/// The running streams of a process, and the watches over their component files.
#[derive(Default)]
pub(crate) struct Running {
    pub(crate) streams: Vec<Stream>,
    pub(crate) watches: Vec<Watch>,
    /// The files that `watches` watch.
    pub(crate) watched: Vec<Watched<Key>>,
}

/// Streams that are built and do not run yet, and their component files.
pub(crate) struct PreparedStreams {
    streams: Vec<Prepared>,
    watched: Vec<Watched<Key>>,
}

struct Prepared {
    stream: PreparedStream,
    config: config::Stream,
    sinks: Vec<String>,
    abort_channel: OpenChannel,
}

impl Running {
    /// Forgets a stream that has ended and is no longer in the configuration.
    pub(crate) fn forget_stream(&mut self, shared: &Shared, stream: &str) {
        shared.forget_stream(stream);
        self.watched.retain(|watched| watched.key.0 != stream);
    }

    /// Starts every stream that does not run and whose sockets are known.
    pub(crate) fn start(&mut self, shared: &Shared, sockets: &[StreamSockets]) -> anyhow::Result<()> {
        let prepared = self.prepare(shared, sockets, |_| None)?;
        self.run(shared, prepared)
    }

    /// Does everything for [`Running::start`] but run: no byte of a socket is read or written. `handed_over` returns a
    /// stream's state in the process before.
    pub(crate) fn prepare(
        &self,
        shared: &Shared,
        sockets: &[StreamSockets],
        mut handed_over: impl FnMut(&str) -> Option<StreamState>,
    ) -> anyhow::Result<PreparedStreams> {
        shared.signals.attach(&shared.config, sockets)?;
        let (mut prepared, mut watched) = (Vec::new(), Vec::new());
        for (stream, sockets) in shared.config.streams.iter().zip(sockets) {
            let runs = self.streams.iter().any(|running| running.name() == stream.name.as_str());
            if runs || !sockets.are_known() {
                continue;
            }
            let name = stream.name.as_str();
            let mut inherited = shared.inheritance.take(name);
            let left = inherited.take(&FdName::abort(name)).and_then(|fds| fds.into_iter().next());
            let socket = AbortSocket { store: &shared.fdstore, inherited: left };
            let mut abort_channel = OpenChannel::new(stream, sockets.file(), &shared.events, socket)?;
            let mut setup = setup(shared, stream, sockets.file(), &mut watched)?;
            (setup.inherited, setup.handed_over) = (inherited, handed_over(name));
            setup.upstream = abort_channel.tell_scheduler();
            let sinks = setup.sinks.iter().map(|sink| sink.config.name.to_string()).collect();
            let config = stream.clone();
            prepared.push(Prepared { stream: Stream::prepare(setup)?, config, sinks, abort_channel });
        }
        Ok(PreparedStreams { streams: prepared, watched })
    }

    /// Runs prepared streams.
    pub(crate) fn run(&mut self, shared: &Shared, prepared: PreparedStreams) -> anyhow::Result<()> {
        let PreparedStreams { streams, watched } = prepared;
        let before = self.streams.len();
        for Prepared { stream, config, sinks, abort_channel } in streams {
            let started = stream.run()?;
            shared.migrations.add(started.name(), started.handle());
            shared.aborts.add(started.name(), started.handle(), abort_channel);
            shared.attributes.add(started.name(), started.handle());
            shared.plugins.add(started.name(), &config.plugins, started.handle());
            shared.supervision.add(started.name(), sinks, started.handle());
            shared.events.publish(StreamStarted {
                stream: started.name().into(),
                listen: started.listen().to_string(),
            });
            self.streams.push(started);
        }
        self.watched.extend(watched.iter().cloned());
        self.watch(shared, watched, before)
    }

    /// Replaces all watches, with the components that run now.
    pub(crate) fn watch_all(&mut self, shared: &Shared) -> anyhow::Result<()> {
        self.watches.clear();
        self.watch(shared, self.watched.clone(), 0)
    }

    /// Asks each stream which components it runs or is about to run, so that the same bytes are no reload.
    pub(crate) async fn refresh(&mut self) {
        let asked: Vec<_> =
            self.streams.iter().map(|it| (it.name(), plugins::statuses(&it.handle()))).collect();
        for (stream, statuses) in asked {
            // A stream that has ended runs nothing, and a stuck one does not answer.
            for status in statuses.await.ok().flatten().unwrap_or_default() {
                let is_it = |known: &&mut Watched<Key>| known.key.0 == stream && known.key.1 == status.plugin;
                if let Some(known) = self.watched.iter_mut().find(is_it) {
                    known.digest = status.next.unwrap_or(status.digest);
                }
            }
        }
    }

    /// Watches component files, for the streams from index `first` on.
    fn watch(&mut self, shared: &Shared, watched: Vec<Watched<Key>>, first: usize) -> anyhow::Result<()> {
        if watched.is_empty() {
            return Ok(());
        }
        let handles: HashMap<String, StreamHandle> =
            self.streams[first..].iter().map(|stream| (stream.name().to_owned(), stream.handle())).collect();
        let reloads = shared.reloads.clone();
        let has_more_changed = move || reloads.is_due();
        let watch = Watch::start(shared.host.clone(), watched, has_more_changed, move |reloaded| {
            let (stream, plugin): Key = reloaded.key;
            if let Some(handle) = handles.get(&stream) {
                handle.reload(&plugin, reloaded.result);
            }
        })?;
        for without in watch.without_events() {
            let (directory, why) = (without.directory.display().to_string(), without.message.clone());
            shared.events.publish(PluginReloadUnwatched { directory, why });
        }
        self.watches.push(watch);
        Ok(())
    }
}

fn setup(
    shared: &Shared,
    stream: &config::Stream,
    rendezvous: Option<&RendezvousFile>,
    watched: &mut Vec<Watched<Key>>,
) -> anyhow::Result<Setup> {
    let name = stream.name.to_string();
    shared.attributes.set_model(&name, rendezvous.and_then(RendezvousFile::model));
    let open = {
        let (directory, name) = (shared.directory.clone(), name.clone());
        let attributes = shared.attributes.clone();
        move || -> Result<_, OpenError> {
            let mut journal = directory.stream(&name)?;
            journal.0.set_attributes(attributes.journaled(&name));
            Ok(journal)
        }
    };
    let journal = open()?;
    let after: Vec<String> = stream.after.iter().map(ToString::to_string).collect();
    let known = KnownLayouts::new(stream, &shared.directory, &shared.requests, &shared.events);
    let introduction = rendezvous.and_then(|rendezvous| rendezvous.introduction.as_ref());
    let layouts = known.add(introduction.map(ToString::to_string).as_deref());
    if let Err(error) = shared.directory.set_after(&name, &after) {
        if !error.is_full() {
            return Err(error.into());
        }
        let what = format!("the names of the streams that it is after are not stored: {error}");
        shared.events.publish(JournalNotice { stream: name.as_str().into(), is_wrong: true, what });
    }
    report_recovered(shared, &name, &journal.1);
    let mut plugins = Vec::new();
    let loader = Loader { awaits_builds: shared.awaits_builds, ..shared.loader() };
    for plugin in &stream.plugins {
        let (setup, file) = loader.load(stream, plugin, rendezvous)?;
        watched.extend(file);
        plugins.push(setup);
    }
    let tokenizer = grants::tokenizer(stream, rendezvous);
    shared.requests.add(&name, StreamContent { layouts: layouts.clone(), tokenizer });
    let workers = rendezvous::workers(stream, rendezvous)?;
    let sinks = stream.sinks.iter().chain(&workers);
    let sinks = sinks.map(|sink| shared.sinks.setup(&shared.config, stream, sink, rendezvous));
    let sinks: Vec<SinkSetup> = sinks.collect::<anyhow::Result<_>>()?;
    Ok(Setup {
        listen: stream.listen.clone(),
        fdstore: shared.fdstore.clone(),
        inherited: Inherited::default(),
        sinks,
        layouts,
        journal,
        reopen: Box::new(open),
        journal_policy: JournalPolicy {
            on_error: shared.config.journal.on_error,
            durable_first: shared.config.journal.sync == config::Sync::Always,
            record_detail: stream.requests.record,
        },
        abandon_after: shared.config.journal.abandon_after,
        budget: shared.budget.clone(),
        spill_max: shared.config.journal.retain.bytes.unwrap_or(u64::MAX),
        plugins,
        attributes: shared.attributes.of(stream),
        records: shared.records.links(stream),
        calls: Arc::new(PluginCalls(shared.calls.clone())),
        scheduler: shared.signals.load_of(&name),
        frame_loads: shared.signals.frames_of(&name),
        connector: Some(connector(known)),
        upstream: None,
        leases: Some(shared.leases.sender(stream)),
        interrupted: Some(shared.migrations.sender(stream)),
        clock: Arc::new(SystemClock),
        background: Background::Threads,
        events: shared.events.clone(),
        handed_over: None,
        metrics: shared.metrics.clone(),
        health: shared.health.clone(),
        config: stream.clone(),
    })
}

/// Takes what the connector says of the stream's engine, and reports what cannot be read of its requests.
fn connector(known: KnownLayouts) -> ConnectorMessages {
    Box::new(move |message| match &message.kind {
        BarrierKind::Introduction { introduction } => known.receive(introduction.as_deref(), message.bytes()),
        BarrierKind::Request { record: Err(error) }
        | BarrierKind::End { rid: Err(error) }
        | BarrierKind::Left { rid: Err(error) } => {
            known.refuse(error.to_string());
        }
        _ => {}
    })
}

fn report_recovered(shared: &Shared, stream: &str, recovered: &RecoveredStream) {
    let name: afterbay_events::Name = stream.into();
    for cut in &recovered.cut {
        let (stream, segment) = (name.clone(), cut.segment.to_string());
        shared.events.publish(JournalCut { stream, segment, cut_bytes: cut.bytes });
    }
    for corrupt in &recovered.corrupt {
        let what = format!("{} bytes from byte {} on are no record", corrupt.bytes, corrupt.offset);
        let (stream, segment) = (name.clone(), corrupt.segment.to_string());
        shared.events.publish(JournalCorrupt { stream, segment, what });
    }
    if let Some(missing) = &recovered.missing {
        let what = ProblemKind::MissingSegments(*missing).to_string();
        shared.events.publish(JournalNotice { stream: name.clone(), is_wrong: true, what });
    }
    shared.events.publish(JournalRecovered {
        stream: name,
        segments: recovered.segments as u64,
        bytes: recovered.bytes,
        last_frame: recovered.last_frame.0,
        live_requests: recovered.live.len() as u64,
        unaccounted_frames: recovered.unfinished.len(),
    });
}
