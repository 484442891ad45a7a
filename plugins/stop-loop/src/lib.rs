//! Ends requests that repeat themselves or produce garbage.
//!
//! [`detector`] finds loops in the ids of one request. [`share`] watches the share of stopped requests.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod detector;
mod plugin;
mod settings;
mod share;

pub use plugin::StopLoop;
pub use settings::Settings;

afterbay_plugin::export!(StopLoop);
