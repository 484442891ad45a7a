//! The way of a settled batch to its readers.
//!
//! Owns, for each reader, the queue in memory, the frames that wait only in the journal, and the socket. Owns the taps,
//! which get copies. Knows no plugin.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![expect(missing_docs, reason = "written with the words of this crate")]

mod budget;
mod error;
mod resume;
mod router;
mod sender;
mod sink;
mod spill;
mod tap;

pub use budget::{Budget, Portion};
pub use error::StartError;
pub use resume::{Count, Out, Resume, counts};
pub use router::Router;
pub use sender::{Doing, SINK_STATES, SinkSender, push_options};
pub use sink::{Parts as SinkParts, Sink};
pub use tap::{Tap, TapSetup, end as end_taps};
