//! The answers of the admin address, as far as `afterbay top` shows them.
//!
//! A field that an older or newer Afterbay does not send has its default, so that the other fields can still be shown.

use serde::Deserialize;
use std::collections::BTreeMap;

use crate::top::text::safe;

/// The answer to `GET /v1/status`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    pub(crate) version: String,
    pub(crate) commit: Option<String>,
    pub(crate) pid: u32,
    /// The start of the process, RFC 3339.
    pub(crate) started: String,
    pub(crate) uptime_seconds: f64,
    /// The time of the answer, RFC 3339.
    pub(crate) time: String,
    pub(crate) ready: bool,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) copies: Vec<Copied>,
    pub(crate) streams: Vec<Stream>,
    pub(crate) plugins: Vec<Plugin>,
}

/// A reason why Afterbay is degraded or not ready.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Condition {
    pub(crate) condition: String,
    pub(crate) text: String,
    /// `degraded` or `not_ready`.
    pub(crate) severity: String,
}

/// A copy of the journal: the archive, the replica in NATS, or the records of usage.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Copied {
    /// The table of the configuration: `archive`, `replicate` or `usage`.
    pub(crate) copy: String,
    pub(crate) to: String,
    /// `working` or `failing`.
    pub(crate) state: String,
    pub(crate) lag_seconds: Option<f64>,
    /// The last error, while the copy fails.
    pub(crate) error: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Stream {
    pub(crate) name: String,
    pub(crate) receiving: bool,
    pub(crate) senders: u64,
    pub(crate) requests_live: u64,
    pub(crate) requests_finished: u64,
    pub(crate) rates: Rates,
    /// From the receipt of a frame until the kernel has it for the sink, over the last 10 s.
    pub(crate) frame_seconds: Option<Quantiles>,
    /// The same for first rows of requests, until `first_token_until`.
    pub(crate) first_token_seconds: Option<Quantiles>,
    /// `taken` by the reader, as its credit page says, or else `sent` to it.
    pub(crate) first_token_until: String,
    pub(crate) ledger: Ledger,
    pub(crate) scheduler: Option<Scheduler>,
    pub(crate) journal: Option<Journal>,
    pub(crate) sinks: Vec<Sink>,
}

/// Figures per second.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Rates {
    pub(crate) frames_received: f64,
    pub(crate) rows_received: f64,
    pub(crate) tokens_received: f64,
    pub(crate) tokens_forwarded: f64,
    pub(crate) rows_joined: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Quantiles {
    pub(crate) p50: Option<f64>,
    pub(crate) p99: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Ledger {
    pub(crate) tokens_received: u64,
    pub(crate) tokens_forwarded: u64,
    pub(crate) tokens_dropped: u64,
    pub(crate) tokens_swallowed: u64,
    pub(crate) tokens_held: u64,
    pub(crate) rows_replaced: u64,
    pub(crate) gaps: u64,
    pub(crate) imbalances: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Scheduler {
    /// Whether the figures are not stale.
    pub(crate) fresh: bool,
    pub(crate) running: Option<f64>,
    pub(crate) waiting: Option<f64>,
    /// The share of the KV cache in use, from 0 to 1.
    pub(crate) kv_usage: Option<f64>,
    pub(crate) age_seconds: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Journal {
    pub(crate) bytes: u64,
    pub(crate) bytes_max: Option<u64>,
    pub(crate) bytes_per_second: f64,
    pub(crate) full_in_seconds: Option<f64>,
    pub(crate) failing: bool,
    /// The last frame that was written.
    pub(crate) frame: Option<u64>,
    /// The last frame that a sync has reached.
    pub(crate) durable_frame: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Sink {
    pub(crate) name: String,
    /// `keeping_up`, `behind`, `stalled` or `away`.
    pub(crate) state: String,
    pub(crate) waiting_rows: u64,
    pub(crate) waiting_tokens: u64,
    /// The age of the oldest row that waits.
    pub(crate) oldest_seconds: Option<f64>,
    pub(crate) lag_frames: Option<u64>,
    pub(crate) spilled_frames: u64,
    pub(crate) rows_per_second: f64,
    pub(crate) rows_joined: u64,
}

/// A plugin of a stream, as `GET /v1/plugins` gives it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Plugin {
    pub(crate) stream: String,
    pub(crate) plugin: String,
    pub(crate) source: String,
    pub(crate) component: String,
    pub(crate) version: String,
    pub(crate) digest: String,
    /// The digest of a version that catches up and then takes over.
    pub(crate) next_digest: Option<String>,
    /// `live`, `shadow`, `down` or `quarantined`.
    pub(crate) state: String,
    /// The reason for `down` or `quarantined`.
    pub(crate) why: Option<String>,
    pub(crate) not_ready: Option<String>,
    pub(crate) on_fault: String,
    pub(crate) memory_bytes: u64,
    pub(crate) requests_open: u64,
    pub(crate) rows: u64,
    pub(crate) ns_per_row: Option<f64>,
    pub(crate) verdicts: BTreeMap<String, u64>,
    pub(crate) faults: BTreeMap<String, u64>,
    pub(crate) last_reload: Option<LastReload>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct LastReload {
    pub(crate) ago_s: u64,
    /// The reason why the earlier version stayed.
    pub(crate) refused: Option<String>,
}

/// The answer to `GET /v1/requests`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct RequestPage {
    /// Newest first.
    pub(crate) requests: Vec<Request>,
    /// The cursor of the next page.
    pub(crate) next: Option<Cursor>,
    pub(crate) known: Option<u64>,
    pub(crate) kept: Option<u64>,
}

/// A place in the list of requests, opaque to everybody but the server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub(crate) enum Cursor {
    Number(u64),
    Text(String),
}

/// A request, with the fields of `afterbay journal ls --json`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Request {
    pub(crate) stream: String,
    pub(crate) rid: String,
    pub(crate) request: u64,
    /// `live`, `finished` or `abandoned`.
    pub(crate) state: String,
    pub(crate) rows: u64,
    pub(crate) tokens_received: u64,
    pub(crate) tokens_forwarded: u64,
    pub(crate) tokens_dropped: u64,
    pub(crate) tokens_replaced: u64,
    pub(crate) gaps: u64,
    pub(crate) first_time: Option<String>,
    pub(crate) last_time: Option<String>,
    pub(crate) finish_reason: Option<String>,
    pub(crate) completion_tokens: Option<u64>,
    /// The plugins that acted on the request.
    pub(crate) plugins: Vec<String>,
}

/// The version of a process, with its commit if it is known.
pub(crate) fn version(status: &Status) -> String {
    match &status.commit {
        Some(commit) => format!("{} ({})", safe(&status.version), safe(commit)),
        None => safe(&status.version),
    }
}
