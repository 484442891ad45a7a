//! The tests of afterbay-wire through its public API, on frames that the real SGLang wrote and on synthetic ones.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod samples;

mod columns;
mod edits;
mod fixtures;
mod hostile;
mod instead;
mod joins;
mod properties;
mod real_sglang;
mod textless;
