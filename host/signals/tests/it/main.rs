//! The reader against sources as they are and as they go wrong: files, a real publisher's bytes, a server that misbehaves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod file;
mod fixtures;
mod publisher;
mod server;
mod several;
mod stage;
