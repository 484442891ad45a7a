//! `afterbay run`: the command line of the server.

use crate::print_error;
use afterbay_config::LogFormat;
use afterbay_events::log;
use afterbay_plugin_loader::project::Output;
use afterbay_plugin_loader::{Tokenizers, host_options};
use afterbay_plugin_tools::dev;
use afterbay_runtime::{Host, HostOptions};
use afterbay_server::{DrainOutcome, Options, Server};
use afterbay_supervision::keeper::{Engine, Worker};
use afterbay_terminal::{self as screen, Busy, EXIT_USAGE};
use clap::ValueEnum;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

/// A stream failed while it ran (`EX_SOFTWARE`).
const EXIT_FAILED: u8 = 70;

/// Run the streams of a configuration
///
/// Binds each stream's `listen`, connects to each reader, and forwards batches until SIGTERM or SIGINT. Then it sends what it
/// received, and exits. SIGHUP, or a change of the file, reloads the configuration. Exits 64 if the configuration is wrong, 1 if
/// something was left unsent, and 70 if a stream failed.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay run --config afterbay.toml\n  afterbay run --config afterbay.toml --dev\n  afterbay run --config afterbay.toml --rendezvous /run/afterbay/rendezvous.json --log-format json"
)]
pub(crate) struct Args {
    /// The configuration file (`afterbay check --reference` prints one)
    #[arg(long, value_name = "FILE", env = "AFTERBAY_CONFIG")]
    config: PathBuf,
    /// Take the reader's socket, its credit page and the msgpack layout from the file that the engine's connector writes
    /// (AFTERBAY_RENDEZVOUS). `{dp_rank}` or `{client}` in the name stands for the number of the stream, not counting streams that
    /// are `after` another. Waits for the file, and follows restarts of the engine
    #[arg(long, value_name = "FILE")]
    rendezvous: Option<PathBuf>,
    /// For plugin authors: build the plugins' projects, and build them again whenever a source is saved. Traffic passes at once
    /// with the last build; without one, `on_fault` decides about each batch until the first build is done. These builds are
    /// quick and less optimised: use `afterbay plugin build` before measuring or deploying. Projects that a reload adds are
    /// built from the next start on
    #[arg(long)]
    dev: bool,
    /// Run under a small parent process that restarts this one after a crash and keeps its connections open meanwhile. For places
    /// without systemd, such as containers
    #[arg(long)]
    keep: bool,
    /// The format of log lines [default: coloured on a terminal, plain on a pipe]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<Format>,
    /// The log level, or targets with levels (`info,wasmtime=warn`)
    #[arg(long, value_name = "FILTER", env = "AFTERBAY_LOG")]
    log: Option<String>,
    /// How long a stop waits until the readers have taken what was received; streams that are `after` others then get the
    /// same time
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = afterbay_config::duration_argument)]
    drain_timeout: Duration,
    /// Take the place of the Afterbay that started this process (used by `afterbay upgrade`)
    #[arg(long, hide = true)]
    take_over: bool,
    /// Stop when this process ends (used by the launchers)
    #[arg(long, value_name = "PID", hide = true)]
    until_pid: Option<u32>,
    /// A directory to remove at the end (used by the launchers)
    #[arg(long, value_name = "DIR", hide = true)]
    scratch: Option<PathBuf>,
    /// Create this file when the start can no longer be refused (used by the launchers)
    #[arg(long, value_name = "FILE", hide = true)]
    announce: Option<PathBuf>,
}

impl Format {
    fn chosen(self) -> log::Format {
        match self {
            Format::Pretty => log::Format::Pretty,
            Format::Plain => log::Format::Plain,
            Format::Json => log::Format::Json,
        }
    }
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

/// The hidden command of a worker's first stage.
pub(crate) const WORKER: &str = "run-worker";

/// Become a worker of `afterbay run --keep`
#[derive(clap::Args)]
pub(crate) struct WorkerArgs {
    program: OsString,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

pub(crate) fn become_worker(args: WorkerArgs) -> anyhow::Result<ExitCode> {
    let error = afterbay_supervision::keeper::become_worker(&args.program, &args.arguments);
    Err(anyhow::Error::from(error).context(args.program.display().to_string()))
}

impl Args {
    /// Whether the process of `--until-pid` has ended.
    fn is_over(&self) -> bool {
        self.until_pid.is_some_and(|pid| !afterbay_server::is_alive(pid))
    }

