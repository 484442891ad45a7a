//! The live requests of a stream, and where every token of them went.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![expect(missing_docs, reason = "written with the words of this crate")]

mod ledger;
mod requests;

pub use ledger::*;
