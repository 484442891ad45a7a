//! The `afterbay plugin` commands, for plugin authors. Each command runs a component in the same runtime as `afterbay run`.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

// Rows that a plugin is shown, and their outcomes.
mod contract_names;
mod row;
mod row_outcome;
mod rows;
mod scenario;
mod show;
mod updates;

// The running plugin.
mod effects;
mod player;
mod plugin_args;
mod saves;
mod synthetic_load;

// One file per command.
mod bench;
mod build;
mod check;
pub mod dev;
mod ls;
mod new;
mod run;
mod step;
mod test;
mod trial;

use afterbay_config::Config;
use afterbay_runtime::Host;
use afterbay_stream::Trial;
use afterbay_terminal::{self as screen, EXIT_USAGE};
use plugin_args::UsageError;
use std::path::Path;
use std::process::ExitCode;

/// List the plugins in this binary; create, build, check, run, test and measure one
///
/// PLUGIN is a component file, `builtin:NAME`, or the directory of a project, which stands for the component of the project's
/// last build. The plugin runs in the real runtime, with the limits that a configuration would set.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay plugin check stop_on_loop.wasm --settings '{\"repeats\": 4}'\n  afterbay plugin check builtin:delta-to-cumulative --json"
)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Ls(ls::Args),
    New(new::Args),
    Build(build::Args),
    Check(check::Args),
    Run(run::Args),
    Test(test::Args),
    Bench(bench::Args),
}

/// Starts the trial of the stream of this name, whose first frame was received at this time, in Unix nanoseconds. Returns sentences about what
/// a running stream has and the trial has not, too.
pub type StartTrial = Box<dyn Fn(&str, u64) -> anyhow::Result<(Trial, Vec<String>)>>;

/// The parts of the server that `afterbay plugin run --config` needs.
pub struct StartTrials {
    /// Reads and checks a configuration file. The problems are complete sentences.
    pub load: fn(&Path) -> Result<Config, Vec<String>>,
    /// Prepares the streams of a configuration, whose plugins are compiled by this host.
    pub prepare: fn(Config, Host) -> anyhow::Result<StartTrial>,
}

/// Carries out an `afterbay plugin` command.
///
/// # Errors
/// The command could not be carried out. A mistake on the command line is no error: it is printed, and the exit code is 64.
pub fn run(args: Args, trials: &StartTrials) -> anyhow::Result<ExitCode> {
    let done = match args.command {
        Command::Ls(args) => ls::run(&args),
        Command::New(args) => new::run(&args),
        Command::Build(args) => build::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Run(args) => run::run(&args, trials),
        Command::Test(args) => test::run(&args),
        Command::Bench(args) => bench::run(&args),
    };
    // The mistake is in the command line or a scenario, not in the plugin.
    match done {
        Err(error) if error.is::<UsageError>() => {
            screen::complain(format!("afterbay: {error:#}"));
            Ok(ExitCode::from(EXIT_USAGE))
        }
        done => done,
    }
}
