//! The scheduler's own load, read from outside: its shared-memory file, its LoadStat publisher and its `/metrics`, as
//! one typed snapshot that costs tens of nanoseconds to read, takes no lock and makes no system call.
//!
//! One background thread reads the configured sources and fills it; [`Load`] is the end that the path holds. This crate
//! must not know streams, batches or plugins: what is done about a load is theirs.
//!
//! ```no_run
//! use afterbay_signals::{LoadConfig, LoadReader, SnapshotPlace};
//!
//! let reader = LoadReader::start(LoadConfig {
//!     load_snapshot: Some(SnapshotPlace::Instance("0123456789ab".into())),
//!     metrics: Some("http://127.0.0.1:30000/metrics".into()),
//!     ..LoadConfig::default()
//! })?;
//! let load = reader.handle(); // cheap to clone, one for each stream
//! if let Some(values) = load.read().fresh() {
//!     println!("{:?} requests are running", values.num_running_reqs);
//! }
//! for notice in reader.notices() {
//!     println!("{notice}");
//! }
//! # Ok::<(), afterbay_signals::Error>(())
//! ```
//!
//! # Which source a field comes from
//! [`SourceKind::LoadSnapshot`] and [`SourceKind::LoadStat`] say when they were measured or sent: of these, the one
//! measured last and not stale gives every field that it has. A scrape has no time of its own, and its gauges may be
//! many steps older than it (SGLang sets them every `decode_log_interval` decode steps, or every 30 s when idle), so
//! [`SourceKind::Metrics`] gives only the fields that no other source has while it is fresh. A stale source gives
//! nothing while another is fresh. When all are stale the last known values stand, and are said to be stale.
//! [`LoadSnapshot::source_of`] tells the source of one field.
//!
//! # Time
//! `LoadSnapshot.timestamp` is `time.time()` of the scheduler's host (sglang 0.5.23,
//! `srt/managers/scheduler_components/load_inquirer.py`), LoadStat has none (its time is when it came), and a scrape's
//! is when it was asked for. Ages are counted on our monotonic clock from the moment a reading was first seen, plus what its
//! timestamp says that it was old by then: a clock that is set while Afterbay runs makes nothing fresh or stale. A
//! timestamp ahead of our clock counts from when it was first seen.
//!
//! # Costs to the scheduler
//! The shared memory is never locked (its writer would wait for us on the scheduler's own thread) and a PUB never waits. A
//! scrape is answered by SGLang's HTTP server, on the TokenizerManager's event loop: it is slow exactly when that is
//! overloaded, so prefer the other two.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod bounds;
mod config;

// The three sources: how each is found, read and checked.
mod exposition;
mod load_snapshot;
mod load_stat;
mod metrics;
mod shm;

// What they say, in one place.
mod hub;
mod values;

// Across to the path.
mod latch;
mod snapshot;

mod notices;
mod reader;

pub use afterbay_types::SourceState;
pub use config::{Error, LoadConfig, SnapshotPlace, instance_path};
pub use hub::SourceReport;
pub use notices::{Change, Notice};
pub use reader::LoadReader;
pub use snapshot::{Freshness, Load, LoadSnapshot, SourceAge, SourceKind, Sources};
pub use values::{Field, LoadValues};
