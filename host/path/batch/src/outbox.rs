//! The queue of one sink: frames are sent unchanged while the sink keeps up, and joined without loss while the sink is
//! behind.
//!
//! The pipeline [pushes](Outbox::push) a frame after the plugins are done with it. [`Outbox::next`] returns a frame whenever
//! the sink has room. If nothing else waits, this is the same frame, byte for byte. Otherwise the outbox composes a frame of
//! at most `max_rows` requests out of the rows that wait, and joins each request's rows into one. Requests with their first
//! row come first, then requests with their last row, then those that have waited longest. The outbox remembers sent frames
//! until they are [taken](Outbox::taken), so that the journal can record up to which frame everything is delivered.
//!
//! This module knows rows and where text is whole. It knows no sockets, no files, no plugins and no clock.

mod options;

mod frame;

// Frames wait in lanes, one lane after another.
mod lane;
// The rows of one lane, by request.
mod backlog;
// Rows of tool calls.
mod calls;
// Sent frames, until they are taken.
mod sent;

mod queue;

pub use frame::{Frame, FrameToSend};
pub use options::{Options, When};
pub use queue::{Outbox, Totals};
