//! `afterbay connector DIR`: writes the connectors for an engine that something else starts.

use super::launcher::connectors::CONNECTORS;
use anyhow::Context;
use std::path::PathBuf;
use std::process::ExitCode;

/// Write the connectors into a directory
///
/// For an engine that no launcher starts, and in whose Python nothing can be installed: put DIR in front of the
/// engine's PYTHONPATH. DIR is created; files of the same names are replaced. Without a connector's variables
/// (AFTERBAY_INGRESS and others) it changes nothing.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay connector /opt/afterbay\n  PYTHONPATH=/opt/afterbay AFTERBAY_INGRESS=ipc:///run/afterbay/in python -m sglang.launch_server …"
)]
pub(crate) struct Args {
    /// The directory for PYTHONPATH
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    for (file, text) in CONNECTORS {
        let path = args.dir.join(file);
        let dir = path.parent().unwrap_or(&args.dir);
        std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}
