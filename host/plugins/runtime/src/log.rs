//! The log of a plugin: bounded lines that stay with the instance until the stream takes them after the call.
//!
//! The stream then finds the request's rid in its own table without a lock, and a slow log never runs inside a guest's
//! deadline.

use std::time::{Duration, Instant};

use crate::columns::RequestId;
use crate::limits::{LOG_LINE_BYTES_MAX, LOG_LINES_PER_SECOND_MAX, LOG_LINES_WAITING_MAX};

pub use crate::bindings::afterbay::plugin::log::Level;

/// A line that a plugin logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// The level that the plugin gave.
    pub level: Level,
    /// The request that the line is about.
    pub request: Option<RequestId>,
    /// The text, at most [`LOG_LINE_BYTES_MAX`] bytes.
    pub message: String,
}

/// The lines of one instance, and the number of lines in this second.
#[derive(Debug)]
pub(crate) struct LogBook {
    waiting: Vec<LogLine>,
    second_began: Instant,
    lines_this_second: u32,
    left_out: u64,
    last_error: Option<String>,
    /// The end of the guest's standard output and standard error in this call.
    printed: Vec<u8>,
}

impl LogBook {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            waiting: Vec::new(),
            second_began: now,
            lines_this_second: 0,
            left_out: 0,
            last_error: None,
            printed: Vec::new(),
        }
    }

    /// Adds a line. A line above the rate, or with too many waiting, is counted and left out.
    pub(crate) fn write(
        &mut self,
        now: Instant,
        level: Level,
        request: Option<RequestId>,
        mut message: String,
    ) {
        message.truncate(message.floor_char_boundary(LOG_LINE_BYTES_MAX));
        if level == Level::Error {
            self.last_error = Some(message.clone());
        }
        self.turn_second(now);
        if self.lines_this_second >= LOG_LINES_PER_SECOND_MAX || self.waiting.len() >= LOG_LINES_WAITING_MAX {
            self.left_out += 1;
            return;
        }
        self.lines_this_second += 1;
        self.waiting.push(LogLine { level, request, message });
    }

    /// Takes the lines since the last call, oldest first. The number of lines left out is a line of its own, once their
    /// second is over.
    pub(crate) fn drain(&mut self, now: Instant) -> Vec<LogLine> {
        let mut lines = std::mem::take(&mut self.waiting);
        self.turn_second(now);
        lines.append(&mut self.waiting);
        lines
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.left_out == 0
    }

    /// Adds text of standard output or standard error. Keeps the last [`LOG_LINE_BYTES_MAX`] bytes of a call: the last line
    /// of an exception names it.
    pub(crate) fn print(&mut self, bytes: &[u8]) {
        self.printed.extend_from_slice(&bytes[bytes.len().saturating_sub(LOG_LINE_BYTES_MAX)..]);
        // Twice the bound, so that a guest that writes byte by byte does not move the text for each byte.
        if self.printed.len() > 2 * LOG_LINE_BYTES_MAX {
            self.printed.drain(..self.printed.len() - LOG_LINE_BYTES_MAX);
        }
    }

    /// Begins a call: earlier text does not explain its end.
    pub(crate) fn begin_call(&mut self) {
        self.last_error = None;
        self.printed.clear();
    }

    /// Ends a call: the printed text becomes one line of the log.
    pub(crate) fn end_call(&mut self) {
        if let Some(printed) = self.printed() {
            self.write(Instant::now(), Level::Warn, None, printed);
        }
    }

    /// The last error that the guest logged in this call.
    pub(crate) fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// The end of the guest's printed text in this call.
    pub(crate) fn printed(&self) -> Option<String> {
        let end = &self.printed[self.printed.len().saturating_sub(LOG_LINE_BYTES_MAX)..];
        let text = String::from_utf8_lossy(end);
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    fn turn_second(&mut self, now: Instant) {
        if now.saturating_duration_since(self.second_began) < Duration::from_secs(1) {
            return;
        }
        self.second_began = now;
        self.lines_this_second = 0;
        if self.left_out > 0 && self.waiting.len() < LOG_LINES_WAITING_MAX {
            let message =
                format!("{} lines left out: at most {LOG_LINES_PER_SECOND_MAX} a second", self.left_out);
            self.left_out = 0;
            self.waiting.push(LogLine { level: Level::Warn, request: None, message });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(book: &mut LogBook, now: Instant, times: u32) {
        for _ in 0..times {
            book.write(now, Level::Info, Some(3), "line".into());
        }
    }

    #[test]
    fn a_hundred_lines_per_second_are_stored_and_the_rest_is_counted() {
        let start = Instant::now();
        let mut book = LogBook::new(start);
        write(&mut book, start, LOG_LINES_PER_SECOND_MAX + 7);
        assert_eq!(book.drain(start).len(), LOG_LINES_PER_SECOND_MAX as usize);
        assert!(!book.is_empty(), "the count of the lines left out is still to be logged");
        let later = start + Duration::from_secs(1);
        let lines = book.drain(later);
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].message, "7 lines left out: at most 100 a second");
        write(&mut book, later, 1);
        assert_eq!(book.drain(later).len(), 1);
        assert!(book.is_empty());
    }

    #[test]
    fn waiting_lines_are_bounded() {
        let start = Instant::now();
        let mut book = LogBook::new(start);
        for second in 0..10 {
            write(&mut book, start + Duration::from_secs(second), LOG_LINES_PER_SECOND_MAX);
        }
        let end = start + Duration::from_secs(10);
        let lines = book.drain(end);
        assert!(lines.len() <= LOG_LINES_WAITING_MAX + 1, "{} lines", lines.len());
        assert!(lines.last().unwrap().message.starts_with("800 lines left out"), "{:?}", lines.last());
    }

    #[test]
    fn the_end_of_printed_text_is_one_line_and_explains_only_its_call() {
        let mut book = LogBook::new(Instant::now());
        book.begin_call();
        for _ in 0..LOG_LINE_BYTES_MAX {
            book.print(b"some text\n");
        }
        book.print("ValueError: the lake is dry\n".as_bytes());
        book.end_call();
        let said = book.printed().unwrap();
        assert!(said.len() <= LOG_LINE_BYTES_MAX && said.ends_with("ValueError: the lake is dry"), "{said}");
        assert!(book.printed.len() <= 2 * LOG_LINE_BYTES_MAX, "{} bytes are kept", book.printed.len());
        let lines = book.drain(Instant::now());
        assert_eq!((lines.len(), &lines[0].message), (1, &said));
        book.begin_call();
        book.end_call();
        assert_eq!((book.printed(), book.is_empty()), (None, true));
    }

    #[test]
    fn calls_that_print_have_the_rate_of_lines() {
        let mut book = LogBook::new(Instant::now());
        for _ in 0..10 * LOG_LINES_PER_SECOND_MAX {
            book.begin_call();
            book.print(b"noise");
            book.end_call();
        }
        assert!(book.drain(Instant::now()).len() <= LOG_LINES_WAITING_MAX);
    }

    #[test]
    fn a_long_line_is_cut_at_a_character() {
        let start = Instant::now();
        let mut book = LogBook::new(start);
        book.write(start, Level::Info, None, "é".repeat(LOG_LINE_BYTES_MAX));
        let mut line = "a".to_owned();
        line.push_str(&"é".repeat(LOG_LINE_BYTES_MAX));
        book.write(start, Level::Info, None, line);
        let lengths: Vec<usize> = book.drain(start).iter().map(|line| line.message.len()).collect();
        assert_eq!(lengths, [LOG_LINE_BYTES_MAX, LOG_LINE_BYTES_MAX - 1]);
    }
}
