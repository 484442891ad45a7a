//! What a person sees: tables and colour on a terminal, plain lines on a pipe.

use comfy_table::{Attribute, Cell, Color, ContentArrangement, presets};
use std::io::{IsTerminal, Write};

/// Standard output is a terminal, and colour is not unwanted.
pub(crate) fn is_coloured() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

fn paint(text: String, code: &str) -> String {
    if is_coloured() { format!("\x1b[{code}m{text}\x1b[0m") } else { text }
}

/// Something to look at.
pub(crate) fn warn_if(text: String, warn: bool) -> String {
    if warn { paint(text, "33") } else { text }
}

/// Something that is wrong.
pub(crate) fn bad(text: String) -> String {
    paint(text, "31")
}

/// Something that is as it should be.
pub(crate) fn good(text: String) -> String {
    paint(text, "32")
}

/// Something that was done.
pub(crate) fn marked(text: String) -> String {
    paint(text, "36")
}

/// Something of less weight.
pub(crate) fn faint(text: String) -> String {
    paint(text, "2")
}

/// A state of a request, in its colour.
pub(crate) fn state(state: &str) -> String {
    match state {
        "live" => paint(state.to_owned(), "36"),
        "abandoned" => paint(state.to_owned(), "33"),
        _ => state.to_owned(),
    }
}

/// Columns, fitted to the terminal; on a pipe every cell is whole and columns are divided by tabs.
pub(crate) struct Table {
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(heads: &[&str]) -> Table {
        Table { heads: heads.iter().map(|head| (*head).to_owned()).collect(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    pub(crate) fn print(&self) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        if !out.is_terminal() {
            writeln!(out, "{}", self.heads.join("\t"))?;
            return self.rows.iter().try_for_each(|row| writeln!(out, "{}", row.join("\t")));
        }
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
        table.set_header(self.heads.iter().map(|head| cell(&paint(head.clone(), "1"))));
        for row in &self.rows {
            table.add_row(row.iter().map(|text| cell(text)));
        }
        writeln!(out, "{}", table.trim_fmt())
    }
}

/// A text that is painted, as a cell of that colour: in the text, the codes would be wrapped with it.
fn cell(text: &str) -> Cell {
    let painted = text.strip_prefix("\x1b[").and_then(|text| text.strip_suffix("\x1b[0m"));
    let Some((code, inner)) =
        painted.and_then(|text| text.split_once('m')).filter(|(_, inner)| !inner.contains('\x1b'))
    else {
        return Cell::new(text);
    };
    let cell = Cell::new(inner);
    match code {
        "1" => cell.add_attribute(Attribute::Bold),
        "2" => cell.add_attribute(Attribute::Dim),
        "31" => cell.fg(Color::DarkRed),
        "32" => cell.fg(Color::DarkGreen),
        "33" => cell.fg(Color::DarkYellow),
        "36" => cell.fg(Color::DarkCyan),
        _ => cell,
    }
}

/// As of a command that SIGPIPE has ended.
pub(crate) const EXIT_UNREAD: u8 = 128 + 13;

/// `| head` has read enough.
pub(crate) fn is_unread(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::BrokenPipe
}

/// What is printed to nobody is no panic but the end, as of any other command.
pub(crate) fn end_where_nobody_reads() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload().downcast_ref::<String>().map_or("", |text| text);
        if text.starts_with("failed printing to std") && text.contains("Broken pipe") {
            std::process::exit(EXIT_UNREAD.into());
        }
        hook(panic);
    }));
}
