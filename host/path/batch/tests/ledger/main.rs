//! The ledger through its public interface: decisions in, rows and counts out, also over restarts.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod aborts;
mod attributes;
mod counts;
mod ends;
mod frames;
mod leases;
mod migrations;
mod records;
mod refusals;
mod restarts;
mod schedules;
mod stream;
mod unwritable;
