//! `afterbay journal …`: what was kept, by request and by token. Reads while `afterbay run` writes.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod export;
mod legs;
mod ls;
mod place;
mod replay;
mod show;
mod tail;
mod verify;

pub use show::whole_rid;

use afterbay_config::Config;
use std::path::Path;
use std::process::ExitCode;

/// Reads and checks a configuration file. The problems are complete sentences.
pub type LoadConfig = fn(&Path) -> Result<Config, Vec<String>>;

/// Look requests and tokens up in the journal, check it, replay it
///
/// Works beside a running `afterbay run`. Names the journal by --config, by --dir, or takes the one that
/// `afterbay sglang` keeps by default.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay journal ls --state live\n  afterbay journal show 5b0c1f --config afterbay.toml\n  afterbay journal verify --dir /var/lib/afterbay --json"
)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Ls(ls::Args),
    Show(show::Args),
    Tail(tail::Args),
    Export(export::Args),
    Verify(verify::Args),
    Replay(replay::Args),
}

/// Carries out an `afterbay journal` command; `load` reads the configuration that --config names.
///
/// # Errors
/// The journal or the configuration cannot be read, or names no such stream or request.
pub fn run(args: Args, load: LoadConfig) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Ls(args) => ls::run(args, load),
        Command::Show(args) => show::run(args, load),
        Command::Tail(args) => tail::run(args, load),
        Command::Export(args) => export::run(args, load),
        Command::Verify(args) => verify::run(args, load),
        Command::Replay(args) => replay::run(args, load),
    }
}
