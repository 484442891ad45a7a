//! Requests of the journal as Parquet files in an object store.
//!
//! [`tables::SegmentTables`] turns the segments of one stream into rows of local Parquet files: requests that have ended, and
//! batches. [`start`] uploads the files from a thread of its own, off the path of batches, and confirms their segments to
//! retention. Knows neither streams nor the command line.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod schema;

mod columns;
mod rows;

pub mod tables;

mod failure;
mod manifest;
mod names;

mod objects;
mod progress;

mod stream;

mod location;
mod service;

pub use failure::ArchiveError;
pub use service::{FOLLOWER, StreamLayouts, start};
