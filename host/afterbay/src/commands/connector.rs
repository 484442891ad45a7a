//! `afterbay connector DIR`: writes the connector for an engine that something else starts.

use super::sglang::CONNECTOR;
use anyhow::Context;
use std::path::PathBuf;
use std::process::ExitCode;

/// Write the SGLang connector into a directory
///
/// For an engine that `afterbay sglang` does not start, and in whose Python nothing can be installed: put DIR in front of the
/// engine's PYTHONPATH. DIR is created; files of the same names are replaced. Without the connector's variables
/// (AFTERBAY_INGRESS and others) the connector changes nothing.
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
    for (file, text) in CONNECTOR {
        let path = args.dir.join(file);
        let dir = path.parent().unwrap_or(&args.dir);
        std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}
