//! The scheduler's load: SGLang's, read from its file in shared memory, and vLLM's, which is in its frames. The result is one typed
//! snapshot.
//!
//! A background thread reads the source. The pipeline reads the result through a [`LoadHandle`].
//! This crate must not know streams, batches or plugins: they decide what to do about a load.
//!
//! # Time
//! `LoadSnapshot.timestamp` is `time.time()` of the scheduler's host (sglang 0.5.23,
//! `srt/managers/scheduler_components/load_inquirer.py`). Ages count on our monotonic clock from the first sight of a reading,
//! plus the age that its timestamp gives at that time. Setting a clock while Afterbay runs therefore makes nothing fresh or
//! stale. A timestamp ahead of our clock counts from its first sight.
//!
//! # Costs to the scheduler
//! The reader never locks the shared memory, because the writer would wait on the scheduler's own thread.

pub mod bounds;
mod config;

mod load_snapshot;
mod shm;

mod hub;
mod values;

mod snapshot;

mod notices;
mod reader;

pub use afterbay_types::SourceState;
pub use config::{LoadConfig, LoadSource};
pub use hub::SourceReport;
pub use load_snapshot::instance_path;
pub use notices::{SourceChange, SourceNotice};
pub use reader::{FrameLoad, LoadReader};
pub use snapshot::{Freshness, LoadHandle, LoadSnapshot, SourceKind};
pub use values::LoadValues;
