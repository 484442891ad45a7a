//! The life of a server: it waits for the rendezvous file, starts the streams, watches over them, and drains them at a stop.

use crate::descriptors;
use crate::drain::{DrainOutcome, drain};
use crate::reload::Source;
use crate::reload_queue::{ReloadQueue, ReloadRequest};
use crate::rendezvous::{self, StreamSockets, is_alive};
use crate::shared::Shared;
use crate::start::{self, Running};
use afterbay_config::Config;
use afterbay_events::Events;
use afterbay_events::event::StreamFailed;
use afterbay_plugin_loader::Tokenizers;
use afterbay_runtime::Host;
use anyhow::Context;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

/// The interval of looking at the rendezvous file, the streams and the watched process.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The options of a server beside its configuration.
pub struct Options {
    /// The configuration's file, which a reload reads again.
    pub config_file: PathBuf,
    /// The file that the SGLang connector writes; `{dp_rank}` in its name is the number of the stream.
    pub rendezvous: Option<PathBuf>,
    /// The time that a stop gives each leg to send what it received.
    pub drain_timeout: Duration,
    /// The server stops when this process ends.
    pub until_pid: Option<u32>,
    /// Whether a plugin whose component file is missing awaits its first build.
    pub awaits_builds: bool,
    /// The server creates this file when nothing is left that could be refused.
    pub announce: Option<PathBuf>,
}

/// A server whose journal is open, and whose streams have not started.
pub struct Server {
    shared: Shared,
    reloads: mpsc::Receiver<ReloadRequest>,
    options: Options,
}

impl Server {
    /// Raises the limit of file descriptors, makes missing directories, opens the journal and locks it.
    ///
    /// # Errors
    /// A directory cannot be made, or the journal cannot be opened.
    pub fn open(
        config: Config,
        host: Host,
        tokenizers: Tokenizers,
        options: Options,
    ) -> anyhow::Result<Server> {
        descriptors::raise();
        if let Some(why) = descriptors::warning(&config, descriptors::limit()) {
            tracing::warn!(target: "afterbay", "descriptors: {why}");
        }
        start::make_dirs(&config)?;
        let (queue, reloads) = ReloadQueue::new();
        let mut shared = Shared::open(config, host, tokenizers, queue)?;
        shared.awaits_builds = options.awaits_builds;
        Ok(Server { shared, reloads, options })
    }

    /// The events of this server.
    #[must_use]
    pub fn events(&self) -> &Events {
        &self.shared.events
    }

    /// Runs the streams until SIGTERM, SIGINT or the end of [`Options::until_pid`], then drains them.
    ///
    /// # Errors
    /// An address cannot be bound, or a stream cannot be started.
    pub fn run(self) -> anyhow::Result<DrainOutcome> {
        let Server { shared, reloads, options } = self;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let left = runtime.block_on(serve(&options, shared, reloads));
        // A reload may still compile plugins in the background; nobody needs them any more.
        runtime.shutdown_background();
        left
    }
}

/// The reason to stop the streams.
enum Stop {
    /// A signal, or the end of the process named by [`Options::until_pid`].
    Requested,
    /// SGLang was restarted, with other sockets.
    OtherSockets,
}

/// Runs until a stop is requested. When SGLang restarts with other sockets, the streams are drained and started again.
async fn serve(
    options: &Options,
    mut shared: Shared,
    reloads: mpsc::Receiver<ReloadRequest>,
) -> anyhow::Result<DrainOutcome> {
    let mut signals = Signals::new()?;
    let bound = shared.admin.bind(&shared.config.admin).await?;
    let state = shared.admin_state();
    shared.admin.serve(&shared.config.admin, &state, bound)?;
    if let Some(file) = &options.announce {
        std::fs::write(file, b"").with_context(|| format!("announce: {}", file.display()))?;
    }
    let mut source =
        Source::new(&options.config_file, options.rendezvous.as_deref(), options.drain_timeout, reloads)?;
    source.watch(&shared)?;
    let _pings = tokio::spawn(shared.supervision.clone().run());
    loop {
        let Some(mut sockets) = wait_for_sockets(options, &shared, &mut signals).await? else {
            return Ok(DrainOutcome::Complete);
        };
        let mut running = Running::default();
        running.start(&shared, &sockets)?;
        shared.health.clear("rendezvous");
        shared.supervision.ready(None);
        rendezvous::report(&shared.config, &sockets, &shared.events, &shared.health);
        let stop = watch(options, &mut shared, &mut running, &mut sockets, &mut signals, &mut source).await?;
        if matches!(stop, Stop::Requested) {
            shared.supervision.stopping();
        }
        let left = drain(running.streams, &shared.config.streams, &shared, options.drain_timeout).await?;
        shared.clear();
        // Dropped tasks release their sockets only when the runtime runs; the next sockets may have the same names.
        tokio::task::yield_now().await;
        if matches!(stop, Stop::Requested) {
            return Ok(left);
        }
    }
}

