//! Calls to the operator's HTTP services (`[[call]]`), for plugins.
//!
//! A call runs on a thread of this crate. [`Calls::send`] never blocks, and a callback gets the outcome. Every endpoint has
//! bounds: calls at once, time, bytes of the request and of the answer. An answer counts as a call under way until its
//! receiver has dropped it, so the bounds hold for waiting answers, too. Afterbay follows no redirect, so only the URLs of the
//! configuration are asked. The crate knows neither plugins nor streams.

// From the state of one endpoint to the calls of all.
mod breaker;
mod endpoint;
mod exchange;

mod service;

pub use endpoint::{CallOutcome, Place};
pub use exchange::{CallError, REQUEST_BYTES_MAX, ServiceAnswer};
pub use service::{Calls, CallsError, RunningCall};
