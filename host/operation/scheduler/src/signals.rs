//! The scheduler's load: SGLang's, read from its shared-memory file, its LoadStat publisher and its `/metrics`, and vLLM's,
//! which is in its frames. The result is one typed snapshot. Reading it costs tens of nanoseconds, takes no lock and makes no system
//! call.
//!
//! A background thread reads the configured sources. The pipeline reads the result through a [`LoadHandle`].
//! This crate must not know streams, batches or plugins: they decide what to do about a load.
//!
//! # The source of a field
//! [`SourceKind::LoadSnapshot`] and [`SourceKind::LoadStat`] have a time of measurement. Among those that are
//! not stale, the one measured last gives all fields that it has. A scrape has no time of its own, and its
//! gauges may lag by many steps (SGLang sets them every `decode_log_interval` decode steps, or every 30 s
//! when idle). [`SourceKind::Metrics`] therefore gives only the fields that no other fresh source has. A
//! stale source gives nothing while another source is fresh. [`SourceKind::Frames`] are vLLM's: the owner of a stream hands on the
//! statistics that its frames have ([`LoadReader::frames`]). If all sources are stale, the snapshot has the
//! last known values and is marked as stale. [`LoadSnapshot::source_of`] names the source of one field.
//!
//! # Time
//! `LoadSnapshot.timestamp` is `time.time()` of the scheduler's host (sglang 0.5.23,
//! `srt/managers/scheduler_components/load_inquirer.py`). LoadStat has no timestamp and gets its time of
//! receipt. A scrape gets the time of its request. Ages count on our monotonic clock from the first sight of
//! a reading, plus the age that its timestamp gives at that time. Setting a clock while Afterbay runs
//! therefore makes nothing fresh or stale. A timestamp ahead of our clock counts from its first sight.
//!
//! # Costs to the scheduler
//! The reader never locks the shared memory, because the writer would wait on the scheduler's own thread. A
//! PUB never waits. SGLang's HTTP server answers a scrape on the TokenizerManager's event loop, which is slow
//! exactly when it is overloaded: prefer the other two sources.

pub mod bounds;
mod config;

mod exposition;
mod load_snapshot;
mod load_stat;
mod metrics;
mod shm;

mod hub;
mod values;

mod latch;
mod snapshot;

mod notices;
mod reader;

pub use afterbay_types::SourceState;
pub use config::{Error, LoadConfig, SnapshotLocation, instance_path};
pub use hub::SourceReport;
pub use notices::{SourceChange, SourceNotice};
pub use reader::{FrameLoad, LoadReader};
pub use snapshot::{Freshness, LoadHandle, LoadSnapshot, SourceAge, SourceKind, Sources};
pub use values::{Field, LoadValues};
