//! Components fetched from registries on this machine.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod fetch;
mod registry;
