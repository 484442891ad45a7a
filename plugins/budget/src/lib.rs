//! Ends requests whose tokens are used up: tokens of a request, and tokens of a tenant in a window of time.
//!
//! The tokens of a tenant are a number in the store, which all streams share. The plugin adds the tokens of a
//! batch before the batch leaves, and cuts the rows at the budget. Each token of a tenant is therefore counted
//! before a reader sees it.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod settings;

mod windows;

mod tenant;

mod plugin;

pub use plugin::Budget;
pub use settings::Settings;

afterbay_plugin::export!(Budget);

#[cfg(test)]
mod tests;
