//! The plugin host: WebAssembly components that judge the rows of a stream, each within its limits.
//!
//! This crate owns the engine, the compiled code, the instances with their limits, and the watch over files. It knows
//! columns and verdicts, but no wire format, no socket and no stream. A batch comes in as [`Columns`]. The [`Verdict`]s go
//! back to the stream, which applies them.
//!
//! A [`Host`] (one per process) loads a [`Component`], which makes a [`Plugin`]: an instance for one stream. A call that
//! fails is a [`Fault`], and the stream decides what to do about it. `wit/transform.wit` defines the contract with the
//! guest.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod limits;

// The contract.
mod bindings;
mod columns;
mod timers;
mod token_columns;
mod verdict;

// One instance's limits and imports.
mod deadline;
mod digest;
mod effects;
mod environment;
mod explain;
mod fault;
mod grants;
mod guest;
mod log;
mod meter;

// The engine, the components and their instances.
mod cache;
mod component;
mod host;
mod instance;
mod lines;
mod load;
mod world;

// The watch over files.
mod files;
mod watch;
mod watching;

pub use afterbay_types::TopLogprobs;
pub use bindings::afterbay::plugin::signals;
pub use bindings::afterbay::plugin::types::TopLogprobs as TopColumns;
pub use bindings::exports::afterbay::plugin::plugin::StateError;
pub use cache::CacheError;
pub use columns::{
    COLUMN_NAMES, ColumnSet, Columns, FinishKind, Opened, OwnedColumns, PlainColumns, PlainValues, RequestId,
    Strings, TokenId,
};
pub use component::{CallSet, Component, Description};
pub use digest::Digest;
pub use effects::{CallId, SentCall, Unsent};
pub use environment::with_environment;
pub use fault::{Call, Fault, FaultCause};
pub use files::{FileContents, FilesWatch};
pub use grants::{EncodeError, Grants, Labels, Meter, MeterError, Store, StoreError, Terms, Tokens};
pub use guest::{AskedRequest, RecordReader};
pub use host::{Host, HostError, HostOptions};
pub use instance::{Plugin, StartError};
pub use limits::Limits;
pub use lines::GuestFrame;
pub use load::{LoadError, read_component};
pub use log::{Level, LogLine};
pub use token_columns::{RowFacts, TokenColumns};
pub use verdict::{
    Action, Answer, CallError, Ending, Failure, FinishReason, IdShape, Replacement, RequestAction,
    RequestVerdict, Response, Verdict,
};
pub use watch::{ReloadError, Reloaded, Watch, Watched};
pub use watching::WithoutEvents;
pub use world::CONTRACT;
