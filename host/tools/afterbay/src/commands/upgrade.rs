//! `afterbay upgrade`: starts a new binary in the place of a running Afterbay.

use crate::commands::admin_call::AdminCall;
use afterbay_terminal as screen;
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::process::ExitCode;

/// Start a new binary in the place of a running Afterbay, without closing a connection
///
/// The running Afterbay starts the new binary with its own arguments. The new process checks the configuration, compiles the
/// plugins, and asks the running one to hand over: its streams stop between two frames and continue in the new process,
/// on the same connections. Exits 0 once the new process runs. If anything fails before that, the running Afterbay goes on as if
/// nothing had happened, and the command prints why and exits 1. Needs the Unix socket of the admin address.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  afterbay upgrade --config afterbay.toml\n  afterbay upgrade --config afterbay.toml --binary /opt/afterbay-0.2.0/afterbay"
)]
pub(crate) struct Args {
    /// The new binary [default: the file that the running Afterbay was started from]
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    #[command(flatten)]
    call: AdminCall,
}

pub(crate) fn run(Args { binary, call }: Args) -> anyhow::Result<ExitCode> {
    let mut body = Map::new();
    if let Some(binary) = binary {
        // The running Afterbay may have another working directory.
        let binary = std::path::absolute(binary)?;
        body.insert("binary".to_owned(), binary.display().to_string().into());
    }
    let (is_done, said) = call.post_slow("/v1/upgrade", &Value::Object(body))?;
    if call.json {
        screen::say_json(&said);
    } else if is_done {
        let text = |name: &str| said[name].as_str().unwrap_or("?").to_owned();
        let number = |name: &str| said[name].as_u64().unwrap_or_default();
        screen::say(format!(
            "afterbay {} (process {}) has handed over to afterbay {} (process {}); the streams stood still for {} ms",
            text("from"),
            number("from_pid"),
            text("to"),
            number("to_pid"),
            number("stood_still_ms"),
        ));
    } else {
        screen::complain(format!(
            "afterbay: not upgraded, the running process goes on: {}",
            said["error"].as_str().unwrap_or_default()
        ));
    }
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
