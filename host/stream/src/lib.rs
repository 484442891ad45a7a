//! One stream: the path of a batch from the scheduler's socket to its reader's.
//!
//! Owns a thread per stream and everything on the path; `pipeline.rs` shows the path on one screen. Knows nothing of the
//! command line, of HTTP, or of other streams.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod build;
mod change;
mod handle;
mod pipeline;
mod pressure;
mod receive;
mod report;
mod runner;
mod setup;
mod stream;

pub use afterbay_chain::{AttributesOf, LastReload, PluginChange, PluginSetup, PluginState, PluginStatus};
pub use afterbay_delivery::{Budget, SINK_STATES, StartError, TapSetup};
pub use afterbay_ledger::{ABORTED, AbortSender, FinishedEarly, LiveStatus, RequestStatus};
pub use change::{Change, RunningTap, TapChange};
pub use handle::StreamHandle;
pub use pressure::SchedulerLoad;
pub use runner::Ended;
pub use setup::{Reopen, Setup, SinkSetup};
pub use stream::Stream;
