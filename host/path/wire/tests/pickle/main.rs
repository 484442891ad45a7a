//! Tests of the crate's public API in one binary: real frames and other pickles of CPython (`frames`), handmade pickles
//! (`values`), random trees (`random`), and hostile input (`hostile`).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fixtures;
mod frames;
mod hostile;
mod random;
mod same;
mod speed;
mod values;
