//! The passive types of a batch: one type per stage, each made out of the one before.
//!
//! Owns no thread, no socket, no file and no clock. The modules stand in the order a batch meets them; the stages that make
//! these types are in the crates above: persist, ledger, chain, delivery.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![expect(missing_docs, reason = "written with the words of this crate")]

pub mod fault;

mod accounted;
mod arrival;
mod decision;
mod decoded;
mod held;
mod output;
mod persisted;
mod recorded;
mod routing;
mod settled;
mod tokens;

pub use accounted::{Accounted, AnyRow, RequestSlot, Row};
pub use arrival::{Received, Timestamp};
pub use decision::{Decision, Destination, RowContent, aborted, not_judged, terminate};
pub use decoded::{Decoded, FrameDecoder};
pub use held::{HeldRow, ReleasedRow};
pub use output::ChainOutput;
pub use persisted::{Location, Persisted};
pub use recorded::{RecordedVerdict, RecordedVerdicts, hold_end_words};
pub use routing::{RoutingTable, SinkTarget};
pub use settled::{ReaderKey, Settled, SettledContent, reader_key};
pub use tokens::ReceivedTokens;
