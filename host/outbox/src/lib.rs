//! What waits for one sink, in order: handed on as it came while the sink keeps up, joined without loss while it does not.
//!
//! A frame is [put](Outbox::put) in when the plugins are done with it, and leaves by [`Outbox::next`] whenever the sink has
//! room. While nothing else waits, that is the frame itself, byte for byte. Otherwise the rows that wait are composed into
//! frames of at most `max_rows` requests, each request's rows joined into one: first tokens first, then last rows, then
//! the requests that have waited longest. What has left is remembered until it is [taken](Outbox::taken), so that the
//! journal can be told how far every frame is done with.
//!
//! This crate knows rows and where text is whole. It must not know sockets, the journal, plugins, or what time it is.
//! Before it come the plugins, after it the sink's socket.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

// Frames wait in lanes, which leave one after another,
mod lane;
// rows by request, in one lane,
mod waiting;
// and what has left is remembered until it is taken.
mod sent;

mod outbox;

pub use outbox::{Content, Frame, Joins, Leaving, Options, Outbox, Totals, When};
