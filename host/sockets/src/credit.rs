//! The reader's count of finished frames: 64 bytes in a file, usually in /dev/shm.
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
//! 56  8  who reads         0: unknown (earlier writers), 1: a detokenizer, 2: a tokenizer
//! ```
//! All little endian. Only the reader of the stream writes it (the Python connector, or [`CreditWriter`]), in this order when
//! it opens a page that is there: last generation, last count, count = 0, time = 0, who reads, pid, generation. So between the first step and
//! the last, `last generation == generation`: such a page is being opened and says nothing yet. A writer that finds a page so (its
//! predecessor died there) keeps `last …` as it is.
//!
//! It is read by `pread`, twice until equal, and never locked: the lock is how two readers of a kind tell which of them has
//! the name.

mod page;
mod writer;

use std::fmt;

pub use page::{Invalid, Look, PAGE_BYTES, Page, PageReader, ReaderKind};
pub use writer::{CreditWriter, CreditWriterError};

/// What is known of the page now. None of these stops a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreditState {
    /// No page is configured.
    Off,
    /// The file is not there, or its writer has not filled it yet.
    Absent,
    /// The file is there and cannot be used.
    Invalid(Invalid),
    /// The page is read and believed.
    Usable {
        /// The reader's generation.
        generation: u64,
        /// Frames it has finished.
        count: u64,
    },
    /// The page is not that of the connected reader, or stood still too long while in doubt: frames go on without credit
    /// until it moves.
    Stale,
    /// The count ran ahead of what was sent: somebody else sends counted frames to this reader, so it says nothing about ours.
    RanAhead {
        /// Frames more than were sent.
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
                write!(f, "the reader has counted {by} frames more than were sent: somebody else sends to it")
            }
        }
    }
}
