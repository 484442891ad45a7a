//! The types that several crates of the workspace share, each defined once.
//!
//! This crate parses and prints. It does no I/O, holds no state and depends on no other crate of the workspace.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod endpoint;
mod engine;
mod name;
pub mod parts;
mod record;
mod top_logprobs;
mod words;

pub use endpoint::{Endpoint, EndpointError, IPC_PATH_BYTES_MAX};
pub use engine::{Engine, Traits};
pub use name::{NAME_BYTES_MAX, Name, NameError};
pub use record::RecordDetail;
pub use top_logprobs::TopLogprobs;
pub use words::{
    AbortBy, BarrierCause, CallResult, EndCause, FaultKind, HoldEnd, ReaderState, ReloadResult,
    ShadowComparison, SourceState, SpanLoss, VerdictKind, Word,
};
