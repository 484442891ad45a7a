//! `afterbay reload`: makes a running Afterbay reload its configuration.

use crate::commands::admin_call::AdminCall;
use afterbay_terminal as screen;
use serde_json::{Value, json};
use std::process::ExitCode;

/// Reload the configuration of a running Afterbay
///
/// SIGHUP and a change of the file do the same. The new configuration is checked and its plugins compiled beside the running
/// streams, then it takes effect between two batches. If it is refused, nothing changes, and the command prints every reason and
/// exits 1. A component that faults on the rows of live requests is refused alone, and the command exits 1.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  afterbay check --config afterbay.toml && afterbay reload")]
pub(crate) struct Args {
    #[command(flatten)]
    call: AdminCall,
}

pub(crate) fn run(Args { call }: Args) -> anyhow::Result<ExitCode> {
    let (is_done, said) = call.post_slow("/v1/reload", &json!({}))?;
    let texts = |name: &str| -> Vec<String> {
        let texts = said[name].as_array().into_iter().flatten().filter_map(Value::as_str);
        texts.map(str::to_owned).collect()
    };
    let refused = texts("refused");
    if call.json {
        screen::say_json(&said);
    } else if is_done {
        let changed = texts("changed");
        if changed.is_empty() {
            screen::say("nothing has changed");
        }
        changed.iter().for_each(screen::say);
    } else if refused.is_empty() {
        screen::complain(format!("afterbay: {}", said["error"].as_str().unwrap_or_default()));
    }
    if !call.json {
        refused.iter().for_each(screen::complain);
    }
    Ok(if is_done && refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
