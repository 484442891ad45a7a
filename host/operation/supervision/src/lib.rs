//! Lets another process go on where this one ends.
//!
//! Owns descriptors that outlive the process, the parent of `run --keep`, and the conversation of a hand-over. Knows no streams.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod fdstore;
pub mod hand_over;
pub mod keeper;
