//! `afterbay reload`: asks a running Afterbay to read its configuration again, over its admin address.

use crate::commands::asking::Asks;
use serde_json::{Value, json};
use std::process::ExitCode;

/// Read the configuration of a running Afterbay again
///
/// As SIGHUP does, and a change of the file by itself: what the file says now is checked, compiled and started off the path, and
/// taken in between two batches. The whole of it or nothing: exits 1 where it is refused, with every reason, and all goes on
/// as before.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  afterbay check --config afterbay.toml && afterbay reload")]
pub(crate) struct Args {
    #[command(flatten)]
    asks: Asks,
}

pub(crate) fn run(Args { asks }: Args) -> anyhow::Result<ExitCode> {
    let (is_done, said) = asks.post_slow("/v1/reload", &json!({}))?;
    let texts = |name: &str| -> Vec<String> {
        let texts = said[name].as_array().into_iter().flatten().filter_map(Value::as_str);
        texts.map(str::to_owned).collect()
    };
    if asks.json {
        println!("{said}");
    } else if is_done {
        let changed = texts("changed");
        if changed.is_empty() {
            println!("nothing has changed");
        }
        changed.iter().for_each(|changed| println!("{changed}"));
    } else {
        let refused = texts("refused");
        if refused.is_empty() {
            eprintln!("afterbay: {}", said["error"].as_str().unwrap_or_default());
        }
        refused.iter().for_each(|why| eprintln!("{why}"));
    }
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
