//! `afterbay journal …`: what was kept, by request and by token. Reads while `afterbay run` writes.

mod export;
mod legs;
mod ls;
mod place;
mod replay;
mod show;
mod tail;
mod verify;

pub(crate) use place::default_dir;
pub(crate) use show::whole_rid;

use std::process::ExitCode;

/// Look requests and tokens up in the journal, check it, replay it
///
/// Works beside a running `afterbay run`. Names the journal by --config, by --dir, or takes the one that
/// `afterbay sglang` keeps by default.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay journal ls --state live\n  afterbay journal show 5b0c1f --config afterbay.toml\n  afterbay journal verify --dir /var/lib/afterbay --json"
)]
pub(crate) struct Args {
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

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Ls(args) => ls::run(args),
        Command::Show(args) => show::run(args),
        Command::Tail(args) => tail::run(args),
        Command::Export(args) => export::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Replay(args) => replay::run(args),
    }
}
