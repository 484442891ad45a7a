//! `afterbay run`: the streams of a configuration, until a signal.

use crate::drain::drain;
use crate::meeting::{self, Meeting};
use crate::project::Output;
use crate::reload::{Asked, Reloads, Source};
use crate::rendezvous::is_alive;
use crate::start::{self, Running, Shared};
use crate::vocabularies::Vocabularies;
use crate::{EXIT_USAGE, admin, commands, descriptors, dev};
use afterbay_config::LogFormat;
use afterbay_events::event::StreamFailed;
use afterbay_events::log;
use afterbay_runtime::{Host, HostOptions};
use anyhow::Context;
use clap::ValueEnum;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

/// How often the rendezvous file, the streams and a watched process are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Run the streams of a configuration
///
/// Binds each stream's `listen`, connects to each reader, and carries batches until SIGTERM or SIGINT: then what was
/// received is sent, and the process ends. SIGHUP, or a change of the file, reads the configuration again. Exits 64 where the configuration is wrong, 1 where something was left unsent,
/// 70 where a stream failed.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay run --config afterbay.toml\n  afterbay run --config afterbay.toml --dev\n  afterbay run --config afterbay.toml --rendezvous /run/afterbay/rendezvous.json --log-format json"
)]
pub(crate) struct Args {
    /// The configuration file (`afterbay check --reference` prints one)
    #[arg(long, value_name = "FILE", env = "AFTERBAY_CONFIG")]
    config: PathBuf,
    /// Take the reader's socket, its credit page and the msgpack layout from the file that the SGLang connector writes
    /// (AFTERBAY_RENDEZVOUS); `{dp_rank}` in the name is the stream's place in the configuration, those that are `after`
    /// another left out. Waits for the file, and follows when SGLang is started again
    #[arg(long, value_name = "FILE")]
    rendezvous: Option<PathBuf>,
    /// Build the projects that plugins come from, and again whenever a source is saved: for authors of plugins. The components are
    /// made quickly, not well: build them once more to measure or to deploy them. Projects that a reload of the configuration
    /// brings are looked at from the next start on
    #[arg(long)]
    dev: bool,
    /// How log lines look; by default coloured on a terminal and plain on a pipe
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<Format>,
    /// What is logged: a level, or targets with levels (`info,wasmtime=warn`)
    #[arg(long, value_name = "FILTER", env = "AFTERBAY_LOG")]
    log: Option<String>,
    /// How long a stop waits for the readers to take what was received; streams that are `after` others come after
    /// them, with as long again
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = commands::parse_duration)]
    drain_timeout: Duration,
    /// Stop when this process ends (used by `afterbay sglang`)
    #[arg(long, value_name = "PID", hide = true)]
    until_pid: Option<u32>,
    /// A directory to remove at the end (used by `afterbay sglang`)
    #[arg(long, value_name = "DIR", hide = true)]
    scratch: Option<PathBuf>,
    /// Create this file when nothing is left that could be refused (used by `afterbay sglang`)
    #[arg(long, value_name = "FILE", hide = true)]
    announce: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// Coloured, for people
    Pretty,
    /// One line each, for files
    Plain,
    /// One JSON object a line
    Json,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = match start::load(&args.config, args.rendezvous.is_some()) {
        Ok(config) => config,
        Err(problems) => {
            problems.iter().for_each(|problem| eprintln!("{problem}"));
            return Ok(ExitCode::from(EXIT_USAGE));
        }
    };
    let format = match (args.log_format, config.log.format) {
        (Some(Format::Pretty), _) => log::Format::Pretty,
        (Some(Format::Plain), _) => log::Format::Plain,
        (Some(Format::Json), _) | (None, LogFormat::Json) => log::Format::Json,
        (None, LogFormat::Auto) => log::Format::Auto,
    };
    log::init(args.log.as_deref().unwrap_or(&config.log.filter), format)?;
    // As a line of the log, like all else that is told.
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name");
        tracing::error!(target: "afterbay", "panic in thread {name:?}: {}", panic.to_string().replace('\n', " "));
    }));
    let projects = match args.dev.then(|| dev::projects(&config)).transpose() {
        Ok(projects) => projects,
        Err(error) => {
            eprintln!("{}: {error}", args.config.display());
            return Ok(ExitCode::from(EXIT_USAGE));
        }
    };
    // A line that is no JSON would break whoever reads these.
    let output = if format == log::Format::Json { Output::Kept } else { Output::Shown };
    dev::build_all(projects.as_deref().unwrap_or_default(), output);
    let options = HostOptions { compiles_in_parallel: args.dev, ..start::host_options() };
    let (host, vocabularies) = (Host::new(options)?, Vocabularies::default());
    if let Err(problems) = start::check_files(&config, &host, &vocabularies) {
        problems.iter().for_each(|problem| eprintln!("{problem}"));
        return Ok(ExitCode::from(EXIT_USAGE));
    }
    descriptors::raise();
    if let Some(why) = descriptors::too_few(&config, descriptors::limit()) {
        tracing::warn!(target: "afterbay", "descriptors: {why}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    start::make_dirs(&config)?;
    let (reloads, asked) = Reloads::new();
    let shared = Shared::open(config, host, vocabularies, reloads)?;
    if let Some(projects) = projects {
        dev::watch(projects, shared.events.clone(), output)?;
    }
    let done = runtime.block_on(serve(&args, shared, asked));
    // A configuration that was being made ready is of no use any more.
    runtime.shutdown_background();
    if let Some(dir) = &args.scratch {
        // Of no use to anybody after this, and nobody is left to be told.
        let _removed = std::fs::remove_dir_all(dir);
    }
    done
}

/// Why streams are stopped.
enum Stop {
    /// A signal, or the end of the process that is watched.
    Told,
    /// SGLang was started again, with other sockets.
    OtherSockets,
}

/// Runs until told to stop. Streams live for as long as the sockets they were told of.
async fn serve(args: &Args, mut shared: Shared, asked: mpsc::Receiver<Asked>) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::new()?;
    let bound = shared.admin.bind(&shared.config.admin).await?;
    admin::serve_all(&mut shared, bound)?;
    if let Some(file) = &args.announce {
        std::fs::write(file, b"").with_context(|| format!("announce: {}", file.display()))?;
    }
    let mut source = Source::new(&args.config, args.rendezvous.as_deref(), args.drain_timeout, asked)?;
    source.watch(&shared)?;
    loop {
        let Some(mut meetings) = meet(args, &shared, &mut signals).await? else {
            return Ok(ExitCode::SUCCESS);
        };
        let mut running = Running::default();
        running.start(&shared, &meetings)?;
        shared.health.clear("rendezvous");
        meeting::tell(&shared, &meetings);
        let stop = watch(args, &mut shared, &mut running, &mut meetings, &mut signals, &mut source).await?;
        let left = drain(running.streams, &shared.config.streams, &shared, args.drain_timeout).await?;
        shared.clear();
        // What it held is given back when the runtime has had a turn: the next sockets may have the same names.
        tokio::task::yield_now().await;
        if matches!(stop, Stop::Told) {
            return Ok(left.into());
        }
    }
}

