//! Signals as text: in a scenario, and in the message in which a stream records those that it called plugins for.

use afterbay_runtime::signals::{Load, Queue, Sink, SinkState, Snapshot};
use afterbay_wire::{read_signals, signals_frame};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// `signals.snapshot` of the contract, as written. A missing value is 0, or absent if the contract allows it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct WrittenSignals {
    ingress: WrittenQueue,
    sinks: Vec<WrittenSink>,
    live_requests: u64,
    scheduler: Option<WrittenLoad>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
struct WrittenQueue {
    frames: u64,
    rows: u64,
    bytes: u64,
    oldest_age_ms: u64,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
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

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum WrittenState {
    #[default]
    KeepingUp,
    Behind,
    Stalled,
    Away,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
struct WrittenLoad {
    age_ms: u64,
    stale: bool,
    running: Option<u64>,
    waiting: Option<u64>,
    kv_cache_usage: Option<f64>,
}

/// The frame that records these signals.
pub(crate) fn record(signals: &Snapshot) -> Option<Bytes> {
    serde_json::to_value(WrittenSignals::from(signals)).ok().map(|signals| signals_frame(&signals))
}

/// The signals that this frame records. `None`: it records none.
pub fn recorded_signals(frame: &[u8]) -> Option<Snapshot> {
    serde_json::from_value::<WrittenSignals>(read_signals(frame)?).ok().map(Snapshot::from)
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

impl From<&Snapshot> for WrittenSignals {
    fn from(snapshot: &Snapshot) -> WrittenSignals {
        let Snapshot { ingress, sinks, live_requests, scheduler } = snapshot;
        WrittenSignals {
            ingress: ingress.into(),
            sinks: sinks.iter().map(WrittenSink::from).collect(),
            live_requests: *live_requests,
            scheduler: scheduler.as_ref().map(WrittenLoad::from),
        }
    }
}

impl From<&Queue> for WrittenQueue {
    fn from(queue: &Queue) -> WrittenQueue {
        let Queue { frames, rows, bytes, oldest_age_ms } = *queue;
        WrittenQueue { frames, rows, bytes, oldest_age_ms }
    }
}

impl From<&Sink> for WrittenSink {
    fn from(sink: &Sink) -> WrittenSink {
        let state = match sink.state {
            SinkState::KeepingUp => WrittenState::KeepingUp,
            SinkState::Behind => WrittenState::Behind,
            SinkState::Stalled => WrittenState::Stalled,
            SinkState::Away => WrittenState::Away,
        };
        WrittenSink {
            name: sink.name.clone(),
            state,
            backlog: (&sink.backlog).into(),
            backlog_tokens: sink.backlog_tokens,
            lag_frames: sink.lag_frames,
        }
    }
}

impl From<&Load> for WrittenLoad {
    fn from(load: &Load) -> WrittenLoad {
        let Load { age_ms, stale, running, waiting, kv_cache_usage } = *load;
        WrittenLoad { age_ms, stale, running, waiting, kv_cache_usage }
    }
}
