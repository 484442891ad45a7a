//! The plugins of a stream: each runs once per batch, and their verdicts compose in the order of the configuration.
//!
//! Owns the plugin instances and the events and counters of their faults, reloads and quarantines. Knows no socket and no
//! sink. A batch comes in accounted by the ledger, and goes back to the ledger with a decision per row.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![expect(missing_docs, reason = "written with the words of this crate")]

mod attributes;
mod chain;
mod context;
mod opened;
mod quarantine;
mod replay;
mod resumed;
mod setup;
mod shadow;
mod slot;
mod status;

pub use attributes::{AttributesOf, RequestAttributes};
pub use chain::Chain;
pub use context::ChainContext;
pub use replay::{Job, Replayed, Shown};
pub use setup::PluginSetup;
pub use slot::{Behind, Parts as SlotParts, PluginSlot, Wanted};
pub use status::{LastReload, PluginState, PluginStatus};
