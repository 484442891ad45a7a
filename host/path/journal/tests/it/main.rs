//! The journal through its public interface.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod attributes;
mod backlog;
mod bench;
mod bounds;
mod damage;
mod erase;
mod excerpt;
mod faults;
mod fixture;
mod full_disk;
mod hold_back;
mod lookup;
mod missing_segments;
mod modes;
mod plugins;
mod process;
mod retention;
mod round_trip;
mod segment_bytes;
mod simulation;
mod sinks;
mod support;
