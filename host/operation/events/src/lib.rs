//! Events and counters, each declared once, published to the log, to metrics and to tests.
//!
//! An event is for an operator: [`Events`] sends it to `tracing` and counts it, and tests assert on it. A counter is updated
//! for every frame or row and read by `/metrics` only. This crate knows no socket, no wire format and no plugin.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

// An event: declared, published, limited, then logged or recorded.
mod declare;
pub mod event;
mod field;
mod limiter;
pub mod log;
mod publish;
mod recorder;
mod telemetry;

// A counter: bumped on the path, read by `/metrics`.
mod counter;
pub mod counters;
mod exposition;
mod health;
mod histogram;
mod metrics;
mod own;
mod reading;

pub use afterbay_types::{
    AbortBy, BarrierCause as Barrier, CallResult, EndCause, FaultKind, HoldEnd, Name, ReaderState,
    ReloadResult, ShadowComparison as Compared, VerdictKind as Verdict,
};
pub use counter::{Counter, CounterBy, Gauge, Label, SecondsNow, StateGauge, Total};
pub use counters::{
    AbortCounters, ArchiveCounters, CallCounters, ClientsCounters, FollowerCounters, LeaseCounters,
    PluginCounters, ReplicateCounters, SchedulerLoad, SignalSource, SinkCounters, StoreCounters,
    StreamCounters, TapCounters, TracesCounters, UsageCounters,
};
pub use event::Event;
pub use exposition::CONTENT_TYPE;
pub use health::{Condition, Health, Severity};
pub use histogram::{BUCKET_SECONDS, Histogram};
pub use limiter::{KEYS_MAX, WINDOW};
pub use metrics::{Metrics, Signals};
pub use own::{OVERFLOW, OWN_NAMES_MAX, OWN_SERIES_MAX, OwnError, OwnLabels, OwnMetrics};
pub use publish::Events;
pub use recorder::{RECORDED_MAX, Recorder};
pub use telemetry::StreamTelemetry;
