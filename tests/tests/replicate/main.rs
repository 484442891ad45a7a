//! The copy of the journal in NATS JetStream, with real servers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fleet;
mod process;
mod publishing;
mod scene;
mod secure;
