//! A disk in memory that a test owns, for the journal and for plugins' stores, and a generator of random numbers.
//!
//! Only tests and simulations use this crate. It must not know what a file means.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a mistake of a test may panic")]

mod almost;
mod disk;
mod errors;
mod random;

pub use almost::AlmostDisk;
pub use disk::{Counts, DiskCall, DiskHook, Faults, SimDisk};
pub use random::Random;
