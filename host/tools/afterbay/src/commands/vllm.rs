//! `afterbay vllm -- COMMAND`: runs vLLM with Afterbay on its engines' output, without any setup.

use super::launcher::{self, Launcher, Options, Rundir, quoted};
use afterbay_config::Config;
use afterbay_terminal::EXIT_USAGE;
use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

/// Run vLLM with Afterbay between its engines and its API servers
///
/// Starts Afterbay, connects vLLM's EngineCores to it, and becomes the command. Nothing has to be installed into vLLM's environment.
/// `afterbay journal ls` and `afterbay journal show` show the requests. Each API server has a stream. The configuration of --config
/// has one stream with `engine = "vllm"` for each API server.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay vllm -- vllm serve Qwen/Qwen3-8B\n  afterbay vllm --plugin builtin:stop-loop -- vllm serve Qwen/Qwen3-8B --api-server-count 2"
)]
pub(crate) struct Args {
    #[command(flatten)]
    options: Options,
    /// The number of API servers [default: as the command says, by --api-server-count or --data-parallel-size]
    #[arg(long, value_name = "N", conflicts_with = "config", value_parser = clap::value_parser!(u16).range(1..=64))]
    api_servers: Option<u16>,
    /// The usual vLLM command
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Some(launcher) = Launcher::new(&args.options, |rundir| streams(&args, rundir))? else {
        return Ok(ExitCode::from(EXIT_USAGE));
    };
    let ingress: Vec<String> =
        launcher.config.streams.iter().map(|stream| stream.listen.to_string()).collect();
    let ingress = ("AFTERBAY_INGRESS", ingress.join(","));
    let abort = ("AFTERBAY_ABORT", aborts(&launcher.config, &launcher.rundir).join(","));
    // vLLM loads no plugin if its filter is empty.
    let filter = std::env::var("VLLM_PLUGINS").ok();
    let filter = filter.map(|filter| ("VLLM_PLUGINS", launcher::with_connector(&filter)));
    launcher.run("rendezvous-{client}.json", [ingress, abort].into_iter().chain(filter), &args.command)
}

/// The endpoints where the engines take aborts for each API server.
fn aborts(config: &Config, rundir: &Rundir) -> Vec<String> {
    let streams = config.streams.iter().enumerate();
    let abort = streams.map(|(client, stream)| {
        let own = || rundir.ipc(&format!("abort-{client}"));
        stream.abort.as_ref().map_or_else(own, ToString::to_string)
    });
    abort.collect()
}

/// The streams of a run without --config.
fn streams(args: &Args, rundir: &Rundir) -> anyhow::Result<String> {
    let is_rust = std::env::var("VLLM_USE_RUST_FRONTEND").is_ok_and(|value| value == "1");
    let count = args.api_servers.map_or_else(|| api_servers(&args.command, is_rust), usize::from);
    let mut text = String::new();
    for client in 0..count {
        let name = if count == 1 { "vllm".to_owned() } else { format!("vllm-{client}") };
        let listen = quoted(&rundir.ipc(&format!("ingress-{client}")));
        text += &format!("\n[[stream]]\nname = \"{name}\"\nengine = \"vllm\"\nlisten = {listen}\n");
        text += "\n[[stream.sink]]\nname = \"api-server\"\n";
        text += &launcher::tenants();
        text += &args.options.plugins()?;
    }
    Ok(text)
}

/// The number of API servers that vLLM will start for this command. The connector refuses vLLM's start if there are others.
fn api_servers(command: &[OsString], is_rust: bool) -> usize {
    let count = |names: &[&str]| value(command, names)?.parse().ok().filter(|count| *count > 0);
    let is_external = ["--data-parallel-rank", "-dpn", "--data-parallel-external-lb", "-dpe"];
    if is_rust || command.iter().any(|word| is_external.iter().any(|name| word == name)) {
        return 1;
    }
    // vLLM starts as many API servers as engines, if nothing else is said.
    count(&["--api-server-count", "-asc"]).or_else(|| count(&["--data-parallel-size", "-dp"])).unwrap_or(1)
}

/// The value of an option: `NAME VALUE` or `NAME=VALUE`. vLLM takes `_` for `-` in a name.
fn value<'a>(command: &'a [OsString], names: &[&str]) -> Option<&'a str> {
    let words: Vec<&str> = command.iter().filter_map(|word| OsStr::to_str(word)).collect();
    let is_named = |name: &str| names.contains(&name.replace('_', "-").as_str());
    let mut found = words.iter().enumerate().filter_map(|(at, word)| match word.split_once('=') {
        Some((name, value)) if is_named(name) => Some(value),
        None if is_named(word) => words.get(at + 1).copied(),
        _ => None,
    });
    // The last one counts.
    found.next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_api_servers_is_the_one_that_vllm_chooses() {
        let count = |line: &str, is_rust| {
            let command: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            api_servers(&command, is_rust)
        };
        for (line, expected) in [
            ("vllm serve m", 1),
            ("vllm serve m --api-server-count 3", 3),
            ("vllm serve m --api_server_count=3", 3),
            ("vllm serve m -asc 3 --data-parallel-size 2", 3),
            ("vllm serve m --data-parallel-size 2", 2),
            ("vllm serve m -dp=2", 2),
            ("vllm serve m -dp 2 --data-parallel-rank 1", 1),
            ("vllm serve m --api-server-count", 1),
        ] {
            assert_eq!(count(line, false), expected, "{line}");
            assert_eq!(count(line, true), 1, "{line}");
        }
    }
}
