//! Text for a terminal: tables, colour, wrapped lines, figures and a spinner. On a pipe the text is plain.
//!
//! Commands print through this crate only, which escapes the control characters of clients, plugins and models. `tidy` checks it.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod top;
mod escape;
mod figures;
mod output;

pub use escape::escaped;
pub use figures::{bytes, count, seconds};
pub use output::{Output, complain, say, say_json, say_wrapped};

use escape::{length, printed, with_colour, without_colour};
use std::io::{IsTerminal, Write};

/// Whether standard output is a terminal, and `NO_COLOR` is not set.
pub fn is_coloured() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

fn paint(text: String, code: &str) -> String {
    if is_coloured() { with_colour(&text, code) } else { text }
}

/// Colours a warning, if `warn`.
pub fn warn_if(text: String, warn: bool) -> String {
    if warn { paint(text, "33") } else { text }
}

/// Colours a problem.
pub fn bad(text: String) -> String {
    paint(text, "31")
}

/// Colours a success.
pub fn good(text: String) -> String {
    paint(text, "32")
}

/// Colours a highlighted word.
pub fn marked(text: String) -> String {
    paint(text, "36")
}

/// Makes less important text fainter.
pub fn faint(text: String) -> String {
    paint(text, "2")
}

/// Colours the state of a request.
pub fn state(state: &str) -> String {
    match state {
        "live" => paint(state.to_owned(), "36"),
        "abandoned" => paint(state.to_owned(), "33"),
        _ => state.to_owned(),
    }
}

/// The blanks between two columns.
const GAP: usize = 2;
/// The width that is assumed if the terminal does not report one.
const WIDTH: usize = 80;

/// A table, fitted to the terminal without a break inside a word. If the columns do not fit, the table has fewer of them, or each
/// row becomes a few lines of `HEAD value`. On a pipe every cell is complete, and tabs separate columns.
pub struct Table {
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
    /// The heads of narrower tables, in the order in which they are tried.
    narrower: Vec<Vec<&'static str>>,
}

impl Table {
    /// A table without rows.
    pub fn new(heads: &[&str]) -> Table {
        Table {
            heads: heads.iter().map(|head| (*head).to_owned()).collect(),
            rows: Vec::new(),
            narrower: Vec::new(),
        }
    }

    /// On a terminal on which the table and the narrower ones before do not fit, only these columns are shown.
    pub fn narrower(&mut self, heads: &[&'static str]) {
        self.narrower.push(heads.to_vec());
    }

    /// Adds a row, with a cell for each head.
    pub fn row(&mut self, row: Vec<String>) {
        self.rows.push(row.iter().map(|cell| escaped(cell)).collect());
    }

    /// Prints the table on standard output.
    ///
    /// # Errors
    /// Standard output takes no more.
    pub fn print(&self) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        if !out.is_terminal() {
            writeln!(out, "{}", self.heads.join("\t"))?;
            return self.rows.iter().try_for_each(|row| writeln!(out, "{}", row.join("\t")));
        }
        write!(out, "{}", printed(&self.fitted(width())))
    }

    /// The table as text of this width.
    fn fitted(&self, width: usize) -> String {
        // A narrower table is better than one whose cells take several lines.
        let mut narrower = self.narrower.iter().map(|heads| self.of_columns(heads));
        if !self.is_whole(width)
            && let Some(table) = narrower.find(|table| table.is_whole(width))
        {
            return table.fitted(width);
        }
        let Some(widths) = self.widths(width) else {
            let mut narrower = self.narrower.iter().map(|heads| self.of_columns(heads));
            return match narrower.find(|table| table.widths(width).is_some()) {
                Some(table) => table.fitted(width),
                None => self.rows.iter().map(|row| self.in_lines(row, width)).collect(),
            };
        };
        let heads: Vec<String> = self.heads.iter().map(|head| paint(head.clone(), "1")).collect();
        std::iter::once(&heads).chain(&self.rows).map(|row| in_columns(row, &widths)).collect()
    }

    /// Whether every cell fits into one line.
    fn is_whole(&self, width: usize) -> bool {
        let columns = self.heads.len();
        let whole = (0..columns).map(|at| self.whole(at)).sum::<usize>();
        whole + GAP * columns.saturating_sub(1) <= width
    }

    fn cells(&self, at: usize) -> impl Iterator<Item = &String> {
        self.rows.iter().filter_map(move |row| row.get(at)).chain(self.heads.get(at))
    }

    /// The length of the longest cell of a column.
    fn whole(&self, at: usize) -> usize {
        self.cells(at).map(|cell| length(cell)).max().unwrap_or(0)
    }

