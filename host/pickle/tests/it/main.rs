//! Tests of the crate from outside, in one binary: real frames and everything else CPython pickles (`frames`), what is
//! made by hand (`values`), random trees (`random`), and input that means harm (`hostile`).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fixtures;
mod frames;
mod hostile;
mod random;
mod same;
mod speed;
mod values;
