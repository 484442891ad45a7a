//! The life of a server: it waits for the rendezvous, starts the streams, watches over them, and drains them at a stop.

use crate::descriptors;
use crate::drain::{Left, drain};
use crate::reload::Source;
use crate::reload_queue::{ReloadQueue, ReloadRequest};
use crate::rendezvous::{self, Meeting, is_alive};
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

/// How often the rendezvous file, the streams and a watched process are looked at.
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
        if let Some(why) = descriptors::too_few(&config, descriptors::limit()) {
            tracing::warn!(target: "afterbay", "descriptors: {why}");
        }
        start::make_dirs(&config)?;
        let (queue, reloads) = ReloadQueue::new();
        let shared = Shared::open(config, host, tokenizers, queue)?;
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
    pub fn run(self) -> anyhow::Result<Left> {
        let Server { shared, reloads, options } = self;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let left = runtime.block_on(serve(&options, shared, reloads));
        // A configuration that was being made ready is of no use any more.
        runtime.shutdown_background();
        left
    }
}

/// Why streams are stopped.
enum Stop {
    /// A signal, or the end of the process that is watched.
    Told,
    /// SGLang was started again, with other sockets.
    OtherSockets,
}

/// Runs until told to stop. Streams live for as long as the sockets they were told of.
async fn serve(
    options: &Options,
    mut shared: Shared,
    reloads: mpsc::Receiver<ReloadRequest>,
) -> anyhow::Result<Left> {
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
    loop {
        let Some(mut meetings) = meet(options, &shared, &mut signals).await? else {
            return Ok(Left::Nothing);
        };
        let mut running = Running::default();
        running.start(&shared, &meetings)?;
        shared.health.clear("rendezvous");
        rendezvous::tell(&shared.config, &meetings, &shared.events, &shared.health);
        let stop =
            watch(options, &mut shared, &mut running, &mut meetings, &mut signals, &mut source).await?;
        let left = drain(running.streams, &shared.config.streams, &shared, options.drain_timeout).await?;
        shared.clear();
        // What it held is given back when the runtime has had a turn: the next sockets may have the same names.
        tokio::task::yield_now().await;
        if matches!(stop, Stop::Told) {
            return Ok(left);
        }
    }
}

/// Waits for the rendezvous, where there is to be one. `None`: told to stop meanwhile.
async fn meet(
    options: &Options,
    shared: &Shared,
    signals: &mut Signals,
) -> anyhow::Result<Option<Vec<Meeting>>> {
    let mut told = false;
    loop {
        if let Some(meetings) = rendezvous::look(&shared.config, options.rendezvous.as_deref())? {
            return Ok(Some(meetings));
        }
        if !told {
            told = true;
            let file = options.rendezvous.as_deref().unwrap_or(Path::new("")).display().to_string();
            let text = format!("waits for the scheduler to write {file}");
            tracing::info!(target: "afterbay", "rendezvous: {text}");
            shared.health.not_ready("rendezvous", text, SystemTime::now());
        }
        tokio::select! {
            () = signals.next() => return Ok(None),
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        shared.signals.tell(&shared.events);
        if options.until_pid.is_some_and(|pid| !is_alive(pid)) {
            return Ok(None);
        }
    }
}

/// Until there is a reason to stop. A stream that fails is told, and the others go on.
async fn watch(
    options: &Options,
    shared: &mut Shared,
    running: &mut Running,
    meetings: &mut Vec<Meeting>,
    signals: &mut Signals,
    source: &mut Source<'_>,
) -> anyhow::Result<Stop> {
    let mut look = tokio::time::interval(LOOK_EVERY);
    let mut failed: Vec<String> = Vec::new();
    loop {
        let asked = tokio::select! {
            () = signals.next() => return Ok(Stop::Told),
            asked = source.asked.recv() => Some(asked),
            _ = source.hangup.recv() => Some(None),
            _ = look.tick() => None,
        };
        if let Some(asked) = asked {
            match source.reload(asked, shared, running, meetings, signals.next()).await {
                true => continue,
                false => return Ok(Stop::Told),
            }
        }
        shared.signals.tell(&shared.events);
        shared.sinks.look(&running.streams);
        shared.events.tick(Instant::now());
        for stream in running.streams.iter().filter(|stream| stream.is_finished()) {
            if !failed.iter().any(|name| name == stream.name()) {
                failed.push(stream.name().to_owned());
                let key = format!("stream:{}", stream.name());
                shared.health.not_ready(&key, "its thread has ended", SystemTime::now());
                let why = "its thread has ended; its journal is whole up to its last frame".to_owned();
                shared.events.publish(StreamFailed { stream: stream.name().into(), why });
            }
        }
        if options.until_pid.is_some_and(|pid| !is_alive(pid)) {
            tracing::info!(target: "afterbay", "the process it runs for has ended");
            return Ok(Stop::Told);
        }
        // A file that is gone, half a set or unreadable for a moment is not a reason to let go of living sockets.
        let Ok(Some(now)) = rendezvous::look(&shared.config, options.rendezvous.as_deref()) else { continue };
        if meetings.iter().zip(&now).any(|(before, now)| before.is_elsewhere(now)) {
            return Ok(Stop::OtherSockets);
        }
        // The file of a next leg comes later than that of its scheduler.
        let mut came = false;
        for (before, now) in meetings.iter_mut().zip(now) {
            if !before.has_sockets() && now.has_sockets() {
                (*before, came) = (now, true);
            }
        }
        if came {
            running.start(shared, meetings)?;
            rendezvous::tell(&shared.config, meetings, &shared.events, &shared.health);
        }
    }
}

/// SIGTERM and SIGINT.
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
