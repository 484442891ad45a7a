//! The configuration, as written and as checked.
//!
//! TOML text becomes [`Config`] in two steps: `written` keeps what stands in the file with its place, `check` bounds it,
//! compares its keys with each other and looks at the disk. Every problem of both steps is told at once.
//! This crate opens no socket, makes no file and knows nothing of ZeroMQ, wasmtime or the wire.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

// As written: text, keys, values at their places.
mod keys;
mod place;
mod reader;
mod written;

// What values are made of, and their bounds.
pub mod bounds;
mod endpoint;
mod name;
mod scrape;
mod units;

// As checked.
mod abort;
mod across;
mod admin;
mod attributes;
mod check;
mod checked;
mod disk;
mod plugins;
mod signals;
mod sinks;

// What the caller gives, and what an operator is told.
mod env;
mod problem;

pub use admin::{Admin, AdminAddress};
pub use attributes::{AttributeRule, Pattern, Rids};
pub use checked::{
    Abort, ApiKeyFrom, Coalesce, CoalesceWhen, Config, Engine, Journal, Layout, LoadSnapshot, Log, LogFormat,
    Memory, OnError, Queue, Reads, Retain, Route, Signals, Sink, SinkKind, Stream, Sync, Takes, Tap, TapOf,
    TapSocket, TapSocketType,
};
pub use endpoint::{Endpoint, EndpointError};
pub use env::{Env, Names};
pub use keys::reference;
pub use name::{Name, NameError};
pub use plugins::{Component, Grant, Limits, Mode, OnFault, Plugin, Quarantine, State, read_files};
pub use problem::{Problem, Problems};
pub use reader::nearest_of;
pub use units::{parse_duration, parse_size};
