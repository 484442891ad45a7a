//! The outbox through its public interface.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod calls;
mod options;
mod order;
mod schedules;
mod support;
