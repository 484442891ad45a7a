//! Components fetched from registries on this machine, and pushed to them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod fetch;
mod push;
mod registry;
