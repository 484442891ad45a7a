//! Tests the reader with good and bad sources: files, the bytes of a real publisher, a server that
//! misbehaves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod file;
mod fixtures;
mod publisher;
mod server;
mod several;
mod stage;