/// Waits for the rendezvous, where there is to be one. `None`: told to stop meanwhile.
async fn meet(args: &Args, shared: &Shared, signals: &mut Signals) -> anyhow::Result<Option<Vec<Meeting>>> {
    let mut told = false;
    loop {
        if let Some(meetings) = meeting::look(&shared.config, args.rendezvous.as_deref())? {
            return Ok(Some(meetings));
        }
        if !told {
            told = true;
            let file = args.rendezvous.as_deref().unwrap_or(Path::new("")).display().to_string();
            let text = format!("waits for the scheduler to write {file}");
            tracing::info!(target: "afterbay", "rendezvous: {text}");
            shared.health.not_ready("rendezvous", text, SystemTime::now());
        }
        tokio::select! {
            () = signals.next() => return Ok(None),
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        shared.signals.tell(&shared.events);
        if args.until_pid.is_some_and(|pid| !is_alive(pid)) {
            return Ok(None);
        }
    }
}

/// Until there is a reason to stop. A stream that fails is told, and the others go on.
async fn watch(
    args: &Args,
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
        shared.sinks.look(shared, &running.streams);
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
        if args.until_pid.is_some_and(|pid| !is_alive(pid)) {
            tracing::info!(target: "afterbay", "the process it runs for has ended");
            return Ok(Stop::Told);
        }
        // A file that is gone, half a set or unreadable for a moment is not a reason to let go of living sockets.
        let Ok(Some(now)) = meeting::look(&shared.config, args.rendezvous.as_deref()) else { continue };
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
            meeting::tell(shared, meetings);
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
