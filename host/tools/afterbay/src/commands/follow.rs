//! `afterbay follow`: becomes `afterbay-follow`, which lies beside this binary.

use anyhow::Context;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Follow a journal: archive, replica, records of usage and traces
///
/// `afterbay run` starts this process by itself, as a child. As a service of its own, it follows while `afterbay run` is stopped, too;
/// `afterbay run` then starts no child. The work is done by the binary `afterbay-follow`, in the directory of this one.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  afterbay follow --config /etc/afterbay/afterbay.toml")]
pub(crate) struct Args {
    /// The configuration file of `afterbay run`
    #[arg(long, value_name = "FILE", env = "AFTERBAY_CONFIG")]
    config: PathBuf,
}

pub(crate) fn run(Args { config }: Args) -> anyhow::Result<ExitCode> {
    become_follower("follow", &config)
}

/// Becomes a command of `afterbay-follow`. Returns only if that fails.
pub(crate) fn become_follower(command: &str, config: &Path) -> anyhow::Result<ExitCode> {
    let binary = afterbay_journal_view::follower::follow_binary().map_err(anyhow::Error::msg)?;
    let error = Command::new(&binary).arg(command).arg("--config").arg(config).exec();
    Err(error).with_context(|| binary.display().to_string())
}
