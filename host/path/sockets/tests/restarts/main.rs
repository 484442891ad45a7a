//! Readers die, our process dies, and others continue.
//!
//! No test here starts a process, and these tests have a process of their own: between fork and exec, a child would hold the page's
//! lock and the listener too.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod adoption;
mod readers;
#[path = "../it/support/mod.rs"]
mod support;