    fn of_columns(&self, heads: &[&'static str]) -> Table {
        let at: Vec<usize> = (0..self.heads.len()).filter(|&at| heads.contains(&&*self.heads[at])).collect();
        let cells = |row: &Vec<String>| at.iter().filter_map(|&at| row.get(at).cloned()).collect();
        Table { heads: cells(&self.heads), rows: self.rows.iter().map(cells).collect(), narrower: Vec::new() }
    }

    /// The width of each column, so that no word is broken; `None` if there is no room. Columns that need little more than their
    /// longest word get their room first.
    fn widths(&self, width: usize) -> Option<Vec<usize>> {
        let mut widths = Vec::new();
        let mut wanted = Vec::new();
        for at in 0..self.heads.len() {
            let words = self.cells(at).flat_map(|cell| cell.split(' '));
            let least = words.map(length).max().unwrap_or(0);
            widths.push(least);
            wanted.push((self.whole(at) - least, at));
        }
        let least = widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
        let mut left = width.checked_sub(least)?;
        wanted.sort_unstable();
        for (more, at) in wanted {
            widths[at] += more.min(left);
            left -= more.min(left);
        }
        Some(widths)
    }

    /// A row as lines: its first cell, and below it the other cells, each behind its head.
    fn in_lines(&self, row: &[String], width: usize) -> String {
        let mut cells = self.heads.iter().zip(row).filter(|(_, cell)| !cell.is_empty());
        let mut out = cells.next().map_or_else(String::new, |(_, first)| format!("{first}\n"));
        let mut at = 0;
        for (head, cell) in cells {
            let wide = length(head) + 1 + length(cell);
            if at == 0 || at + GAP + wide > width {
                out += if at == 0 { "  " } else { "\n  " };
                at = 2;
            } else {
                out += "  ";
                at += GAP;
            }
            out += &format!("{} ", faint(head.clone()));
            at += length(head) + 1;
            let (code, text) = without_colour(cell);
            for (number, word) in text.split(' ').enumerate() {
                let long = length(word);
                if number > 0 && at + 1 + long > width {
                    out += "\n    ";
                    at = 4;
                } else if number > 0 {
                    out.push(' ');
                    at += 1;
                }
                out += &code.map_or_else(|| word.to_owned(), |code| paint(word.to_owned(), code));
                at += long;
            }
        }
        if at > 0 { out + "\n" } else { out }
    }
}

/// Clears the terminal on standard output. Nothing happens on a pipe.
pub fn clear() {
    if std::io::stdout().is_terminal() {
        print!("\x1b[H\x1b[2J\x1b[3J");
    }
}

/// The terminal's width in characters.
pub fn width() -> usize {
    usable(comfy_table::Table::new().width())
}

/// A terminal without a size, as `script` and some containers make it, reports 0.
fn usable(reported: Option<u16>) -> usize {
    reported.filter(|width| *width > 0).map_or(WIDTH, usize::from)
}

/// Breaks a text between words into lines of the terminal's width; all lines but the first are indented. On a pipe the text stays
/// as it is.
pub fn wrapped(text: &str, indent: usize) -> String {
    if !std::io::stdout().is_terminal() {
        return text.to_owned();
    }
    let lines: Vec<String> = text.split('\n').map(|line| wrapped_to(line, indent, width())).collect();
    lines.join("\n")
}

fn wrapped_to(text: &str, indent: usize, width: usize) -> String {
    let (mut out, mut at) = (String::new(), indent);
    for (number, word) in text.split(' ').enumerate() {
        let long = length(word);
        if number > 0 && at + 1 + long > width {
            out += &format!("\n{:indent$}", "");
            at = indent;
        } else if number > 0 {
            out.push(' ');
            at += 1;
        }
        out += word;
        at += long;
    }
    out
}

/// A spinner on standard error for work that takes long, on a terminal only. It disappears when this is dropped.
pub struct Busy(indicatif::ProgressBar);

impl Busy {
    /// Shows `text` beside a spinner.
    pub fn new(text: String) -> Busy {
        let bar = indicatif::ProgressBar::new_spinner().with_message(escaped(&text));
        bar.enable_steady_tick(std::time::Duration::from_millis(100));
        Busy(bar)
    }

    /// Replaces the text.
    pub fn say(&self, text: String) {
        self.0.set_message(escaped(&text));
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// A row as columns; a cell may take several lines.
fn in_columns(row: &[String], widths: &[usize]) -> String {
    let cells: Vec<(Option<&str>, Vec<String>)> = row
        .iter()
        .zip(widths)
        .map(|(cell, width)| {
            let (code, text) = without_colour(cell);
            (code, wrapped_to(text, 0, *width).lines().map(str::to_owned).collect())
        })
        .collect();
    let high = cells.iter().map(|(_, lines)| lines.len()).max().unwrap_or(0).max(1);
    let mut out = String::new();
    for line in 0..high {
        let mut blanks = 0;
        for ((code, lines), width) in cells.iter().zip(widths) {
            let text = lines.get(line).map_or("", String::as_str);
            if !text.is_empty() {
                out += &" ".repeat(blanks);
                out += &code.map_or_else(|| text.to_owned(), |code| paint(text.to_owned(), code));
                blanks = 0;
            }
            blanks += width - length(text).min(*width) + GAP;
        }
        out.push('\n');
    }
    out
}

/// The command line or the configuration is wrong (`EX_USAGE`).
pub const EXIT_USAGE: u8 = 64;
/// The exit code of a command that SIGPIPE ended.
pub const EXIT_UNREAD: u8 = 128 + 13;

/// Whether the reader of the output has gone, as `head` does when it has read enough.
pub fn is_unread(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::BrokenPipe
}

/// Ends the process quietly when a print fails because nobody reads the output.
pub fn end_where_nobody_reads() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload().downcast_ref::<String>().map_or("", |text| text);
        if text.starts_with("failed printing to std") && text.contains("Broken pipe") {
            std::process::exit(EXIT_UNREAD.into());
        }
        hook(panic);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[&[&str]]) -> Table {
        let mut table = Table::new(rows[0]);
        rows[1..].iter().for_each(|row| table.row(row.iter().map(|cell| (*cell).to_owned()).collect()));
        table
    }

