//! Key-value stores of plugins.
//!
//! A [`Store`] belongs to the plugins of one name. Each stream changes it through a [`StoreWriter`] of its own. The values
//! are in memory. A file has them, too: the changes of a batch are appended before the batch leaves, so that the values
//! survive the end of the process, and a thread syncs the files twice a second. `FORMAT.md` describes the bytes.
//!
//! This crate knows no plugin, no batch and no stream: a writer is a name, and a batch is a number.

pub mod bounds;
mod values;

mod format;

mod memory;
mod telemetry;

mod stores;

mod directory;

pub use directory::{Background, OpenError, StoreDirectory};
pub use format::FORMAT_VERSION;
pub use stores::{Store, StoreSize, StoreWriter};
pub use telemetry::StoreTelemetry;
pub use values::StoreError;
