//! HTTP/1.1 over TCP or a Unix socket, one exchange per connection.
//!
//! The client half ([`call`]) limits the time and the size of an answer; its callers interpret the answer. The server half ([`serve`]) limits connections and time; its callers provide the routes. Only this crate
//! names hyper. It knows nothing of SGLang.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod client;
mod server;

pub use client::{Call, CallError, ServerAddress, call, redacted};
pub use server::{ClientAddress, HttpListener, Lasting, ServerBounds, serve};
