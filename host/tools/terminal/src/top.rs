//! The status of a running Afterbay in a terminal: `afterbay top`.
//!
//! A thread asks the admin address once a second ([`Admin`]); keys and answers change the state of the screen; the state is
//! drawn into a frame of any size. The crate knows the answers of the admin address as JSON, and nothing of streams or HTTP.

mod app;
mod draw;
mod fields;
mod grid;
mod plain;
mod poll;
mod run;
#[cfg(test)]
mod tests;

pub use plain::{print_json, print_once, print_plugins};
pub use poll::Admin;
pub use run::{End, TopError, run};
