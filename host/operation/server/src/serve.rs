//! The life of a server: it waits for the rendezvous file, starts the streams or takes them over, watches over them, and drains
//! them at a stop or hands them over.

use crate::admin::Bound;
use crate::descriptors;
use crate::drain::{DrainOutcome, drain};
use crate::hand_over::hand_over;
use crate::reload::Source;
use crate::reload_queue::{ReloadQueue, ReloadRequest};
use crate::rendezvous::{self, StreamSockets, is_alive};
use crate::shared::Shared;
use crate::start::{self, PreparedStreams, Running};
use crate::take_over::{self, TakeOver};
use crate::upgrade::{Asked, Upgrades};
use afterbay_config::Config;
use afterbay_events::Events;
use afterbay_events::event::{StreamFailed, TookOver};
use afterbay_plugin_loader::Tokenizers;
use afterbay_runtime::Host;
use afterbay_stream::StreamState;
use anyhow::Context;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

/// The interval of looking at the rendezvous file, the streams and the watched process.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Time at a stop for the watchers of the status to get the end of their events.
const WATCHERS_END: Duration = Duration::from_millis(50);

/// The options of a server beside its configuration.
pub struct Options {
    /// The configuration's file, which a reload reads again.
    pub config_file: PathBuf,
    /// The file that the engine's connector writes; `{dp_rank}` or `{client}` in its name is the number of the stream.
    pub rendezvous: Option<PathBuf>,
    /// The time that a stop gives each leg to send what it received.
    pub drain_timeout: Duration,
    /// The server stops when this process ends.
    pub until_pid: Option<u32>,
    /// Whether a plugin whose component file is missing awaits its first build.
    pub awaits_builds: bool,
    /// Whether the server takes the place of the process that started it by `afterbay upgrade`.
    pub take_over: bool,
    /// The arguments of `afterbay-follow follow`.
    pub follow: Vec<OsString>,
    /// The server creates this file when nothing is left that could be refused.
    pub announce: Option<PathBuf>,
}

/// A server whose journal is open, and whose streams have not started.
pub struct Server {
    shared: Shared,
    reloads: mpsc::Receiver<ReloadRequest>,
    /// The new processes that ask to take over.
    asked: mpsc::Receiver<Asked>,
    options: Options,
    /// The process before, which stands still.
    taken: Option<TakeOver>,
}

impl Server {
    /// Raises the limit of file descriptors, makes missing directories, opens the journal and locks it. With
    /// [`Options::take_over`], stops the streams of the process before and takes over its lock.
    ///
    /// # Errors
    /// A directory cannot be made, or the journal cannot be opened. With [`Options::take_over`], nothing was taken over, and
    /// the process before goes on.
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
        let (upgrades, asked) = Upgrades::new();
        start::make_dirs(&config)?;
        let mut taken = match options.take_over {
            true => {
                take_over::warm(&config, options.rendezvous.as_deref(), &tokenizers);
                Some(TakeOver::ask(&config)?)
            }
            false => None,
        };
        let (queue, reloads) = ReloadQueue::new();
        let opened =
            Shared::open(config, host, tokenizers, queue, upgrades, options.follow.clone(), taken.as_mut());
        match (opened, taken) {
            (Ok(mut shared), taken) => {
                shared.awaits_builds = options.awaits_builds;
                Ok(Server { shared, reloads, asked, options, taken })
            }
            (Err(error), Some(taken)) => Err(taken.fail(error)),
            (Err(error), None) => Err(error),
        }
    }

    /// The events of this server.
    #[must_use]
    pub fn events(&self) -> &Events {
        &self.shared.events
    }

    /// Runs the streams until SIGTERM, SIGINT or the end of [`Options::until_pid`], then drains them. Ends without draining them
    /// if a new process has taken them over.
    ///
    /// # Errors
    /// An address cannot be bound, or a stream cannot be started.
    pub fn run(self) -> anyhow::Result<DrainOutcome> {
        let Server { shared, reloads, asked, options, taken } = self;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let left = runtime.block_on(serve(&options, shared, (reloads, asked), taken));
        match left {
            // The tasks own sockets of the new process, whose names must stay.
            Ok(DrainOutcome::HandedOver) => std::mem::forget(runtime),
            // A reload may still compile plugins in the background; nobody needs them any more.
            _ => runtime.shutdown_background(),
        }
        left
    }
}

