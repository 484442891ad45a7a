//! One record of tokens for each request that has ended, for bills.
//!
//! Everything is read from the journal, off the path of batches: a thread follows the journal, writes a line for each request
//! that has ended, and syncs. A start continues behind the last whole line. Knows neither streams nor the command line.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod error;
mod record;
mod source;

mod sums;

mod files;
mod progress;
mod records;

mod follow;

mod thread;

#[cfg(test)]
mod tests;

pub use error::UsageError;
pub use follow::{Follower, Numbers, Written};
pub use record::{Dropped, UsageRecord};
pub use records::Records;
pub use source::UsageSource;
pub use sums::{Bucket, Difference, FIRST_TOKENS_MAX, Group, Reconciliation, Sums, Uncounted};
pub use thread::{STOP_MAX, UsageSetup, start};
