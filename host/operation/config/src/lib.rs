//! The configuration: the file as written, and the checked result.
//!
//! TOML text becomes a [`Config`] in two steps. `written` holds every value of the file with its location. `check` compares
//! values with their bounds, with each other and with the disk. Both steps report every problem at once. This crate opens no
//! socket, creates no file and knows nothing of ZeroMQ, wasmtime or the wire format.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

// The file as written: text, keys, values with their locations.
mod keys;
mod location;
mod reader;
mod reference;
mod written;

// Values and their bounds.
pub mod bounds;
mod scrape;
mod units;
pub mod user_dirs;

// The checked configuration.
mod across;
mod admin;
mod archive;
mod attributes;
mod calls;
mod check;
mod checked;
mod disk;
mod engine;
mod erase;
mod plugins;
mod replicate;
mod migration;
mod signals;
mod sinks;
mod traces;
mod usage;

// The caller's environment, and the problems that an operator gets.
mod env;
mod problem;

pub use afterbay_types::{Endpoint, EndpointError, Engine, Name, NameError};

pub use checked::{
    Admin, AdminAddress, Archive, AttributeRule, Breaker, Call, CallHeader, Clients, Component, Config,
    EraseRule, FollowerConfig, Grant, Join, JoinWhen, Journal, Leases, Limits, LoadSnapshot, Log, LogFormat,
    Memory, Migration, Mode, OnError, OnFault, Pattern, Place, Plugin, PluginDefaults, Quarantine, Queue,
    Reads, Replicate, Requests, Retain, Rids, Route, Secret, Signals, Sink, Stream, Sync, Takes, Tap,
    ToolCalls, Traces, Usage,
};
pub use env::{Builtin, Env, Names};
pub use keys::{Key, Need, Table, sections};
pub use plugins::read_files;
pub use problem::{Problem, Problems};
pub use reader::nearest_of;
pub use reference::reference;

pub use replicate::nats_servers;
pub use units::{duration_argument, parse_duration, parse_size, size_argument};