/// The reason to stop the streams.
enum Stop {
    /// A signal, or the end of the process named by [`Options::until_pid`].
    Requested,
    /// SGLang was restarted, with other sockets.
    OtherSockets,
    /// A new process runs the streams.
    HandedOver,
}

/// Runs until a stop is requested. When SGLang restarts with other sockets, the streams are drained and started again.
async fn serve(
    options: &Options,
    mut shared: Shared,
    (reloads, mut asked): (mpsc::Receiver<ReloadRequest>, mpsc::Receiver<Asked>),
    taken: Option<TakeOver>,
) -> anyhow::Result<DrainOutcome> {
    let mut signals = Signals::new()?;
    let mut ready = match taken {
        Some(taken) => take_place(options, &mut shared, taken).await?,
        None => {
            let mut left = shared.inheritance.take_process();
            let bound = shared.admin.bind(&shared.config.admin, &shared.fdstore, &mut left).await?;
            drop(left);
            serve_admin(&mut shared, bound)?;
            None
        }
    };
    if let Some(file) = &options.announce {
        std::fs::write(file, b"").with_context(|| format!("announce: {}", file.display()))?;
    }
    let mut source =
        Source::new(&options.config_file, options.rendezvous.as_deref(), options.drain_timeout, reloads)?;
    source.watch(&shared)?;
    let _pings = tokio::spawn(shared.supervision.clone().run());
    let _readings = tokio::spawn(shared.status.clone().run());
    let _leases = tokio::spawn(shared.leases.clone().run(shared.aborts.clone()));
    let _expiry = tokio::spawn(shared.attributes.clone().run(shared.events.clone()));
    loop {
        let (mut running, mut sockets) = match ready.take() {
            Some(ready) => ready,
            None => {
                let waited = wait_for_sockets(options, &mut shared, &mut signals, &mut asked).await?;
                let sockets = match waited {
                    Waited::Found(sockets) => sockets,
                    Waited::Stopped => return Ok(DrainOutcome::Complete),
                    Waited::HandedOver => return Ok(leave(shared, Running::default())),
                };
                let mut running = Running::default();
                running.start(&shared, &sockets)?;
                (running, sockets)
            }
        };
        shared.health.clear("rendezvous");
        shared.supervision.ready(None);
        rendezvous::report(&shared.config, &sockets, &shared.events, &shared.health);
        let mut requests = Requests { signals: &mut signals, source: &mut source, asked: &mut asked };
        let stop = watch(options, &mut shared, &mut running, &mut sockets, &mut requests).await?;
        match stop {
            Stop::HandedOver => return Ok(leave(shared, running)),
            Stop::Requested => shared.supervision.stopping(),
            Stop::OtherSockets => {}
        }
        let left = drain(running.streams, &shared.config.streams, &shared, options.drain_timeout).await?;
        shared.clear();
        // Dropped tasks release their sockets only when the runtime runs; the next sockets may have the same names.
        tokio::task::yield_now().await;
        if matches!(stop, Stop::Requested) {
            // Nothing else is to be done by now.
            shared.follower.stop();
            shared.status.end(WATCHERS_END).await;
            return Ok(left);
        }
    }
}

/// Leaves everything to the new process: nothing is closed in order, unlinked, or written.
fn leave(shared: Shared, running: Running) -> DrainOutcome {
    // The new process starts its own, which goes on where this one ends.
    shared.follower.stop();
    std::mem::forget((shared, running));
    DrainOutcome::HandedOver
}

fn serve_admin(shared: &mut Shared, bound: Vec<Bound>) -> anyhow::Result<()> {
    let state = shared.admin_state();
    shared.admin.serve(&shared.config.admin, &state, bound)
}

/// The streams that run, and their sockets.
type Ready = (Running, Vec<StreamSockets>);

/// Takes the place of the process before: builds everything, waits for the release, and runs.
async fn take_place(
    options: &Options,
    shared: &mut Shared,
    mut taken: TakeOver,
) -> anyhow::Result<Option<Ready>> {
    let (from, from_pid) = (taken.state.from.clone(), std::os::unix::process::parent_id());
    let streams = taken.state.streams.len();
    let (bound, prepared) = match build(options, shared, &mut taken).await {
        Ok(built) => built,
        Err(error) => return Err(taken.fail(error)),
    };
    tokio::task::spawn_blocking(move || taken.confirm()).await??;
    // From here on the streams are this process's, and the process before ends.
    shared.directory.claim();
    shared.fdstore.reclaim();
    let mut ready = None;
    if let Some((prepared, sockets)) = prepared {
        let mut running = Running::default();
        running.run(shared, prepared)?;
        ready = Some((running, sockets));
    }
    shared.aborts.claim();
    shared.supervision.took_over();
    shared.events.publish(TookOver { from_pid, from, streams });
    serve_admin(shared, bound)?;
    Ok(ready)
}

