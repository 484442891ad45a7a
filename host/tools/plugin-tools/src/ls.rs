//! `afterbay plugin ls`: lists the plugins in this binary.

use afterbay_bundled::Bundled;
use afterbay_config::{Engine, Grant, Limits, PluginDefaults};
use afterbay_terminal::{self as screen, Table};
use serde_json::{Value, json};
use std::process::ExitCode;

/// List the plugins in this binary
///
/// Prints a line for each plugin that a configuration can name as component = "builtin:NAME". --json also has
/// the grants and limits that the plugin has where the configuration gives none. A stream of an engine that the plugin
/// does not serve refuses the plugin.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay plugin ls\n  afterbay plugin check builtin:delta-to-cumulative    # more about one"
)]
pub(crate) struct Args {
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let listed = afterbay_bundled::all().iter().filter(|plugin| plugin.is_listed);
    if args.json {
        for plugin in listed {
            screen::say_json(&json(plugin)?);
        }
    } else {
        let mut table = Table::new(&["PLUGIN", "ENGINES", "PURPOSE"]);
        for plugin in listed {
            let engines = engines(&PluginDefaults::parse(plugin.defaults)?).join(", ");
            table.row(vec![plugin.name.to_owned(), engines, plugin.description.to_owned()]);
        }
        table.print()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The engines that the plugin serves, as in `[[stream]]`.
fn engines(defaults: &PluginDefaults) -> Vec<&'static str> {
    let served = Engine::WORDS.iter().filter(|(_, engine)| defaults.engines.contains(engine));
    served.map(|(word, _)| *word).collect()
}

fn json(plugin: &Bundled) -> anyhow::Result<Value> {
    let defaults = PluginDefaults::parse(plugin.defaults)?;
    let engines = engines(&defaults);
    let PluginDefaults { grant, limits: Limits { memory_bytes, deadline, hold }, .. } = defaults;
    Ok(json!({
        "name": plugin.name,
        "description": plugin.description,
        "engines": engines,
        "grant": grant.into_iter().map(Grant::word).collect::<Vec<_>>(),
        "limits": {
            "memory_bytes": memory_bytes,
            "deadline_us": u64::try_from(deadline.as_micros()).unwrap_or(u64::MAX),
            "hold_ms": u64::try_from(hold.as_millis()).unwrap_or(u64::MAX),
        },
    }))
}
