//! What a new plugin's project is made of. All of it is in the binary: an author needs nothing of Afterbay's but that.
//!
//! Knows what is written, not where; no compiler, and no runtime.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod language;
mod project;

pub use language::Language;
pub use project::{File, NameError, project};

mod embedded {
    include!(concat!(env!("OUT_DIR"), "/embedded.rs"));
}
