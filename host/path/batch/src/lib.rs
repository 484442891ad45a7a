//! A batch: the type that each stage makes, and the stages that need neither plugins nor sockets.
//!
//! Owns no thread and no socket. The modules [`frame_log`], [`records`], [`ledger`], [`hold`] and [`outbox`] work on a batch; all
//! others are data, and know none of these. The chain and the delivery are in the crates above.
//!
//! Each stage consumes the value of the stage before, and the compiler holds the following:
//!
//! - [`Persisted`] is made by consuming a [`Received`]. Its number, bytes and time are read-only. Any crate above could call
//!   [`Persisted::new`]; only the frame log does. The journal may lack the frame: see [`Location::Nowhere`].
//! - [`Decoded`] holds a [`DecodedBatch`] or a [`DecodedBarrier`], and only [`FrameDecoder::decode`] makes these.
//! - [`Accounted`] is made by consuming a `DecodedBatch`, or the `Persisted` of a release marker. It is read-only.
//! - [`ChainOutput`] is made by consuming an `Accounted`, which stays read-only in it. The chain and the ledger write the
//!   decisions, the verdicts, and the held and released rows.
//! - [`Settled`] is made by consuming a `ChainOutput` or a `DecodedBarrier`.
//!
//! The compiler does not hold two things:
//!
//! - [`Settled::undecoded`] lets a `Persisted` skip decoding, accounting and the chain. The ledger calls it for release markers and
//!   for poison frames (each try to handle such a frame panics).
//! - The types do not say that a stage did its work. A `ChainOutput` without decisions is valid, because a stream may have no
//!   plugins.
//!
//! Routing and delivery are not stages in this sense. The router takes a `Settled` apart, and each sink gets its share of the
//! [`Content`]. For a frame that is read back from the journal, a sink makes the [`SettledContent`] from the recorded outcome.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod records;
pub mod frame_log;
pub mod ledger;
pub mod hold;
pub mod outbox;
pub mod failpoint;

mod received;
mod persisted;
mod decoded;
mod tokens;
mod accounted;
mod decision;
mod content;
mod held;
mod joins;
mod verdicts;
mod output;
mod routing;
mod settled;

pub use accounted::{Accounted, AnyRow, Row};
pub use content::Content;
pub use decision::{Decision, Destination, RowContent, end_of_record, failed, not_judged, recorded_end};
pub use decoded::{Decoded, DecodedBarrier, DecodedBatch, FrameDecoder};
pub use held::{HeldRow, ReleasedRow, hold_end_words};
pub use joins::{JoinEnds, Joins, SingleRows};
pub use output::ChainOutput;
pub use persisted::{Location, Persisted};
pub use received::{Received, Timestamp};
pub use routing::{ReaderKey, RoutingTable, SinkTarget, reader_key};
pub use settled::{BatchChange, Settled, SettledContent};
pub use tokens::ReceivedTokens;
pub use verdicts::RecordedVerdicts;