    #[test]
    fn a_terminal_that_reports_no_width_has_80_characters() {
        assert_eq!([None, Some(0), Some(120)].map(usable), [80, 80, 120]);
    }

    /// Every word of the table is whole, and no line is wider.
    fn fits(table: &Table, width: usize) -> String {
        let fitted = table.fitted(width);
        assert!(fitted.lines().all(|line| line.chars().count() <= width), "{width}:\n{fitted}");
        let words: Vec<&str> = fitted.split_whitespace().collect();
        for word in table.rows.iter().flatten().flat_map(|cell| cell.split_whitespace()) {
            assert!(words.contains(&word), "{width}: {word:?} is not in\n{fitted}");
        }
        fitted
    }

    #[test]
    fn a_cell_with_control_characters_and_tabs_is_escaped() {
        let mut table = table(&[&["RID", "STATE"]]);
        table.row(vec!["a\x1b[2J\tb\nc".to_owned(), "live".to_owned()]);
        assert_eq!(table.rows, [["a\\u{1b}[2J\\tb\\nc", "live"]]);
    }

    #[test]
    fn a_table_that_fits_is_columns() {
        let table = table(&[&["RID", "STATE"], &["a", "live"], &["bb", "finished"]]);
        assert_eq!(fits(&table, 80), "RID  STATE\na    live\nbb   finished\n");
    }

    #[test]
    fn a_table_that_does_not_fit_has_the_columns_of_the_first_narrower_table_that_does() {
        let mut table =
            table(&[&["RID", "STATE", "ROWS", "LAST"], &["aaaaaaaaaa", "finished", "17", "14:05:03.250"]]);
        table.narrower(&["RID", "LAST"]);
        table.narrower(&["RID", "STATE"]);
        assert!(table.fitted(40).contains("ROWS"));
        assert_eq!(table.fitted(24), "RID         LAST\naaaaaaaaaa  14:05:03.250\n");
        assert_eq!(table.fitted(20), "RID         STATE\naaaaaaaaaa  finished\n");
        assert!(table.fitted(12).starts_with("aaaaaaaaaa\n  STATE"));
        let mut dated = self::table(&[&["RID", "ROWS", "LAST"], &["aaaaaa", "17", "2026-11-25 14:05:03"]]);
        dated.narrower(&["RID", "LAST"]);
        assert_eq!(
            dated.fitted(30),
            "RID     LAST\naaaaaa  2026-11-25 14:05:03\n",
            "no cell takes two lines"
        );
    }

    #[test]
    fn a_cell_goes_on_below_its_beginning_and_no_line_ends_with_blanks() {
        let table = table(&[&["rows a batch", "of which the floor", "verdicts"], &["1", "10071", ""]]);
        let expected = "rows a batch  of which the      verdicts\n              floor\n1             10071\n";
        assert_eq!(fits(&table, 40), expected);
    }

    #[test]
    fn a_table_that_fits_when_cells_are_broken_between_words_is_columns() {
        let long = "sent as it came; finish: stop, by a plugin";
        let table = table(&[&["WHEN", "WHAT WAS DONE"], &["+0.020 s", long], &["+0.040 s", "sent"]]);
        let fitted = fits(&table, 30);
        assert!(fitted.starts_with("WHEN"), "{fitted}");
    }

    #[test]
    fn a_row_that_does_not_fit_as_columns_is_lines_of_heads_and_values() {
        let digest = "9f86d081884c7d659a2feaa0c55ad015";
        let table = table(&[
            &["STREAM", "PLUGIN", "DIGEST", "STATE", "VERDICTS", "LAST RELOAD"],
            &["decode-0", "redact", digest, "live", "drop 3, finish 1", "-"],
            &["decode-1", "", digest, "quarantined", "-", "refused 3 s ago"],
        ]);
        let expected = format!(
            "decode-0\n  PLUGIN redact\n  DIGEST {digest}\n  STATE live  VERDICTS drop 3, finish 1\n  LAST RELOAD -\n\
             decode-1\n  DIGEST {digest}\n  STATE quarantined  VERDICTS -\n  LAST RELOAD refused 3 s ago\n"
        );
        assert_eq!(fits(&table, 48), expected);
        (41..120).for_each(|width| drop(fits(&table, width)));
    }

    #[test]
    fn a_text_is_broken_between_words_and_continues_with_an_indent() {
        assert_eq!(wrapped_to("wasi:io (error, poll): linked", 4, 20), "wasi:io (error,\n    poll): linked");
    }
}
