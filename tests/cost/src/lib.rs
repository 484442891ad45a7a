//! The cost of each stage of a batch's path in instructions: they do not move with the machine's other work, unlike
//! nanoseconds. `make bench-cost` prints them beside the committed figures.
//!
//! The program runs itself under callgrind. There it carries frames through a real stream on its own thread, with a
//! journal on disk and sockets to a scheduler and a reader, and then joins and takes rows. The stages are found by the
//! names of their functions.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

// The frames.
pub mod traffic;

// Under callgrind.
pub mod carried;
pub mod loads;

// Its counts.
pub mod callgrind;
pub mod figures;
