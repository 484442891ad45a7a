//! The `afterbay journal` commands: list, show, neighbours, steps, follow, export, trajectories, timed traces, verify, seal, replay,
//! erase and pack; and `afterbay usage`.
//! They work while `afterbay run` writes.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod ended_requests;
mod erase;
mod export;
mod ls;
mod neighbours;
mod not_found;
mod pack;
mod mirror;
mod pack_file;
mod place;
mod replay;
mod seal;
mod show;
mod source;
mod steps;
mod tail;
mod timed_trace;
mod trajectories;
mod usage;
mod verify;

#[cfg(test)]
mod tests;

pub use source::{OpenSource, Source};
pub use usage::{UsageArgs, usage};

use afterbay_config::Config;
use serde_json::Value;
use std::path::Path;
use std::process::ExitCode;

/// A function that POSTs JSON to the admin address of the Afterbay that has a journal open: the journal's directory, the
/// configuration if it is known, path and body. Returns whether the call succeeded, and the answer.
pub type CallServer = fn(&Path, Option<&Config>, &str, &Value) -> anyhow::Result<(bool, Value)>;

/// A function that reads and checks a configuration file. The problems are complete sentences.
pub type LoadConfig = fn(&Path) -> Result<Config, Vec<String>>;

/// List, show, verify, seal, export, replay, erase and pack the requests in a journal, and find who shared their batches
///
/// Works while `afterbay run` runs. --config or --from names the journal; else it is the default journal of `afterbay sglang`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay journal ls --state live\n  afterbay journal show 5b0c1f --config afterbay.toml\n  afterbay journal verify --from /var/lib/afterbay --json"
)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Ls(ls::Args),
    Show(show::Args),
    Neighbours(neighbours::Args),
    Steps(steps::Args),
    Tail(tail::Args),
    Trajectories(trajectories::Args),
    TimedTrace(timed_trace::Args),
    Export(export::Args),
    Verify(verify::Args),
    Seal(seal::Args),
    Replay(replay::Args),
    Erase(erase::Args),
    Pack(pack::Args),
}

/// Carries out an `afterbay journal` command; `load` reads the configuration that --config names, and `call` calls the Afterbay
/// that has the journal open.
///
/// # Errors
/// The journal or the configuration cannot be read, or names no such stream or request.
pub fn run(args: Args, load: LoadConfig, call: CallServer) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Ls(args) => ls::run(args, load),
        Command::Show(args) => show::run(args, load),
        Command::Neighbours(args) => neighbours::run(args, load),
        Command::Steps(args) => steps::run(&args, load),
        Command::Tail(args) => tail::run(args, load),
        Command::Trajectories(args) => trajectories::run(args, load),
        Command::TimedTrace(args) => timed_trace::run(&args, load),
        Command::Export(args) => export::run(args, load),
        Command::Verify(args) => verify::run(args, load),
        Command::Seal(args) => seal::run(&args, load),
        Command::Replay(args) => replay::run(args, load),
        Command::Erase(args) => erase::run(args, load, call),
        Command::Pack(args) => pack::run(&args, load),
    }
}
