//! The real binary between a scheduler's and a reader's socket. One binary of tests, so that it is linked once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod aborts;
mod admin;
mod attributes;
mod budget;
mod calls;
mod clients;
mod commands;
mod component_reload;
mod config_reload;
mod destinations;
mod engine_time;
mod erase;
mod failing_disk;
mod faults;
mod follower;
mod forwarding;
mod full_disk;
mod grammar;
mod hand_over;
mod held_rows;
mod introductions;
mod migrations;
mod journal_commands;
mod keeper;
mod kills;
mod leases;
mod malformed_rows;
mod match_text;
mod metrics_page;
mod new_home;
mod panics;
mod plugin_status;
mod plugin_steps;
mod plugin_tools;
mod plugins;
mod projects;
mod reader_kind;
mod readers;
mod registry;
mod requests;
mod run_dev;
mod senders;
mod shadows;
mod signals;
mod sinks;
mod start_and_stop;
mod status;
mod stop_loop;
mod stops_under_load;
mod takeovers;
mod tap;
mod text_leg;
mod tokenizer_workers;
mod traces;
mod trials;
mod usage;
mod vllm;

/// A registry for components.
#[path = "../../../host/plugins/plugin-loader/tests/oci/registry.rs"]
mod oci_registry;

/// libzmq at the other end.
#[allow(dead_code)]
#[path = "../../../host/path/sockets/tests/it/support/python.rs"]
mod python;

/// The lengths of msgpack values.
#[path = "../../../host/path/wire/tests/it/value_len.rs"]
mod value_len;
