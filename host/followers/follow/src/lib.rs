//! Follows the streams of a journal in a process of its own, off the path of batches.
//!
//! A [`Consumer`] makes something of the journal: an archive, a copy, records. [`Following`] owns everything that consumers share:
//! it finds streams, reads each from the place that the consumer has confirmed, one bounded step at a time, tries again after a
//! failure, reports it, and confirms places so that retention may remove segments. Each consumer has a thread of its own, so that
//! none holds another up. Knows neither running streams nor the command line of `afterbay`.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod consumer;
mod stop;

mod following;

pub mod archive;
pub mod clients;
pub mod replicate;
mod tap;
pub mod traces;
pub mod trajectories;
pub mod usage;

mod process;
mod serve;

pub use consumer::{Consumer, Failure, Look, Streams};
pub use following::{Following, Telemetry};
pub use process::{FollowError, LogOptions, run};
pub use serve::serve;
pub use stop::Stop;
