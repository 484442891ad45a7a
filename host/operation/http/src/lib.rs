//! HTTP/1.1 over TCP or a Unix socket, one exchange per connection.
//!
//! The client half ([`call`]) limits the time and the size of an answer; its callers interpret the answer. The server half ([`serve`]) limits connections and time; its callers provide the routes. Only this crate
//! names hyper. A [capability](CapabilityKeys) is a token for one name. It knows nothing of SGLang.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod capability;
mod client;
mod server;

pub use capability::{CapabilityError, CapabilityKeys};
pub use client::{Call, CallError, ServerAddress, call, redacted};
pub use server::{ClientAddress, HttpListener, Lasting, ServerBounds, serve};
