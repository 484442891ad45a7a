//! The plugin chain of a stream: each plugin runs once per batch, in the order of the configuration, and sees the rows as the
//! plugins before left them.
//!
//! This crate owns the instances, their faults, quarantines and reloads, and the events and counters of these. It knows no
//! socket and no sink. A batch comes from the ledger, and returns to the ledger with one decision per row.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod calls;
mod catch_up;
mod chain;
mod context;
mod hand_over;
mod history;
mod open_requests;
mod quarantine;
mod replay;
mod row_facts;
mod setup;
mod shadow;
mod slot;
mod status;

pub use calls::{CallDone, CallFailure, CallHandle, CallOutcome, CallService, ChainCalls, ServiceResponse};
pub use catch_up::{CatchUp, CatchUpResult};
pub use chain::{Chain, finish_kind};
pub use hand_over::{ChainState, HANDED_BYTES_MAX};
pub use history::{DIFFERENCES_MAX, Difference, RELOADS_MAX, Reload};
pub use open_requests::asked_request;
pub use replay::{JournalSource, REPLAY_TIME_MAX, TakenOver};
pub use row_facts::{row_counts, row_facts};
pub use setup::{ChainTelemetry, PluginChange, PluginSetup};
pub use status::{PluginState, PluginStatus};
