//! `afterbay smg -- COMMAND`: runs SGLang behind SMG with Afterbay on its scheduler's output, without any setup.

use super::launcher::{self, Launcher, Options, Rundir, quoted};
use super::sglang;
use afterbay_terminal::EXIT_USAGE;
use std::ffi::OsString;
use std::process::ExitCode;

/// Run SGLang behind SMG with Afterbay between its scheduler and SMG
///
/// For SMG's connection mode `zmq`, in which SMG's plugin sends the scheduler's output to SMG. Starts Afterbay, connects the scheduler to
/// it, and becomes the command. Nothing has to be installed into SGLang's environment. `afterbay journal ls` and `afterbay journal show`
/// show the requests. The configuration of --config has one stream with `engine = "smg"`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay smg -- python -m smg_grpc_servicer.sglang.headless --zmq-handshake-address tcp://127.0.0.1:20000 --model-path Qwen/Qwen3-8B"
)]
pub(crate) struct Args {
    #[command(flatten)]
    options: Options,
    /// The usual command that starts the scheduler
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match Launcher::new(&args.options, |rundir| streams(&args, rundir))? {
        Some(launcher) => sglang::start(launcher, "smg", &args.command),
        None => Ok(ExitCode::from(EXIT_USAGE)),
    }
}

/// The stream of a run without --config.
fn streams(args: &Args, rundir: &Rundir) -> anyhow::Result<String> {
    let listen = quoted(&rundir.ipc("ingress"));
    let mut text = format!("[[stream]]\nname = \"smg\"\nengine = \"smg\"\nlisten = {listen}\n");
    text += "\n[[stream.sink]]\nname = \"smg\"\n";
    text += &launcher::tenants();
    text += &args.options.plugins()?;
    Ok(text)
}
