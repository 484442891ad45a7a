//! The parts of a scenario's batch beside its rows: changed request attributes and signals.

use afterbay_runtime::AskedRequest;
use afterbay_runtime::signals::{Load, Queue, Sink, SinkState, Snapshot};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Attributes and signals that change before a batch, and what requests that begin with it were asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Updates {
    /// JSON objects, by rid.
    pub(crate) attributes: BTreeMap<String, Arc<str>>,
    /// By rid.
    pub(crate) asked: BTreeMap<String, AskedRequest>,
    pub(crate) signals: Option<Snapshot>,
}

/// `signals.snapshot` of the contract, as written in TOML. A missing value is 0, or absent if the contract allows it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct WrittenSignals {
    ingress: WrittenQueue,
    sinks: Vec<WrittenSink>,
    live_requests: u64,
    scheduler: Option<WrittenLoad>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WrittenQueue {
    frames: u64,
    rows: u64,
    bytes: u64,
    oldest_age_ms: u64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenSink {
    name: String,
    #[serde(default)]
    state: WrittenState,
    #[serde(default)]
    backlog: WrittenQueue,
    #[serde(default)]
    backlog_tokens: u64,
    lag_frames: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum WrittenState {
    #[default]
    KeepingUp,
    Behind,
    Stalled,
    Away,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WrittenLoad {
    age_ms: u64,
    stale: bool,
    running: Option<u64>,
    waiting: Option<u64>,
    kv_cache_usage: Option<f64>,
}

impl From<WrittenSignals> for Snapshot {
    fn from(written: WrittenSignals) -> Snapshot {
        let WrittenSignals { ingress, sinks, live_requests, scheduler } = written;
        Snapshot {
            ingress: ingress.into(),
            sinks: sinks.into_iter().map(Sink::from).collect(),
            live_requests,
            scheduler: scheduler.map(Load::from),
        }
    }
}

impl From<WrittenQueue> for Queue {
    fn from(written: WrittenQueue) -> Queue {
        let WrittenQueue { frames, rows, bytes, oldest_age_ms } = written;
        Queue { frames, rows, bytes, oldest_age_ms }
    }
}

impl From<WrittenSink> for Sink {
    fn from(written: WrittenSink) -> Sink {
        let WrittenSink { name, state, backlog, backlog_tokens, lag_frames } = written;
        let state = match state {
            WrittenState::KeepingUp => SinkState::KeepingUp,
            WrittenState::Behind => SinkState::Behind,
            WrittenState::Stalled => SinkState::Stalled,
            WrittenState::Away => SinkState::Away,
        };
        let backlog = backlog.into();
        Sink { name, state, backlog, backlog_tokens, lag_frames }
    }
}

impl From<WrittenLoad> for Load {
    fn from(written: WrittenLoad) -> Load {
        let WrittenLoad { age_ms, stale, running, waiting, kv_cache_usage } = written;
        Load { age_ms, stale, running, waiting, kv_cache_usage }
    }
}
