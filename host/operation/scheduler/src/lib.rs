//! The scheduler beside the stream: its load, and aborts to it.
//!
//! Runs on tokio and on threads of its own, off the path of a batch. Knows no streams.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod signals;
pub mod upstream;
