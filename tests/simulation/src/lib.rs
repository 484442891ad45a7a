//! Whole streams in a simulated world, on one thread and from a seed.
//!
//! A seed gives a [`Schedule`](schedule::Schedule): settings, and a list of actions as data. The world runs the actions against a
//! real stream on a simulated disk, with simulated time and real Unix sockets. At the end it checks the promises. The same
//! schedule always runs the same way.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a mistake of a test may panic")]

pub mod schedule;

mod clock;
mod machine;
mod peers;
mod process;
mod zmtp;

mod world;
mod check;
mod run;

mod shrink;
pub mod soak;

pub use run::{Failure, run};
pub use shrink::{explain, kind, shrink};
pub use world::Summary;
