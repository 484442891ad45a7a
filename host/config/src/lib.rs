//! The configuration, as written and as checked.
//!
//! TOML text becomes [`Config`] in two steps: `written` keeps what stands in the file with its place, `check` bounds it,
//! compares its keys with each other and looks at the disk. Every problem of both steps is told at once.
//! This crate opens no socket, makes no file and knows nothing of ZeroMQ, wasmtime or the wire.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod bounds;
mod check;
mod checked;
mod disk;
mod endpoint;
mod env;
mod keys;
mod name;
mod place;
mod problem;
mod reader;
mod units;
mod written;

pub use checked::{
    Admin, Component, Config, Engine, Journal, Layout, Limits, Log, LogFormat, OnError, Plugin, Queue,
    Retain, Sink, Stream, Sync,
};
pub use endpoint::{Endpoint, EndpointError};
pub use env::{Env, Names};
pub use keys::reference;
pub use name::{Name, NameError};
pub use problem::{Problem, Problems};
pub use units::{parse_duration, parse_size};
