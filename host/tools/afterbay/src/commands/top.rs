//! `afterbay top`: the status of a running Afterbay in the terminal.

use crate::commands::abort::percent_encoded;
use crate::commands::admin_call::AdminCall;
use afterbay_terminal as screen;
use afterbay_terminal::top::{Admin, End, TopError};
use serde_json::Value;
use std::io::IsTerminal;
use std::process::ExitCode;

/// Watch a running Afterbay in the terminal
///
/// Shows streams, requests, sinks and plugins, and asks once a second. Keys: 1 to 4 views, / filter, enter opens a request,
/// ? help, q quit. After a hand-over or a restart it goes on with the new process. If standard output is no terminal, it prints
/// one table, as --once does. NO_COLOR turns colours off.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  afterbay top\n  afterbay top --admin unix:/var/lib/afterbay/ADMIN.sock\n  afterbay top --once\n  afterbay top --json | jq .streams[0].rates\n  ssh -t gpu-7 afterbay top"
)]
pub(crate) struct Args {
    /// Print one table and end
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    call: AdminCall,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { once, call } = args;
    if call.json {
        printed(afterbay_terminal::top::print_json(&call, once))?;
    } else if once || !std::io::stdout().is_terminal() {
        printed(afterbay_terminal::top::print_once(&call))?;
    } else {
        let address = call.address_text()?;
        if let End::Signal(signal) = afterbay_terminal::top::run(call, &address, screen::is_coloured())? {
            return Ok(ExitCode::from(128_u8.saturating_add(signal.unsigned_abs() as u8)));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// An error of standard output stays one, so that the command ends quietly where nobody reads.
fn printed(result: Result<(), TopError>) -> anyhow::Result<()> {
    result.map_err(|error| match error {
        TopError::Terminal(error) => error.into(),
        other => other.into(),
    })
}

impl Admin for AdminCall {
    fn get(&self, path: &[&str], query: &[(&str, String)]) -> Result<(bool, Value), String> {
        let mut url = "/v1".to_owned();
        for part in path {
            url += &format!("/{}", percent_encoded(part));
        }
        for (at, (name, value)) in query.iter().enumerate() {
            url += &format!("{}{name}={}", if at == 0 { '?' } else { '&' }, percent_encoded(value));
        }
        AdminCall::get(self, &url).map_err(|error| crate::message(&error))
    }
}
