//! The binary `afterbay-follow`: follows a journal. `afterbay run` starts it, and `afterbay follow` becomes it.
//!
//! Exit codes: 0 success; 1 the command failed; 64 the configuration or the command line is wrong; 75 another process follows the
//! journal.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use afterbay_config::{Replicate, nats_servers};
use afterbay_events::log::{self, FlushAtEnd};
use afterbay_follow::replicate::{Filter, Mirror, MirrorError, mirror};
use afterbay_follow::{FollowError, LogOptions, trajectories};
use afterbay_journal_view::follower::CopyOfJournals;
use clap::{Args, Parser, Subcommand, ValueEnum};

/// Exit code: the configuration or the command line is wrong.
const EXIT_USAGE: u8 = 64;
/// Exit code: another process follows the journal.
const EXIT_LOCKED: u8 = 75;

/// Follows the journal of Afterbay.
#[derive(Parser)]
#[command(name = "afterbay-follow", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Makes the archive, the replica, the records of usage and the traces that the configuration names.
    Follow {
        #[command(flatten)]
        of_run: OfRun,
        /// Ends when standard input ends, and not at SIGTERM: another process has started this one.
        #[arg(long, hide = true)]
        child: bool,
    },
    /// Serves clients from the copy of a fleet's journals in NATS.
    Clients {
        #[command(flatten)]
        of_run: OfRun,
    },
    /// Makes a directory of the journals in NATS, for the `afterbay journal` commands.
    #[command(hide = true)]
    Copy {
        /// The URLs of the servers, separated by commas.
        #[arg(long)]
        from: String,
        /// Only this stream of the copy.
        #[arg(long)]
        stream: Option<String>,
        /// Only segments since this time.
        #[arg(long)]
        since_unix_ns: Option<u64>,
        /// The directory, which is empty.
        dir: PathBuf,
    },
    /// Writes the trajectories on standard input, one a line as JSON, into a Parquet file.
    #[command(hide = true)]
    Trajectories {
        /// The file.
        file: PathBuf,
    },
}

/// The options of `afterbay run` that other processes have, too.
#[derive(Args)]
struct OfRun {
    /// The configuration file of `afterbay run`.
    #[arg(long, value_name = "FILE", env = "AFTERBAY_CONFIG")]
    config: PathBuf,
    /// Levels of the log by target.
    #[arg(long, value_name = "FILTER", env = "AFTERBAY_LOG")]
    log: Option<String>,
    /// The format of log lines.
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<Format>,
}

impl OfRun {
    fn log(&self) -> LogOptions {
        LogOptions { filter: self.log.clone(), is_json: self.log_format.map(|format| format == Format::Json) }
    }
}

/// The format of log lines.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Format {
    Auto,
    Json,
}

fn main() -> ExitCode {
    let _flush = FlushAtEnd;
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are errors to clap, and are no mistakes.
            let mistake = error.use_stderr();
            // There is no other place to print to.
            let _printed = error.print();
            return if mistake { ExitCode::from(EXIT_USAGE) } else { ExitCode::SUCCESS };
        }
    };
    let ended = match cli.command {
        Command::Follow { of_run, child } => afterbay_follow::run(&of_run.config, &of_run.log(), child),
        Command::Clients { of_run } => afterbay_follow::serve(&of_run.config, &of_run.log()),
        Command::Copy { from, stream, since_unix_ns, dir } => {
            let of_stream = stream.as_deref().map_or_else(Filter::default, Filter::of_copied_stream);
            copy(&from, Filter { since_unix_ns, ..of_stream }, &dir);
            return ExitCode::SUCCESS;
        }
        Command::Trajectories { file } => match trajectories::write(std::io::stdin().lock(), &file) {
            Ok(_) => return ExitCode::SUCCESS,
            Err(error) => {
                log::print_line(&format!("afterbay-follow: {}: {error}", file.display()));
                return ExitCode::FAILURE;
            }
        },
    };
    let Err(error) = ended else { return ExitCode::SUCCESS };
    log::print_line(&format!("afterbay-follow: {error}"));
    match error {
        FollowError::Config(_) | FollowError::NoTable(_) => ExitCode::from(EXIT_USAGE),
        FollowError::Locked { .. } => ExitCode::from(EXIT_LOCKED),
        _ => ExitCode::FAILURE,
    }
}

/// Makes the copy, and follows for each time on standard input. Every answer is a line of JSON.
fn copy(servers: &str, filter: Filter, dir: &Path) {
    let made = nats_servers(servers).and_then(|nats| {
        let from = Replicate { nats, credentials: None };
        mirror(&from, filter, dir).map_err(|error| error.to_string())
    });
    let mut mirror = match made {
        Ok(mirror) => mirror,
        Err(error) => return answer(&CopyOfJournals { error: Some(error), ..Default::default() }),
    };
    let about = |mirror: &Mirror| CopyOfJournals {
        holes: mirror.holes().into_iter().map(|hole| (hole.stream.clone(), hole.to_string())).collect(),
        notes: mirror.notes(),
        ..CopyOfJournals::default()
    };
    answer(&about(&mirror));
    for time in std::io::stdin().lines().map_while(Result::ok) {
        let (outage, error) = match mirror.follow(Duration::from_millis(time.parse().unwrap_or(0))) {
            Ok(()) => (None, None),
            Err(MirrorError::Nats { why, .. }) => (Some(why), None),
            Err(error) => (None, Some(error.to_string())),
        };
        answer(&CopyOfJournals { outage, error, ..about(&mirror) });
    }
}

/// Prints an answer. Whoever does not read it any more has ended.
fn answer(copy: &CopyOfJournals) {
    let mut line = serde_json::to_vec(copy).unwrap_or_default();
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(&line).and_then(|()| out.flush());
}
