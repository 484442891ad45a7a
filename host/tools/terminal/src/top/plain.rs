//! The status as text without a screen: `--once` and `--json`.

use crate::{self as screen, Table};

use crate::top::admin::Admin;
use crate::top::grid::Grid;
use crate::top::poll::{self, EVERY};
use crate::top::run::TopError;
use crate::top::sections;
use crate::top::status::Status;
use crate::top::text::long;
use crate::top::theme::Tone;

/// Prints one table for the process, its streams, sinks, plugins and copies.
///
/// # Errors
/// The admin address does not answer, or standard output takes no more.
pub fn print_once(admin: &impl Admin) -> Result<(), TopError> {
    let status = poll::status(admin).map_err(TopError::Admin)?;
    print_head(&status);
    for grid in [
        sections::streams(&status),
        sections::sinks(&status),
        sections::plugins(&status),
        sections::copies(&status),
    ] {
        if !grid.rows.is_empty() {
            screen::say("");
            print(&grid)?;
        }
    }
    Ok(())
}

fn print_head(status: &Status) {
    let state =
        if status.ready { screen::good("ready".to_owned()) } else { screen::bad("not ready".to_owned()) };
    screen::say(format!(
        "afterbay {}  pid {}  up {}  {state}",
        crate::top::status::version(status),
        status.pid,
        long(status.uptime_seconds)
    ));
    for condition in &status.conditions {
        let severity = if condition.severity == "not_ready" { "not ready" } else { "degraded" };
        let text = if condition.text.is_empty() { &condition.condition } else { &condition.text };
        screen::say(screen::warn_if(format!("{severity}: {text}"), true));
    }
}

fn print(grid: &Grid) -> std::io::Result<()> {
    let heads: Vec<&str> = grid.columns.iter().map(|column| column.head).collect();
    let mut table = Table::new(&heads);
    for row in &grid.rows {
        let cells = row.iter().map(|cell| {
            let text = cell.text.clone();
            match cell.tone {
                Tone::Good => screen::good(text),
                Tone::Warn => screen::warn_if(text, true),
                Tone::Bad => screen::bad(text),
                Tone::Marked => screen::marked(text),
                Tone::Plain | Tone::Faint | Tone::Strong => text,
            }
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
