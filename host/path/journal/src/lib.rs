//! The journal: stores every frame before anything else happens to the frame, then the outcome of each of its
//! rows.
//!
//! The crate owns the journal directory, its segments, recovery, sync and retention. It knows nothing of
//! ZeroMQ and does not decode frames: the stream names the request of each row. `FORMAT.md` describes the
//! bytes. The crate does not log: background threads publish a [`BackgroundNotice`] for each event.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

// Modules stand from low to high. A module imports only from groups above its own group.
pub mod bounds;
mod mutex;
mod names;
mod pause;
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

mod outcome;
mod plugin_component;
mod text_file;

mod confirmed;

mod options;

mod instance;

mod copied_stream;

mod sink_progress;

mod record;
mod replacement;

mod open_requests;
mod request_table;
mod segment;

mod seal_file;
mod segment_end;
mod segment_files;
mod stream_state;

mod manifest;

mod background;
mod recovery;
mod verify;

mod backlog;
pub mod reader;
mod root;

mod erase;
mod retention;
mod writer;

mod excerpt;
mod seal;

mod directory;

pub use backlog::{BacklogFrame, BacklogItem, BacklogReader};
pub use confirmed::{Confirmed, Follower, followers_dir};
pub use copied_stream::CopiedStream;
pub use directory::JournalDirectory;
pub use erase::{EraseRows, EraseRule, ErasedRequests, LeftFrame, LeftFrames, NotErased, RewrittenFrame};
pub use error::{HeldBack, IoError, OpenError, ReadError, WriteError};
pub use excerpt::{Excerpt, ExcerptError, write_excerpt};
pub use format::VERSION as FORMAT_VERSION;
pub use frame_set::FrameSet;
pub use manifest::MissingSegments;
pub use names::{is_copied_stream_name, is_instance, is_stream_name};
pub use notice::BackgroundNotice;
pub use options::{Background, JournalOptions, SyncPolicy};
pub use outcome::{
    OPERATOR, Outcome, Passage, PluginAction, RowEffect, RowFinish, SWALLOWED, TokenGap, Verdict, end_cause,
    row_effects, split_error,
};
pub use plugin_component::PluginComponent;
pub use position::{FrameNo, Position, RequestNo, SegmentId};
pub use record::as_read;
pub use recovery::{Corruption, LiveRequest, RecoveredStream, TornEnd};
pub use release_marker::{HELD_SINK, RELEASE_MARKER, is_release_marker};
pub use replacement::StoredReplacement;
pub use request::JournalRequest;
pub use rid::stored_rid;
pub use seal::{NewSeals, SealError, SealProblem, SealProblemKind, SealReport, Sealer};
pub use sink_progress::{Credit, SendRoom, SentFrame, SinkContent, SinkProgress};
pub use verify::{JournalProblem, ProblemKind, VerifyNote, VerifyReport};
pub use writer::{JournalWriter, JournaledAttributes};
