//! `afterbay plugins`: shows the plugins of a running Afterbay, and reinstates or promotes one.

use crate::commands::abort::percent_encoded;
use crate::commands::admin_call::AdminCall;
use afterbay_terminal as screen;
use serde_json::{Value, json};
use std::process::ExitCode;

/// Show the plugins of a running Afterbay
///
/// Prints a line for each plugin: version, digest, state, cost, verdicts, faults, and the last reload. Exits 1 if a plugin is down
/// or quarantined, or says that its stream is not ready.
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  afterbay plugins\n  afterbay plugins --json --admin 127.0.0.1:9465\n  afterbay plugins reinstate redact\n  afterbay plugins promote redact-2"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    call: AdminCall,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Take a plugin out of quarantine: a fresh instance goes back into the chain
    #[command(after_help = "Example:\n  afterbay plugins reinstate redact --stream decode-0")]
    Reinstate {
        /// The plugin, by its name in the configuration
        name: String,
        /// Only of this stream; else of every stream that has one of that name
        #[arg(long, value_name = "NAME")]
        stream: Option<String>,
        #[command(flatten)]
        call: AdminCall,
    },
    /// Make a shadow live: it replaces the plugin that it is a shadow of. A restart makes it a shadow again unless you change the
    /// configuration, too
    #[command(after_help = "Example:\n  afterbay plugins promote redact-2 --stream decode-0")]
    Promote {
        /// The shadow, by its name in the configuration
        name: String,
        /// Only in this stream; else in every stream that has one of that name
        #[arg(long, value_name = "NAME")]
        stream: Option<String>,
        #[command(flatten)]
        call: AdminCall,
    },
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        None => show(&args.call),
        Some(Command::Reinstate { name, stream, call }) => {
            change(&name, "reinstate", "reinstated", stream.as_deref(), &call)
        }
        Some(Command::Promote { name, stream, call }) => {
            let code = change(&name, "promote", "promoted", stream.as_deref(), &call)?;
            if code == ExitCode::SUCCESS && !call.json {
                screen::say(format!(
                    "{name}: the next start makes it a shadow again, unless you remove its mode from the configuration"
                ));
            }
            Ok(code)
        }
    }
}

fn change(
    name: &str,
    what: &str,
    done: &str,
    stream: Option<&str>,
    call: &AdminCall,
) -> anyhow::Result<ExitCode> {
    let path = format!("/v1/plugins/{}/{what}", percent_encoded(name));
    let (is_done, said) = call.post(&path, &json!({"stream": stream}))?;
    if call.json {
        screen::say_json(&said);
    } else if is_done {
        let streams = said["streams"].as_array().into_iter().flatten().filter_map(Value::as_str);
        streams.for_each(|stream| screen::say(format!("{name}: {done}, stream {stream}")));
    } else {
        screen::complain(format!("afterbay: {}", said["error"].as_str().unwrap_or_default()));
    }
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show(call: &AdminCall) -> anyhow::Result<ExitCode> {
    let (is_done, said) = call.get("/v1/plugins")?;
    let plugins = said["plugins"].as_array().map_or(&[][..], Vec::as_slice);
    if call.json {
        screen::say_json(&said);
    } else if is_done {
        screen::top::print_plugins(plugins)?;
        for plugin in plugins {
            let name = text(plugin, "plugin");
            if let Some(why) = plugin["why"].as_str() {
                screen::say_wrapped(format!("{name}: {}", screen::bad(why.to_owned())), name.len() + 2);
            }
            if let Some(why) = plugin["not_ready"].as_str() {
                let why = screen::bad(format!("the stream is not ready: {why}"));
                screen::say_wrapped(format!("{name}: {why}"), name.len() + 2);
            }
            if let Some(digest) = plugin["next_digest"].as_str() {
                let next =
                    format!("{digest:.12} replays the earlier rows of live requests and then takes over");
                screen::say_wrapped(format!("{name}: {next}"), name.len() + 2);
            }
            if let Some(why) = plugin["last_reload"]["refused"].as_str() {
                let why = screen::warn_if(format!("last reload refused: {why}"), true);
                screen::say_wrapped(format!("{name}: {why}"), name.len() + 2);
            }
        }
    } else {
        screen::complain(format!("afterbay: {}", said["error"].as_str().unwrap_or_default()));
    }
    let all_well =
        plugins.iter().all(|plugin| is_well(&text(plugin, "state")) && plugin["not_ready"].is_null());
    Ok(if is_done && all_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether the plugin sees every batch.
fn is_well(state: &str) -> bool {
    matches!(state, "live" | "shadow")
}

fn text(plugin: &Value, name: &str) -> String {
    plugin[name].as_str().unwrap_or_default().to_owned()
}
