//! `afterbay plugin …`: what the author of a plugin works with. Each command runs a component as `afterbay run` would.

mod check;
mod given;
mod show;

use std::process::ExitCode;

/// Work on a plugin: look at it, run it, test it
///
/// PLUGIN is a component file, `builtin:NAME`, or the directory of a project: then it is the component that the
/// project's last build has left. It runs in the real runtime, within the limits that a configuration would set.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay plugin check stop_on_loop.wasm --settings '{\"repeats\": 4}'\n  afterbay plugin check builtin:delta-to-cumulative --json"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Check(check::Args),
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Check(args) => check::run(args),
    }
}
