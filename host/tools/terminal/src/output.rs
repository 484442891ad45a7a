//! Standard output and standard error. Each line is escaped.

use crate::escape::{escaped, escaped_json, printed};
use std::fmt::Display;
use std::io::{BufWriter, IsTerminal, StdoutLock, Write};

/// Prints one line on standard output.
pub fn say(line: impl AsRef<str>) {
    println!("{}", printed(&escaped(line.as_ref())));
}

/// Prints a text on standard output, broken between words into lines of the terminal's width; all lines but the first are
/// indented.
pub fn say_wrapped(text: impl AsRef<str>, indent: usize) {
    println!("{}", printed(&crate::wrapped(&escaped(text.as_ref()), indent)));
}

/// Prints a value of JSON on standard output.
pub fn say_json(json: &impl Display) {
    println!("{}", escaped_json(&json.to_string()));
}

/// Prints a text on standard error, which may have several lines.
pub fn complain(text: impl AsRef<str>) {
    text.as_ref().split('\n').for_each(|line| eprintln!("{}", printed(&escaped(line))));
}

/// Standard output for many lines. Its owner flushes it.
pub struct Output(BufWriter<StdoutLock<'static>>);

impl Output {
    /// Locks standard output.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it locks")]
    pub fn new() -> Output {
        Output(BufWriter::new(std::io::stdout().lock()))
    }

    /// Writes one line.
    ///
    /// # Errors
    /// Standard output takes no more.
    pub fn line(&mut self, line: &str) -> std::io::Result<()> {
        writeln!(self.0, "{}", printed(&escaped(line)))
    }

    /// Writes a text that may have several lines.
    ///
    /// # Errors
    /// Standard output takes no more.
    pub fn lines(&mut self, text: &str) -> std::io::Result<()> {
        text.split('\n').try_for_each(|line| self.line(line))
    }

    /// Writes a text that is to be read as it is: on a terminal each line is escaped, on a pipe nothing is.
    ///
    /// # Errors
    /// Standard output takes no more.
    pub fn text(&mut self, text: &str) -> std::io::Result<()> {
        match std::io::stdout().is_terminal() {
            true => self.lines(text),
            false => writeln!(self.0, "{text}"),
        }
    }

    /// Writes a value of JSON.
    ///
    /// # Errors
    /// Standard output takes no more.
    pub fn json(&mut self, json: &impl Display) -> std::io::Result<()> {
        writeln!(self.0, "{}", escaped_json(&json.to_string()))
    }

    /// Writes everything that waits.
    ///
    /// # Errors
    /// Standard output takes no more.
    pub fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}
