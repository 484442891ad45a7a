//! The status of a running Afterbay in a terminal: `afterbay top`.
//!
//! A thread asks the admin address once a second ([`Admin`]); keys and answers change the state of the screen; the state is
//! drawn into a frame of any size. The crate knows the answers of the admin address as JSON, and nothing of streams or HTTP.

mod admin;
mod app;
mod clock;
mod draw;
mod facts;
mod filter;
mod grid;
mod life;
mod plain;
mod poll;
mod run;
mod sections;
mod status;
mod text;
mod theme;

#[cfg(test)]
mod tests;

pub use admin::Admin;
pub use plain::{print_json, print_once};
pub use run::{End, TopError, run};
