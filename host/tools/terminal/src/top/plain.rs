//! The status as text without a screen: `--once` and `--json`.

use crate::top::fields::{Clock, Tone, long, safe};
use crate::top::grid::{self, Column, Grid};
use crate::top::poll::{self, Admin, EVERY};
use crate::top::run::TopError;
use crate::{self as screen, Table};
use serde_json::Value;

/// Prints one table for the process, its streams, sinks, plugins and copies.
///
/// # Errors
/// The admin address does not answer, or standard output takes no more.
pub fn print_once(admin: &impl Admin) -> Result<(), TopError> {
    let status = poll::status(admin).map_err(TopError::Admin)?;
    let state = match status["ready"] == true {
        true => screen::good("ready".to_owned()),
        false => screen::bad("not ready".to_owned()),
    };
    let (pid, up) = (&status["pid"], long(status["uptime_seconds"].as_f64().unwrap_or_default()));
    screen::say(format!("afterbay {}  pid {pid}  up {up}  {state}", version(&status)));
    for condition in list(&status, "conditions") {
        screen::say(screen::warn_if(sentence(condition), true));
    }
    for (columns, key) in [
        (grid::STREAMS, "streams"),
        (grid::SINKS, "sinks"),
        (grid::PLUGINS, "plugins"),
        (grid::COPIES, "copies"),
    ] {
        if !list(&status, key).is_empty() {
            screen::say("");
            print(columns, list(&status, key))?;
        }
    }
    Ok(())
}

/// Prints a line for each plugin of an answer of the admin address.
///
/// # Errors
/// Standard output takes no more.
pub fn print_plugins(plugins: &[Value]) -> std::io::Result<()> {
    print(grid::PLUGINS, plugins)
}

/// The items of a list of the status.
pub(crate) fn list<'v>(status: &'v Value, key: &str) -> &'v [Value] {
    status[key].as_array().map_or(&[], Vec::as_slice)
}

/// The version of a process, with its commit if it is known.
pub(crate) fn version(status: &Value) -> String {
    let version = safe(status["version"].as_str().unwrap_or_default());
    status["commit"].as_str().map_or(version.clone(), |commit| format!("{version} ({})", safe(commit)))
}

/// A condition as a sentence.
pub(crate) fn sentence(condition: &Value) -> String {
    let severity = if condition["severity"] == "not_ready" { "not ready" } else { "degraded" };
    format!("{severity}: {}", safe(condition["text"].as_str().unwrap_or_default()))
}

fn print(columns: &'static [Column], objects: &[Value]) -> std::io::Result<()> {
    let heads: Vec<&str> = columns.iter().map(|(head, ..)| *head).collect();
    let mut table = Table::new(&heads);
    for row in Grid::new(columns, objects, Clock::local()).rows {
        let cells = row.into_iter().map(|cell| match cell.tone {
            Tone::Good => screen::good(cell.text),
            Tone::Warn => screen::warn_if(cell.text, true),
            Tone::Bad => screen::bad(cell.text),
            Tone::Marked => screen::marked(cell.text),
            Tone::Plain | Tone::Faint | Tone::Strong => cell.text,
        });
        table.row(cells.collect());
    }
    table.print()
}

/// Prints the status as JSON, one line a second; one line if `once`. After the first line, a missing answer is reported on
/// standard error and asked for again.
///
/// # Errors
/// The first answer is missing, or standard output takes no more.
pub fn print_json(admin: &impl Admin, once: bool) -> Result<(), TopError> {
    let mut is_first = true;
    loop {
        match poll::ask(admin, &["status"], &[]) {
            Ok(status) => screen::say_json(&status),
            Err(why) if is_first => return Err(TopError::Admin(why)),
            Err(why) => screen::complain(format!("afterbay: {why}")),
        }
        if once {
            return Ok(());
        }
        is_first = false;
        std::thread::sleep(EVERY);
    }
}
