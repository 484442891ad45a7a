//! The server behind `afterbay run`: it starts, reloads and stops streams, and answers on the admin addresses.
//!
//! It knows nothing of the command line. The path of a batch is in `afterbay-stream`.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

// Before a start.
mod check;
mod config_file;
mod descriptors;
mod mutex;

// The parts that a stream starts with.
mod grants;
mod inheritance;
mod layouts;
mod leases;
mod migrations;
mod loading;
mod rendezvous;
mod sinks;

// The operator's requests to running streams.
mod aborts;
mod admin;
mod attributes;
mod calls;
mod erasures;
mod follower;
mod plugins;
mod records;
mod refusal;
mod reload_queue;
mod requests;
mod signals;
mod status;
mod upgrade;

// The streams of a process, from start to end.
mod changes;
mod drain;
mod hand_over;
mod reload;
mod serve;
mod shared;
mod start;
mod supervision;
mod take_over;

// The streams of a configuration, off the path.
mod trials;

#[cfg(any(test, feature = "fuzz"))]
pub use admin::fuzz;
pub use admin::token;
pub use check::load_and_check;
pub use config_file::{load as load_config, load_admin};
pub use drain::DrainOutcome;
pub use rendezvous::is_alive;
pub use serve::{Options, Server};
pub use sinks::warnings;
pub use take_over::formats;
pub use trials::Trials;

/// The commit that this binary was built from, with `-dirty` behind it if files had changed. `None` outside of `make build` and
/// `make dist`, and where the source has no git directory. The Makefile sets the variable: no build script runs at each build.
pub const COMMIT: Option<&str> = match option_env!("AFTERBAY_COMMIT") {
    Some(commit) if !commit.is_empty() => Some(commit),
    _ => None,
};