    /// Removes the launcher's directory after the engine's end. Before it, Afterbay can be started again.
    fn remove_scratch(&self) {
        if let Some(dir) = self.scratch.as_ref().filter(|_| self.is_over()) {
            // Nobody needs the directory any more, so an error does not matter.
            let _removed = std::fs::remove_dir_all(dir);
        }
    }
}

/// Runs this command line without `--keep` as the keeper's worker.
fn keep(args: Args) -> anyhow::Result<ExitCode> {
    let format = args.log_format.map_or(log::Format::Auto, Format::chosen);
    log::init(args.log.as_deref().unwrap_or("info"), format)?;
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != "--keep").collect();
    let args = Rc::new(args);
    let engine = args.scratch.clone().map(|directory| {
        let args = args.clone();
        Engine { has_ended: Box::new(move || args.is_over()), directory }
    });
    let code = afterbay_supervision::keeper::run(WORKER.as_ref(), Worker { arguments, engine })?;
    // The last worker may have been killed.
    args.remove_scratch();
    Ok(ExitCode::from(code))
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.keep {
        return keep(args);
    }
    let options = HostOptions { compiles_in_parallel: args.dev, ..host_options() };
    let (host, tokenizers) = (Host::new(options)?, Tokenizers::default());
    let has_rendezvous = args.rendezvous.is_some();
    let checked = afterbay_server::load_and_check(
        &args.config,
        has_rendezvous,
        &host,
        &tokenizers,
        args.dev,
        Busy::new,
    );
    let config = match checked {
        Ok((config, _)) => config,
        Err(problems) => {
            problems.iter().for_each(screen::complain);
            return Ok(ExitCode::from(EXIT_USAGE));
        }
    };
    let format = match (args.log_format, config.log.format) {
        (Some(format), _) => format.chosen(),
        (None, LogFormat::Json) => log::Format::Json,
        (None, LogFormat::Auto) => log::Format::Auto,
    };
    log::init(args.log.as_deref().unwrap_or(&config.log.filter), format)?;
    // A panic becomes a line of the log.
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name");
        tracing::error!(target: "afterbay", "panic in thread {name:?}: {}", panic.to_string().replace('\n', " "));
    }));
    let projects = match args.dev.then(|| dev::projects(&config)).transpose() {
        Ok(projects) => projects,
        Err(error) => {
            print_error(&format!("{}: {error}", args.config.display()));
            return Ok(ExitCode::from(EXIT_USAGE));
        }
    };
    let log_format = if format == log::Format::Json { "json" } else { "auto" };
    let filter = args.log.as_deref().unwrap_or(&config.log.filter);
    let follow = [
        ("--config".as_ref(), args.config.as_os_str()),
        ("--log".as_ref(), filter.as_ref()),
        ("--log-format".as_ref(), log_format.as_ref()),
    ];
    let follow =
        follow.into_iter().flat_map(|(flag, value): (&OsStr, &OsStr)| [flag.to_owned(), value.to_owned()]);
    // Compiler output is no JSON, so it is captured and logged.
    let output = if format == log::Format::Json { Output::Kept } else { Output::Shown };
    let options = Options {
        config_file: args.config.clone(),
        rendezvous: args.rendezvous.clone(),
        drain_timeout: args.drain_timeout,
        until_pid: args.until_pid,
        awaits_builds: args.dev,
        announce: args.announce.clone(),
        take_over: args.take_over,
        follow: follow.collect(),
    };
    let server = Server::open(config, host.clone(), tokenizers, options)?;
    if let Some(projects) = projects {
        dev::watch(projects, host, server.events().clone(), output)?;
    }
    let outcome = server.run();
    // A process that has handed over leaves the directory to the next one.
    if !matches!(outcome, Ok(DrainOutcome::HandedOver)) {
        args.remove_scratch();
    }
    Ok(match outcome? {
        DrainOutcome::HandedOver | DrainOutcome::Complete => ExitCode::SUCCESS,
        DrainOutcome::Incomplete => ExitCode::FAILURE,
        DrainOutcome::Failed => ExitCode::from(EXIT_FAILED),
    })
}
