//! The per-request log: every frame as it came, then what was done with each of its rows.
//!
//! Owns the directory, its segments, recovery, sync and retention. Knows nothing of ZeroMQ or of what a frame's
//! bytes mean: the stream says which request each row belongs to and what became of it. A batch goes on to decode.
//! The bytes are in `FORMAT.md`. Nothing is logged here: what happens off the path is told as a [`Notice`].
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

// The modules stand from low to high: a module imports only modules of the groups above its own.
pub mod bounds;
mod mutex;
mod position;
mod release_marker;
pub mod storage;

mod clock;
mod error;
mod format;
mod frame_set;
mod notice;
mod request;
mod rid;

mod options;
mod outcome;
mod text_file;

mod sink_progress;
mod stored;

mod record;
mod replacement;

mod open_requests;
mod segment;

mod seal;
mod segment_files;
mod stream_state;

mod manifest;

mod background;
mod recovery;
mod verify;

mod backlog;
pub mod reader;
mod root;

mod retention;
mod writer;

mod directory;

pub use backlog::{Backlog, BacklogFrame, Backlogged};
pub use directory::Directory;
pub use error::{IoError, OpenError, ReadError, RequestError, SentError, WriteError};
pub use frame_set::FrameSet;
pub use manifest::MissingSegments;
pub use notice::Notice;
pub use options::{Background, Options, SyncPolicy};
pub use outcome::{Action, Credit, Finished, Gap, Outcome, Passage, Verdict};
pub use position::{FrameNo, Position, RequestNo, SegmentId};
pub use recovery::{Corruption, Cut, LiveRequest, Recovered};
pub use release_marker::{HELD_SINK, MARK, is_mark};
pub use replacement::Replaced;
pub use request::Request;
pub use rid::kept_rid;
pub use sink_progress::{Handed, Held, Sent, Sink};
pub use verify::{Cause, Note, Problem, Report, What};
pub use writer::Writer;
