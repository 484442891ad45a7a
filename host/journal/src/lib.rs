//! The per-request log: every frame as it came, then what was done with each of its rows.
//!
//! Owns the directory, its segments, recovery, sync and retention. Knows nothing of ZeroMQ or of what a frame's
//! bytes mean: the stream says which request each row belongs to and what became of it. A batch goes on to decode.
//! The bytes are in `FORMAT.md`. Nothing is logged here: what happens off the path is told as a [`Notice`].
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod backlog;
mod beside;
pub mod bounds;
mod clock;
mod directory;
mod error;
mod format;
mod frame_set;
mod manifest;
mod mark;
mod notice;
mod outcome;
mod position;
pub mod reader;
mod record;
mod recovery;
mod replaced;
mod requests;
mod retention;
mod rid;
mod segment;
mod sink;
mod state;
pub mod storage;
mod sync;
mod verify;
mod writer;

pub use backlog::{Backlog, BacklogFrame, Backlogged};
pub use directory::{Background, Directory, Options, SyncPolicy};
pub use error::{IoError, OpenError, ReadError, RequestError, SentError, WriteError};
pub use frame_set::FrameSet;
pub use manifest::MissingSegments;
pub use mark::{HELD_SINK, MARK, is_mark};
pub use notice::Notice;
pub use outcome::{Action, Credit, Finished, Gap, Outcome, Passage, Verdict};
pub use position::{FrameNo, Position, Request, RequestNo, SegmentId};
pub use recovery::{Corruption, Cut, LiveRequest, Recovered};
pub use replaced::Replaced;
pub use rid::kept_rid;
pub use sink::{Handed, Sent, Sink};
pub use verify::{Cause, Note, Problem, Report, What};
pub use writer::Writer;
