//! Services of the host for plugins: values that outlive the process, and calls to HTTP services.
//!
//! Knows no streams and no wasm.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod calls;
pub mod store;
