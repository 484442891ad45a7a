//! Content of a request's rows, read from the stored frames.

use afterbay_journal::reader::{JournalRow, RequestHistory, StreamCoverage, StreamReader};
use afterbay_wire::{DecodedFrame, Layouts};
use std::cell::OnceCell;

/// The received content of a row.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) ids: Vec<i64>,
    /// Only rows behind a detokenizer have a text.
    pub(crate) text: Option<String>,
}

/// The reason why the journal does not give a row's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// The frame was forwarded without being stored.
    NotStored,
    /// Retention removed the segment.
    Removed,
    /// The frame is damaged, or its segment is missing.
    Unreadable,
    /// The frame cannot be decoded with the given layout.
    NotDecoded,
}

impl Absent {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Absent::NotStored => "not stored",
            Absent::Removed => "removed",
            Absent::Unreadable => "cannot be read",
            Absent::NotDecoded => "not decoded",
        }
    }

    /// The reason in a sentence about several rows.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Absent::NotStored => "the frames were forwarded without being stored (on_error = \"forward\")",
            Absent::Removed => "retention removed the segments",
            Absent::Unreadable => "the journal is damaged (`afterbay journal verify` names the damage)",
            Absent::NotDecoded => "the frames do not fit --layout",
        }
    }
}

/// A stream whose rows are shown.
pub(crate) struct ContentReader<'a> {
    stream: &'a StreamReader,
    layouts: &'a Layouts,
    /// Read for the first row without content.
    coverage: OnceCell<StreamCoverage>,
}

impl<'a> ContentReader<'a> {
    pub(crate) fn new(stream: &'a StreamReader, layouts: &'a Layouts) -> ContentReader<'a> {
        ContentReader { stream, layouts, coverage: OnceCell::new() }
    }

    pub(crate) fn name(&self) -> &str {
        self.stream.name()
    }

    /// The received content of each row.
    pub(crate) fn contents(&self, life: &RequestHistory) -> Vec<Result<Content, Absent>> {
        life.rows.iter().map(|row| self.content(row)).collect()
    }

    fn content(&self, row: &JournalRow) -> Result<Content, Absent> {
        let frame = row.position.as_ref().and_then(|position| self.stream.frame(position).ok());
        let frame = frame.ok_or_else(|| self.absent(row))?;
        if frame.is_release_marker() {
            // The marker itself has no content; the held rows that it releases have.
            return Ok(Content { ids: Vec::new(), text: None });
        }
        let DecodedFrame::Batch(batch) = afterbay_wire::decode(frame.bytes.into(), self.layouts) else {
            return Err(Absent::NotDecoded);
        };
        let mut ids = Vec::new();
        batch.row_ids(row.row, &mut ids);
        Ok(Content { ids, text: batch.text(row.row).map(str::to_owned) })
    }

    fn absent(&self, row: &JournalRow) -> Absent {
        // A stream that cannot be read has no coverage: nothing was removed, so the frame is unreadable.
        let coverage = self.coverage.get_or_init(|| self.stream.coverage().unwrap_or_default());
        match row.frame {
            frame if coverage.not_stored.contains(frame) => Absent::NotStored,
            frame if frame < coverage.first_frame => Absent::Removed,
            _ => Absent::Unreadable,
        }
    }

    /// The reason why rows of a request are in no record.
    pub(crate) fn rows_absent(&self, life: &RequestHistory) -> Absent {
        let coverage = self.coverage.get_or_init(|| self.stream.coverage().unwrap_or_default());
        match life.request.first_frame < coverage.first_frame {
            true => Absent::Removed,
            false => Absent::Unreadable,
        }
    }
}
