//! A reader with a credit page, in the test's own process.

use std::time::Duration;

use afterbay_sockets::credit::{CreditWriter, ReaderKind};
use afterbay_sockets::{Endpoint, PullOptions};

use super::{Loop, describe};

/// Receives messages, and counts the finished ones on the page of the directory.
pub struct CountingReader {
    pub this: Loop,
    pub page: CreditWriter,
    /// The sequence numbers of the finished messages.
    pub finished: Vec<u64>,
}

impl CountingReader {
    /// Opens the page, then binds, as the connector does.
    pub fn start(dir: &tempfile::TempDir, endpoint: &Endpoint) -> CountingReader {
        let page = CreditWriter::open(&dir.path().join("tokenizer"), ReaderKind::Tokenizer).unwrap();
        CountingReader { this: Loop::bind(endpoint, PullOptions::default()), page, finished: Vec::new() }
    }

    /// Runs both ends until `done`.
    pub fn until(&mut self, this: &mut Loop, what: &str, mut done: impl FnMut(&mut Loop) -> bool) {
        this.until(what, |this| {
            self.this.turn(Duration::ZERO);
            done(this)
        });
    }

    /// Finishes the oldest received messages, at most this many.
    pub fn finish(&mut self, at_most: usize) {
        let count = at_most.min(self.this.received.len());
        for message in self.this.received.drain(..count) {
            self.finished.push(describe(&message.bytes).1);
            self.page.finished().unwrap();
        }
    }
}
