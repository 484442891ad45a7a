//! `afterbay sglang -- COMMAND`: runs SGLang with Afterbay on its scheduler's output, without any setup.

use super::launcher::{self, Launcher, Options, Rundir, quoted};
use afterbay_config::{Component, Stream};
use afterbay_terminal::EXIT_USAGE;
use anyhow::{bail, ensure};
use std::ffi::OsString;
use std::process::ExitCode;

/// The plugin that needs a sink past the detokenizer.
const SKIP: &str = "builtin:skip-text";
/// The plugin that gives each row all ids of its request.
const CUMULATIVE: &str = "builtin:delta-to-cumulative";

/// Run SGLang with Afterbay on its scheduler's output, and on its detokenizer's
///
/// Starts Afterbay, connects SGLang's scheduler and detokenizer to it, and becomes the command. Nothing has to be installed into
/// SGLang's environment. `afterbay journal ls` and `afterbay journal show` show the requests. If SGLang has no detokenizer
/// (--skip-tokenizer-init), or its detokenizer does not load plugins, only the scheduler's output passes Afterbay, and the log
/// says so. With SGLANG_RUST_SERVER=1 (SGLang 0.5.23), its output passes Afterbay before the Rust server. With --tokenizer-worker-num, each tokenizer worker has its own sink. The configuration of --config has one stream, and
/// perhaps one `after` it. A plugin that writes cumulative ids needs --one-leg, which `builtin:delta-to-cumulative` implies.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay sglang -- python -m sglang.launch_server --model-path Qwen/Qwen3-8B\n  afterbay sglang --plugin builtin:delta-to-cumulative -- python -m sglang.launch_server …"
)]
pub(crate) struct Args {
    #[command(flatten)]
    options: Options,
    /// Let only the scheduler's output pass Afterbay, not the detokenizer's
    #[arg(long, conflicts_with = "config")]
    one_leg: bool,
    /// The usual SGLang command
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let rust_server = truthy(std::env::var("SGLANG_RUST_SERVER").ok().as_deref());
    let Some(launcher) = Launcher::new(&args.options, |rundir| streams(&args, rust_server, rundir))? else {
        return Ok(ExitCode::from(EXIT_USAGE));
    };
    if rust_server {
        refuse_for_rust_server(&launcher.config.streams)?;
    }
    start(launcher, "sglang", &args.command)
}

/// Starts Afterbay and becomes the command, with the connector in it. `name` is the launcher's.
pub(super) fn start(launcher: Launcher<'_>, name: &str, command: &[OsString]) -> anyhow::Result<ExitCode> {
    let streams = &launcher.config.streams;
    let (next, first): (Vec<_>, Vec<_>) = streams.iter().partition(|stream| !stream.after.is_empty());
    let [stream] = first[..] else {
        bail!("config has {} streams that are not after another, `afterbay {name}` serves 1", first.len());
    };
    let ingress = Some(("AFTERBAY_INGRESS", stream.listen.to_string()));
    // One stream has one that follows.
    let text_ingress = next.first().map(|stream| ("AFTERBAY_TEXT_INGRESS", stream.listen.to_string()));
    let filter = std::env::var("SGLANG_PLUGINS").ok().filter(|filter| !filter.trim().is_empty());
    let filter = filter.map(|filter| ("SGLANG_PLUGINS", launcher::with_connector(&filter)));
    let abort = stream.abort.as_ref().map_or_else(|| launcher.rundir.ipc("abort"), ToString::to_string);
    let engine = ("AFTERBAY_ENGINE", stream.engine.word().to_owned());
    let variables = [ingress, text_ingress, Some(("AFTERBAY_ABORT", abort)), Some(engine), filter];
    launcher.run("rendezvous.json", variables.into_iter().flatten(), command)
}

/// Whether SGLang takes this value of an environment variable for true.
fn truthy(value: Option<&str>) -> bool {
    value.is_some_and(|value| matches!(value.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "y"))
}

/// SGLang's Rust server has no detokenizer, and appends the ids of each row.
fn refuse_for_rust_server(streams: &[Stream]) -> anyhow::Result<()> {
    for stream in streams {
        ensure!(
            stream.after.is_empty(),
            "stream {:?} is after another, and SGLang's Rust server (SGLANG_RUST_SERVER) has no detokenizer whose output it could read",
            stream.name.as_str()
        );
        for plugin in &stream.plugins {
            let Component::Builtin(name) = &plugin.component else { continue };
            let component = format!("builtin:{name}");
            ensure!(
                component != SKIP && component != CUMULATIVE,
                "{component} does not work with SGLang's Rust server (SGLANG_RUST_SERVER), which has no detokenizer and appends each row's ids"
            );
        }
    }
    Ok(())
}

/// The streams of a run without --config.
fn streams(args: &Args, rust_server: bool, rundir: &Rundir) -> anyhow::Result<String> {
    // The reader of the scheduler's output.
    let skips_tokenizer = args.command.iter().any(|word| word == "--skip-tokenizer-init");
    let reader = match (rust_server, skips_tokenizer) {
        (true, _) => "rust-server",
        (false, true) => "tokenizer",
        (false, false) => "detokenizer",
    };
    let mut text = format!(
        "[[stream]]\nname = \"sglang\"\nlisten = {listen}\n\n[[stream.sink]]\nname = \"{reader}\"\n",
        listen = quoted(&rundir.ipc("ingress")),
    );
    let text_ingress = rundir.ipc("text-ingress");
    if args.options.has_plugin(SKIP) {
        text += "\n[[stream.sink]]\nname = \"ids-only\"\nkind = \"skipped\"\n";
        text += &format!("connect = {}\n", quoted(&text_ingress));
    }
    text += &launcher::tenants();
    text += &args.options.plugins()?;
    let one_leg = args.one_leg || rust_server || args.options.has_plugin(CUMULATIVE);
    ensure!(
        !(one_leg && args.options.has_plugin(SKIP)),
        "{SKIP} needs the second leg, which --one-leg, delta-to-cumulative and SGLANG_RUST_SERVER leave out"
    );
    if !one_leg {
        text += &format!(
            "\n[[stream]]\nname = \"sglang-text\"\nafter = \"sglang\"\nlisten = {listen}\n\n[[stream.sink]]\nname = \"tokenizer\"\n",
            listen = quoted(&text_ingress),
        );
        text += &launcher::tenants();
    }
    Ok(text)
}
