//! Write plugins for Afterbay, the proxy on the output socket of an LLM scheduler.
//!
//! A plugin is a WebAssembly component. It sees every batch of a stream, one row a request, and says what is to be done
//! with the rows that are not to go on as they are. This crate turns the contract's columns
//! (`wit/transform.wit`) into rows and a trait.
//!
//! # A plugin in one screen
//!
//! `Cargo.toml`:
//!
//! ```toml
//! [lib]
//! crate-type = ["cdylib", "rlib"]   # cdylib: the component; rlib: for tests
//!
//! [dependencies]
//! afterbay-plugin = "0.1"
//! schemars = "1.2"
//! serde = { version = "1", features = ["derive"] }
//! ```
//!
//! `src/lib.rs`: ends a request at the first of some tokens.
//!
//! ```
//! use afterbay_plugin::{Batch, Columns, ConfigureError, Plugin, TokenId, Verdicts, bad_setting};
//!
//! /// What the operator writes under `settings`. Doc comments become the schema's descriptions.
//! #[derive(serde::Deserialize, schemars::JsonSchema)]
//! #[serde(deny_unknown_fields)]
//! pub struct Settings {
//!     /// The token ids that end a request.
//!     stop: Vec<TokenId>,
//! }
//!
//! pub struct StopAt {
//!     stop: Vec<TokenId>,
//! }
//!
//! impl Plugin for StopAt {
//!     type Settings = Settings;
//!     const COLUMNS: Columns = Columns::OUTPUT_IDS;
//!
//!     fn new(settings: Settings) -> Result<Self, ConfigureError> {
//!         if settings.stop.is_empty() {
//!             return Err(bad_setting("/stop", "has no token"));
//!         }
//!         Ok(Self { stop: settings.stop })
//!     }
//!
//!     fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
//!         for row in batch.rows() {
//!             if row.ids().iter().any(|id| self.stop.contains(id)) {
//!                 verdicts.finish(row, "stop-at");
//!             }
//!         }
//!     }
//! }
//!
//! afterbay_plugin::export!(StopAt);
//!
//! // In `#[cfg(test)]`: plain `cargo test`, no WebAssembly. See [`testing`](afterbay_plugin::testing).
//! use afterbay_plugin::testing::{Harness, TestRow};
//! let mut plugin = Harness::<StopAt>::new(r#"{"stop": [2]}"#).unwrap();
//! plugin.open(7);
//! let verdicts = plugin.process(&[TestRow::new(7).ids([5, 2])]);
//! assert_eq!(verdicts[0].row, 0);
//! ```
//!
//! Built with `cargo build --target wasm32-wasip2 --release`; the component is
//! `target/wasm32-wasip2/release/NAME.wasm`, which the operator's config names:
//!
//! ```toml
//! [[stream.plugin]]
//! name      = "stop-at"
//! component = "stop_at.wasm"
//! settings  = { stop = [2, 128001] }
//! ```
//!
//! # What a plugin can rely on
//!
//! - One instance serves one stream, and is called from one thread, one call at a time. What it keeps in `self` is there
//!   at the next call.
//! - `opened` comes before a request's first row, `closed` after its last, each once.
//! - A panic, a call past its deadline (2 ms of processor time unless the operator gave more; an instance that keeps to it
//!   saves 1/64 of its time, 8 ms at most, for a call that does not) and memory past its limit (64 MiB) are *faults*: a fresh
//!   instance takes over, which is told of the live requests with `resumed` set. What becomes of the batch, the operator says
//!   (`on_fault`): it goes on as if there had been no verdict, is tried once more, or its requests are aborted. What the
//!   instance held goes on as it came. A panic's text is in Afterbay's log.
//! - The log and the plugin's own [`metrics`] are there; the model's [`tokenizer`], the stream's [`signals`](signals())
//!   and a request's [`attributes`] where the operator grants them (`grant = ["log", "metrics", "tokenizer", "signals", "request"]`).
//!   A component that imports what is not granted is refused when it is loaded.
//! - There are no files, no network and no environment, and the clock stands still: `Instant::now()` is always the same,
//!   `SystemTime::now()` a trap. `HashMap` works, with a seed that is always the same;
//!   [`Requests`] is quicker where the key is a request.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

// So that generated paths work both in here and in a plugin.
extern crate self as afterbay_plugin;

mod plugin;

mod attributes;
mod batch;
mod error;
mod requests;
mod rules;
mod verdicts;

mod host;
mod log;
pub mod testing;

#[doc(hidden)]
pub mod abi;

pub use abi::afterbay::plugin::log::Level;
pub use abi::afterbay::plugin::signals::{Load, Queue, Sink, SinkState, Snapshot};
pub use abi::afterbay::plugin::types::{
    Action, Calls, Columns, Ending, FinishKind, IdShape, Opened, Replacement, RequestId, TokenId, Verdict,
};
pub use abi::{ConfigureError, StateError};
pub use attributes::{AttributeIs, Attributes};
pub use batch::{Batch, Row, Rows};
pub use error::{bad_setting, missing};
pub use host::{attributes, metrics, signals, tokenizer};
pub use log::log;
pub use plugin::{NoSettings, Plugin};
pub use requests::Requests;
pub use rules::RequestIs;
pub use verdicts::{REASON_BYTES_MAX, Verdicts};
