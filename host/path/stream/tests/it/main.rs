//! Whole streams on the test's thread, with real sockets, a real journal and real plugins: they pass from one process to the
//! next.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod asked;
mod hand_over;
mod live_bound;
mod readers;
mod reloads;
mod timers;
mod world;