/// Everything of this process, built and not running.
type Built = (Vec<Bound>, Option<(PreparedStreams, Vec<StreamSockets>)>);

async fn build(options: &Options, shared: &mut Shared, taken: &mut TakeOver) -> anyhow::Result<Built> {
    let mut left = shared.inheritance.take_process();
    let bound = shared.admin.bind(&shared.config.admin, &shared.fdstore, &mut left).await?;
    drop(left);
    shared.attributes.take_over(std::mem::take(&mut taken.state.attributes));
    let prepared = match rendezvous::find(&shared.config, options.rendezvous.as_deref())? {
        Some(sockets) => {
            let prepared = Running::default().prepare(shared, &sockets, |stream| taken.stream(stream))?;
            Some((prepared, sockets))
        }
        None => None,
    };
    match taken.state.streams.first() {
        // Its connections would be closed.
        Some(StreamState { stream, .. }) => anyhow::bail!(
            "stream {stream:?} runs, and its scheduler's rendezvous file is missing, or the process that wrote it has ended"
        ),
        None => Ok((bound, prepared)),
    }
}

/// The outcome of waiting for the rendezvous file.
enum Waited {
    Found(Vec<StreamSockets>),
    /// A stop was requested meanwhile.
    Stopped,
    /// A new process waits for the file.
    HandedOver,
}

/// Waits for the rendezvous file, if there is to be one.
async fn wait_for_sockets(
    options: &Options,
    shared: &mut Shared,
    signals: &mut Signals,
    asked: &mut mpsc::Receiver<Asked>,
) -> anyhow::Result<Waited> {
    let file = options.rendezvous.as_deref();
    let waits = || format!("waits for the scheduler to write {}", file.unwrap_or(Path::new("")).display());
    let mut reported = None;
    loop {
        if let Some(sockets) = rendezvous::find(&shared.config, file)? {
            return Ok(Waited::Found(sockets));
        }
        let silence = rendezvous::silence(file);
        if reported.as_ref() != Some(&silence) {
            let text = silence.clone().unwrap_or_else(waits);
            tracing::info!(target: "afterbay", "rendezvous: {text}");
            match silence {
                // Nothing is missing.
                Some(_) => _ = shared.health.clear("rendezvous"),
                None => shared.health.not_ready("rendezvous", text.clone(), SystemTime::now()),
            }
            // The scheduler may be ordered after this process, so its file cannot be a condition of the start.
            shared.supervision.ready(Some(text));
            reported = Some(silence);
        }
        tokio::select! {
            () = signals.next() => return Ok(Waited::Stopped),
            Some(asked) = asked.recv() => {
                if hand_over(asked, shared, &Running::default()).await {
                    return Ok(Waited::HandedOver);
                }
            }
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        shared.signals.publish_notices(&shared.events);
        if options.until_pid.is_some_and(|pid| !is_alive(pid)) {
            return Ok(Waited::Stopped);
        }
    }
}

/// The requests from outside.
struct Requests<'a, 's> {
    signals: &'a mut Signals,
    source: &'a mut Source<'s>,
    asked: &'a mut mpsc::Receiver<Asked>,
}

/// Watches over the streams until there is a reason to stop. If a stream fails, the other streams go on.
async fn watch(
    options: &Options,
    shared: &mut Shared,
    running: &mut Running,
    sockets: &mut Vec<StreamSockets>,
    requests: &mut Requests<'_, '_>,
) -> anyhow::Result<Stop> {
    let Requests { signals, source, asked } = requests;
    let mut look = tokio::time::interval(LOOK_EVERY);
    let mut failed: Vec<String> = Vec::new();
    loop {
        let mut is_asked = false;
        let reload = tokio::select! {
            () = signals.next() => return Ok(Stop::Requested),
            Some(asked) = asked.recv() => {
                source.refuse_waiting();
                if hand_over(asked, shared, running).await {
                    return Ok(Stop::HandedOver);
                }
                // A change of the file may have been among the refused requests.
                shared.reloads.changed();
                None
            }
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
