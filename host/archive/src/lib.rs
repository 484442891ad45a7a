//! Requests of the journal as Parquet files in an object store.
//!
//! [`tables::SegmentTables`] turns the segments of one stream into rows of local Parquet files: requests that have ended, and
//! batches.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod schema;

mod columns;
mod rows;

pub mod tables;
