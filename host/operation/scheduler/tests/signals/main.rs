//! Tests the reader with good and bad sources: files, and bytes that the real SGLang wrote.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod file;
mod fixtures;
mod stage;
