//! The credit page: the reader's count of finished frames, in a file of 64 bytes, usually in /dev/shm.
//!
//! ```text
//!  0  8  "ABCREDIT"
//!  8  4  version = 1
//! 12  4  pid of the reader
//! 16  8  generation        1 for the reader that made the file, one more for each that opens it again
//! 24  8  count             frames finished by this generation
//! 32  8  last generation   the one before (0: none)
//! 40  8  last count        its final count
//! 48  8  unix nanoseconds of the last change of `count` (0: never)
//! 56  8  who reads         1: a detokenizer, 2: a tokenizer whose parsers of tool calls get single tokens
//! ```
//! All numbers are little-endian. Only the reader of the stream writes the page (the Python connector, or
//! [`CreditWriter`]). A writer that opens an existing page writes in this order: last generation, last count, count =
//! 0, time = 0, who reads, pid, generation. So `last generation == generation` between the first step and the last: the
//! page is being opened, and its other fields mean nothing yet. A writer that finds such a page (the writer before it
//! died there) keeps last generation and last count.
//!
//! Afterbay reads the page with `pread`, twice until both reads are equal, and never locks it: the lock is for readers
//! that compete for the name.

mod page;
mod writer;

use std::fmt;

pub use page::{Invalid, PAGE_BYTES, Page, PageReader, PageStatus, ReaderKind};
pub use writer::{CreditWriter, CreditWriterError};

/// The present state of the credit page. No state stops a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreditState {
    /// No page is configured.
    Off,
    /// The file does not exist, or its writer has not filled it yet.
    Absent,
    /// The file exists and is not a usable page.
    Invalid(Invalid),
    /// The page is read and trusted.
    Usable {
        /// The reader's generation.
        generation: u64,
        /// Frames that this reader has finished.
        count: u64,
    },
    /// The page is not of the connected reader, or its doubtful count stood still for too long. Frames are sent without
    /// credit until the page moves.
    Stale,
    /// The count is higher than the number of frames sent: another sender sends counted frames to this reader, so the
    /// count says nothing about ours.
    RanAhead {
        /// Counted frames past those that were sent.
        by: u64,
    },
}

impl fmt::Display for CreditState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CreditState::Off => write!(f, "no credit page is configured"),
            CreditState::Absent => write!(f, "the credit page is not there yet"),
            CreditState::Invalid(invalid) => write!(f, "the credit page cannot be used: {invalid}"),
            CreditState::Usable { generation, count } => {
                write!(f, "generation {generation} has finished {count} frames")
            }
            CreditState::Stale => write!(f, "the credit page is not that of the connected reader"),
            CreditState::RanAhead { by } => {
                write!(
                    f,
                    "the reader has counted {by} frames more than were sent: another sender sends to it"
                )
            }
        }
    }
}
