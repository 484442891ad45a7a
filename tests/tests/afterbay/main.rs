//! The real binary between a scheduler's and a reader's socket. One binary of tests, so that it is linked once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod aborts;
mod admin;
mod authoring;
mod commands;
mod configs;
mod dev;
mod disk;
mod faults;
mod forwarding;
mod fresh;
mod full_disk;
mod grammar;
mod holds;
mod hostile;
mod journal;
mod kills;
mod legs;
mod life;
mod operators;
mod panics;
mod plugins;
mod projects;
mod publishing;
mod readers;
mod registry;
mod reload;
mod senders;
mod shadows;
mod signals;
mod sinks;
mod stops;
mod taps;
mod told;
mod ways;
mod who_reads;
mod workers;

/// libzmq at the other end.
#[allow(dead_code)]
#[path = "../../../host/sockets/tests/support/python.rs"]
mod python;

/// The lengths of msgpack values.
#[path = "../../../host/wire/tests/it/value_len.rs"]
mod value_len;