/// Waits for the rendezvous file, if there is to be one. `None`: a stop was requested meanwhile.
async fn wait_for_sockets(
    options: &Options,
    shared: &Shared,
    signals: &mut Signals,
) -> anyhow::Result<Option<Vec<StreamSockets>>> {
    let mut reported = false;
    loop {
        if let Some(sockets) = rendezvous::find(&shared.config, options.rendezvous.as_deref())? {
            return Ok(Some(sockets));
        }
        if !reported {
            reported = true;
            let file = options.rendezvous.as_deref().unwrap_or(Path::new("")).display().to_string();
            let text = format!("waits for the scheduler to write {file}");
            tracing::info!(target: "afterbay", "rendezvous: {text}");
            shared.health.not_ready("rendezvous", text.clone(), SystemTime::now());
            // The scheduler may be ordered after this process, so its file cannot be a condition of the start.
            shared.supervision.ready(Some(text));
        }
        tokio::select! {
            () = signals.next() => return Ok(None),
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        shared.signals.publish_notices(&shared.events);
        if options.until_pid.is_some_and(|pid| !is_alive(pid)) {
            return Ok(None);
        }
    }
}

/// Watches over the streams until there is a reason to stop. If a stream fails, the other streams go on.
async fn watch(
    options: &Options,
    shared: &mut Shared,
    running: &mut Running,
    sockets: &mut Vec<StreamSockets>,
    signals: &mut Signals,
    source: &mut Source<'_>,
) -> anyhow::Result<Stop> {
    let mut look = tokio::time::interval(LOOK_EVERY);
    let mut failed: Vec<String> = Vec::new();
    loop {
        let mut is_asked = false;
        let reload = tokio::select! {
            () = signals.next() => return Ok(Stop::Requested),
            request = source.requests.recv() => Some(request),
            _ = source.hangup.recv() => {
                is_asked = true;
                Some(None)
            }
            _ = look.tick() => None,
        };
        if let Some(request) = reload {
            if is_asked {
                shared.supervision.reloading();
            }
            if !source.reload(request, shared, running, sockets, signals.next()).await {
                return Ok(Stop::Requested);
            }
            if is_asked {
                shared.supervision.ready(None);
            }
            continue;
        }
        shared.signals.publish_notices(&shared.events);
        shared.sinks.check_pages(&running.streams);
        shared.events.tick(Instant::now());
        for stream in running.streams.iter().filter(|stream| stream.is_finished()) {
            if !failed.iter().any(|name| name == stream.name()) {
                failed.push(stream.name().to_owned());
                let key = format!("stream:{}", stream.name());
                shared.health.not_ready(&key, "its thread has ended", SystemTime::now());
                let why = "its thread has ended; its journal is complete up to its last frame".to_owned();
                shared.events.publish(StreamFailed { stream: stream.name().into(), why });
            }
        }
        if options.until_pid.is_some_and(|pid| !is_alive(pid)) {
            tracing::info!(target: "afterbay", "stops: the process of --until-pid has ended");
            return Ok(Stop::Requested);
        }
        // A file that is missing or unreadable for a moment is no reason to stop streams that run.
        let Ok(Some(now)) = rendezvous::find(&shared.config, options.rendezvous.as_deref()) else { continue };
        if sockets.iter().zip(&now).any(|(before, now)| before.has_moved(now)) {
            return Ok(Stop::OtherSockets);
        }
        // The detokenizer writes the file of the second leg later than the scheduler writes its own.
        let mut is_new = false;
        for (before, now) in sockets.iter_mut().zip(now) {
            if !before.are_known() && now.are_known() {
                (*before, is_new) = (now, true);
            }
        }
        if is_new {
            running.start(shared, sockets)?;
            rendezvous::report(&shared.config, sockets, &shared.events, &shared.health);
        }
    }
}

/// The signals that request a stop: SIGTERM and SIGINT.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
