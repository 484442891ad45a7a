//! Write plugins for Afterbay, the proxy on the output socket of an LLM scheduler.
//!
//! A plugin is a WebAssembly component. It receives every batch of a stream, one row for each request, and
//! returns a verdict for each row that it wants to change. This crate turns the contract's columns
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
//! afterbay-plugin = "0.2"
//! schemars = "1.2"
//! serde = { version = "1", features = ["derive"] }
//! ```
//!
//! `src/lib.rs`, a plugin that ends a request at the first of some tokens:
//!
//! ```
//! use afterbay_plugin::{Batch, Columns, ConfigureError, Plugin, TokenId, Verdicts, bad_setting};
//!
//! /// The `settings` of the operator's configuration. Doc comments become the schema's descriptions.
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
//!             return Err(bad_setting("/stop", "must have at least one token id"));
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
//! // In `#[cfg(test)]`, run by plain `cargo test` without WebAssembly. See [`testing`](afterbay_plugin::testing).
//! use afterbay_plugin::testing::{Harness, TestRow};
//! let mut plugin = Harness::<StopAt>::new(r#"{"stop": [2]}"#).unwrap();
//! plugin.open(7);
//! let verdicts = plugin.process(&[TestRow::new(7).ids([5, 2])]);
//! assert_eq!(verdicts[0].row, 0);
//! ```
//!
//! `cargo build --target wasm32-wasip2 --release` builds the component
//! `target/wasm32-wasip2/release/NAME.wasm`. The operator's configuration names this file:
//!
//! ```toml
//! [[stream.plugin]]
//! name      = "stop-at"
//! component = "stop_at.wasm"
//! settings  = { stop = [2, 128001] }
//! ```
//!
//! # Guarantees and limits
//!
//! - One instance serves one stream. The host calls it from one thread, one call at a time. Values in `self`
//!   last from one call to the next.
//! - The host calls `opened` once before a request's first row and `closed` once after its last row.
//! - A panic, a call past its deadline and memory past its limit (64 MiB by default) are *faults*. After a
//!   fault a new instance takes over and learns of the live requests by `opened` with `resumed` set. Held
//!   rows are released unchanged. The operator chooses what happens to the batch (`on_fault`): it passes
//!   unchanged, the new instance gets it once more, or its requests are aborted. Afterbay's log has the text
//!   of a panic.
//! - The deadline is 2 ms of CPU time by default. An instance that stays within its deadline earns a small
//!   credit (1/64 of the time used, up to 8 ms), which a later, slower call may use.
//! - The operator grants the log, the plugin's own [`metrics`], the model's [`tokenizer`], the stream's
//!   [`signals`](signals()), a request's [`attributes`], what it [`asked`] for and its [`prompt_ids`], the stream's [`health`], a [`store`] and [`call`]s:
//!   `grant = ["log", "metrics", "tokenizer", "signals", "request", "health", "store", "call"]`. Afterbay
//!   refuses to load a component that imports an interface without its grant.
//! - [`window`] has fixed and sliding windows of wall time.
//! - A plugin has no files, no network and an empty environment. The clock stands still: `Instant::now()` always
//!   returns the same time, and `SystemTime::now()` traps. [`Batch::time_ms`] is the time. `HashMap` works,
//!   with a fixed seed. [`Requests`] is faster if the key is a request.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

// Lets generated paths work both in this crate and in a plugin.
extern crate self as afterbay_plugin;

mod plugin;

mod attributes;
mod batch;
mod columns;
mod error;
mod request_verdicts;
mod requests;
mod rules;
mod verdicts;

mod host;
#[doc(hidden)]
pub mod instance;
mod log;
#[cfg_attr(target_arch = "wasm32", expect(dead_code, reason = "the real host takes its place"))]
mod stand_in;
pub mod testing;
pub mod text;
pub mod window;

#[doc(hidden)]
pub mod abi;

pub use abi::afterbay::plugin::log::Level;
pub use abi::afterbay::plugin::signals::{Load, Queue, Sink, SinkState, Snapshot};
pub use abi::afterbay::plugin::types::{
    Action, Calls, Columns, Ending, Failure, FinishKind, FinishReason, IdShape, Opened, Replacement,
    RequestId, TokenId, Verdict,
};
pub use abi::{ConfigureError, RequestAction, RequestVerdict, StateError};
pub use attributes::{AttributeIs, Attributes};
pub use batch::{Batch, Row, Rows};
pub use error::{bad_setting, missing};
pub use host::{asked, attributes, call, health, metrics, prompt_ids, signals, store, timer, tokenizer};
pub use log::log;
pub use plugin::{NoSettings, Plugin};
pub use request_verdicts::RequestVerdicts;
pub use requests::Requests;
pub use rules::RequestIs;
pub use verdicts::{REASON_BYTES_MAX, Verdicts};
