//! One stream: the path of a batch from the scheduler's socket to its readers' sockets.
//!
//! Owns the stream's thread, its poll and its clock, and puts the stages in their order; `pipeline.rs` shows the path on one
//! screen. Knows nothing of the command line, of HTTP, or of other streams.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod delivery;
// The time.
mod clock;
// The parts of a stream, ready to start.
mod setup;
// The first stage.
mod receive;
// The engine's load in its frames.
mod frame_load;
// Frames of Afterbay's own that release held rows.
mod markers;
// Frames that make the stream panic.
mod poison;
// The pressure snapshot for plugins.
mod pressure;
mod written_signals;
// The stages between the journal and the sinks.
mod stages;
// All stages in their order.
mod pipeline;
// Recorded frames through the stages, off the path.
mod trial;
// Events and metrics of the sockets and the journal.
mod report;
// The state of a stream that another process takes over.
mod hand_over;
// The pipeline, at a start and after a panic.
mod build;
// Changes of a running stream.
mod change;
// Commands from other threads.
mod handle;
// The loop.
mod runner;
mod stream;
// A stream on its caller's thread.
mod driven;

#[cfg(any(test, feature = "fuzz"))]
#[expect(clippy::expect_used, clippy::panic, reason = "a fuzzer looks for panics")]
#[path = "../tests/fuzz/verdicts.rs"]
pub mod fuzz;

pub use crate::delivery::{Budget, StartError};
pub use afterbay_batch::ledger::{
    ABORTED, AbortSender, AttributesOf, FindRecord, FinishedEarly, Interrupted, Interruption,
    InterruptionSender, LeaseChange, LeaseSender, LiveStatus, RecordLinks, RequestStatus, StoredRecord,
};
pub use afterbay_batch::records::{JournalPolicy, RecordCopy};
pub use afterbay_chain::{
    CallDone, CallFailure, CallHandle, CallOutcome, CallService, Difference, PluginChange, PluginSetup,
    PluginState, PluginStatus, Reload, ServiceResponse, asked_request, finish_kind, row_counts, row_facts,
};
pub use change::Change;
pub use clock::{Clock, SystemClock};
pub use driven::DrivenStream;
pub use frame_load::{ConnectorMessages, FrameLoad, FrameLoads};
pub use hand_over::StreamState;
pub use handle::StreamHandle;
pub use pressure::SchedulerLoad;
pub use runner::Ended;
pub use setup::{Reopen, Setup, SinkSetup};
pub use stream::{PreparedStream, Stream};
pub use trial::{Trial, TrialPlugin, TrialSetup};
pub use written_signals::{WrittenSignals, recorded_signals};
