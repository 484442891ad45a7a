//! Requests in a journal as data, for the `afterbay journal` commands and for the admin address: their legs, the content of
//! their rows, who ended them, who shared their batches, and an index of the newest ones.
//!
//! Reads a journal while `afterbay run` writes it, off the path. Knows neither the command line nor HTTP.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

#[cfg(test)]
mod tests;
mod time;
pub mod wording;

mod sent;

pub mod asked;
pub mod content;
pub mod ended;
pub mod erase;
pub mod ending;
pub mod received;
pub mod request_end;
pub mod legs;
pub mod neighbours;

pub mod json;
pub mod leg_view;
pub mod output;
pub mod sent_rows;

pub mod follower;
pub mod index;
pub mod life;
pub mod steps;
pub mod trajectory;
pub mod usage;

pub use time::{json_time, local_time, parse_time};
