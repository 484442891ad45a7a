//! Records of usage: one line of tokens for each request that has ended, for bills. Their files, and sums over them.
//!
//! The follower of the journal writes the files; anybody may read them meanwhile.

mod error;
mod files;
mod numbers;
mod progress;
mod record;
mod records;
mod sums;

pub use error::UsageError;
pub use files::{FileName, FilePosition, Found, UsageFiles};
pub use numbers::Numbers;
pub use progress::{Progress, StreamProgress};
pub use record::UsageRecord;
pub use records::Records;
pub use sums::{Bucket, Difference, FIRST_TOKENS_MAX, Group, Reconciliation, Sums, Uncounted};
