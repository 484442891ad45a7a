//! The answer of `/v1/status`. `docs/src/operate/admin.md` describes each field.

use super::StatusSource;
use super::history::Key;
use super::journal_space::Limit;
use super::reading::{Between, Buckets, Readings, StreamReading};
use crate::plugins::{PluginView, rfc3339};
use crate::signals::StreamLoad;
use afterbay_events::{Condition, Severity, SinkCounters, StreamCounters};
use afterbay_journal_view::follower::CopyStatus;
use afterbay_scheduler::signals::{LoadSnapshot, LoadValues, SourceReport};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

/// The time at which the process started.
pub(super) struct Process {
    pub(super) started: SystemTime,
    pub(super) begun: Instant,
}

#[derive(Serialize)]
pub(super) struct Answer<'a> {
    version: &'static str,
    commit: Option<&'static str>,
    pid: u32,
    started: String,
    uptime_seconds: f64,
    time: String,
    ready: bool,
    conditions: Vec<ConditionView>,
    copies: Vec<CopyStatus>,
    streams: Vec<StreamView>,
    /// The second of the last points of `/v1/status/history`, Unix time; 0 without one.
    history_end: u64,
    plugins: &'a [PluginView],
    /// Whether a stream did not answer in time: `plugins` is then the last known answer.
    plugins_stale: bool,
}

#[derive(Serialize)]
struct ConditionView {
    /// The kind of the condition.
    condition: String,
    /// The whole key, as `/readyz` shows it: the kind, and the stream and the part that it is about.
    key: String,
    text: String,
    severity: &'static str,
    since: String,
}

#[derive(Serialize)]
struct StreamView {
    name: String,
    receiving: bool,
    senders: u64,
    requests_live: u64,
    /// Those that ended since the start, by cause; a cause without an end is left out.
    requests_ended: BTreeMap<&'static str, u64>,
    leases: Leases,
    rates: Rates,
    frame_seconds: Option<Quantiles>,
    /// Until `first_token_until`.
    first_token_seconds: Option<Quantiles>,
    /// `taken` if a reader counts what it has finished, else `sent`.
    first_token_until: &'static str,
    ledger: Ledger,
    /// `None` without a source. Stale values are the last known ones.
    load: Option<LoadSnapshot>,
    load_source: Option<SourceReport>,
    journal: Journal,
    sinks: Vec<SinkView>,
}

/// Requests whose client has left, and with which the engine goes on.
#[derive(Serialize)]
struct Leases {
    live: u64,
    begun: u64,
    renewed: u64,
    refused: u64,
}

#[derive(Default, Serialize)]
struct Rates {
    frames_received: f64,
    rows_received: f64,
    tokens_received: f64,
    tokens_forwarded: f64,
    rows_joined: f64,
}

#[derive(Serialize)]
struct Quantiles {
    p50: f64,
    p99: f64,
}

#[derive(Serialize)]
struct Ledger {
    tokens_received: u64,
    tokens_forwarded: u64,
    tokens_dropped: u64,
    tokens_swallowed: u64,
    tokens_held: u64,
    rows_replaced: u64,
    gaps: u64,
    imbalances: u64,
}

#[derive(Serialize)]
struct Journal {
    bytes: u64,
    bytes_max: Option<u64>,
    bytes_per_second: f64,
    full_in_seconds: Option<f64>,
    /// The limit that `full_in_seconds` is about.
    full_by: Option<Limit>,
    failing: bool,
    frame: u64,
    durable_frame: u64,
}

#[derive(Serialize)]
struct SinkView {
    name: String,
    state: &'static str,
    connected: bool,
    /// Sentence that says where waiting rows are joined for this reader; `None` before the stream runs.
    joins: Option<String>,
    waiting_rows: u64,
    waiting_tokens: u64,
    oldest_seconds: f64,
    queue_frames: u64,
    /// `None` if the reader has no credit page.
    lag_frames: Option<u64>,
    spilled_frames: u64,
    rows_per_second: u64,
    rows_joined: u64,
}

impl<'a> Answer<'a> {
    pub(super) fn new(
        source: &StatusSource,
        process: &Process,
        readings: &Readings,
        history_end: u64,
        (plugins, plugins_stale): (&'a [PluginView], bool),
    ) -> Answer<'a> {
        let streams = source.signals.streams().into_iter();
        Answer {
            version: env!("CARGO_PKG_VERSION"),
            commit: crate::COMMIT,
            pid: std::process::id(),
            started: rfc3339(process.started),
            uptime_seconds: in_ms(process.begun.elapsed()),
            time: rfc3339(SystemTime::now()),
            ready: source.health.is_ready(),
            conditions: source.health.conditions().into_iter().map(ConditionView::new).collect(),
            copies: source.follower.copies(),
            streams: streams.map(|stream| StreamView::new(stream, source, readings)).collect(),
            history_end,
            plugins,
            plugins_stale,
        }
    }
}

/// The figures of every stream at the last reading, for the history. A figure that is not known is left out.
pub(super) fn values(source: &StatusSource, readings: &Readings) -> BTreeMap<Key, f64> {
    let mut values = BTreeMap::new();
    for stream in source.signals.streams() {
        // Without a growth in the last second the rates are those of no time.
        let is_known = readings.second(&stream.stream).is_some();
        let StreamView { name, rates, first_token_seconds: first, load, requests_live, sinks, .. } =
            StreamView::new(stream, source, readings);
        let load = load.as_ref().and_then(LoadSnapshot::fresh);
        let load = |of: fn(&LoadValues) -> Option<u64>| load.and_then(of).map(|count| count as f64);
        let known = [
            ("tokens_received", is_known.then_some(rates.tokens_received)),
            ("tokens_forwarded", is_known.then_some(rates.tokens_forwarded)),
            ("first_token_p50", first.as_ref().map(|times| times.p50)),
            ("first_token_p99", first.as_ref().map(|times| times.p99)),
            ("running", load(|load| load.running)),
            ("waiting", load(|load| load.waiting)),
            ("requests_live", Some(requests_live as f64)),
        ];
        let known = known.into_iter().filter_map(|(figure, value)| Some((figure.to_owned(), value?)));
        let waiting = sinks
            .into_iter()
            .map(|sink| (format!("waiting_tokens/{}", sink.name), sink.waiting_tokens as f64));
        values.extend(known.chain(waiting).map(|(figure, value)| ((name.clone(), figure), value)));
    }
    values
}

impl ConditionView {
    fn new((key, condition): (String, Condition)) -> ConditionView {
        ConditionView {
            condition: key.split(':').next().unwrap_or(&key).to_owned(),
            key,
            text: condition.text,
            severity: match condition.severity {
                Severity::NotReady => "not_ready",
                Severity::Degraded => "degraded",
            },
            since: rfc3339(condition.since),
        }
    }
}

impl StreamView {
    fn new(stream: StreamLoad, source: &StatusSource, readings: &Readings) -> StreamView {
        let StreamLoad { stream: name, sinks, load, load_source } = stream;
        let counters = source.metrics.stream(&name);
        let (leases, times) = (source.metrics.leases(&name), readings.ten_seconds(&name));
        let plugins = source.metrics.plugins_of(&name);
        let tokens_held = plugins.iter().map(|(_, plugin)| plugin.held_tokens.get()).sum();
        let sinks: Vec<_> = sinks
            .into_iter()
            .map(|sink| {
                let counters = source.metrics.sink(&name, &sink);
                SinkView::new(source.sinks.joins(&name, &sink), sink, &counters)
            })
            .collect();
        let is_taken = sinks.iter().any(|sink| sink.lag_frames.is_some());
        let first_token: fn(&StreamReading) -> &Buckets = match is_taken {
            true => |stream| &stream.first_token_taken_seconds,
            false => |stream| &stream.first_token_seconds,
        };
        StreamView {
            receiving: counters.receiving.get() == 1,
            senders: counters.senders.get(),
            requests_live: counters.requests_live.get(),
            requests_ended: counters.requests_ended.each().filter(|(_, count)| *count > 0).collect(),
            leases: Leases {
                live: leases.live.get(),
                begun: leases.begun.get(),
                renewed: leases.renewed.get(),
                refused: leases.refused.get(),
            },
            rates: readings.second(&name).map_or_else(Rates::default, |second| Rates::new(&second)),
            frame_seconds: times
                .as_ref()
                .and_then(|times| Quantiles::of(&times.times(|stream| &stream.frame_seconds))),
            first_token_seconds: times.as_ref().and_then(|times| Quantiles::of(&times.times(first_token))),
            first_token_until: if is_taken { "taken" } else { "sent" },
            ledger: Ledger::new(&counters, tokens_held),
            load,
            load_source,
            journal: Journal::new(&name, &counters, source.retain_bytes, readings),
            sinks,
            name,
        }
    }
}

impl Rates {
    fn new(second: &Between<'_>) -> Rates {
        Rates {
            frames_received: tenths(second.rate(|stream| stream.frames_received)),
            rows_received: tenths(second.rate(|stream| stream.rows_received)),
            tokens_received: tenths(second.rate(|stream| stream.tokens_received)),
            tokens_forwarded: tenths(second.rate(|stream| stream.tokens_forwarded)),
            rows_joined: tenths(second.rate(|stream| stream.rows_joined)),
        }
    }
}

impl Quantiles {
    fn of(times: &Buckets) -> Option<Quantiles> {
        Some(Quantiles { p50: times.quantile(0.5)?, p99: times.quantile(0.99)? })
    }
}

impl Ledger {
    fn new(counters: &StreamCounters, tokens_held: u64) -> Ledger {
        Ledger {
            tokens_received: counters.tokens_received.get(),
            tokens_forwarded: counters.tokens_forwarded.get(),
            tokens_dropped: counters.tokens_dropped.get(),
            tokens_swallowed: counters.tokens_swallowed.get(),
            tokens_held,
            rows_replaced: counters.rows_replaced.get(),
            gaps: counters.request_gaps.get(),
            imbalances: counters.request_imbalances.get(),
        }
    }
}

impl Journal {
    fn new(stream: &str, counters: &StreamCounters, bytes_max: Option<u64>, readings: &Readings) -> Journal {
        let space = readings.last().map(|last| &last.space);
        let (of_stream, of_all) = readings.journal_rates(stream).unwrap_or_default();
        let full = space.and_then(|space| space.room(bytes_max)).filter(|_| of_all > 0.0);
        Journal {
            bytes: space.map_or(0, |space| space.bytes(stream)),
            bytes_max,
            bytes_per_second: tenths(of_stream),
            full_in_seconds: full.map(|(left, _)| (left as f64 / of_all).round()),
            full_by: full.map(|(_, limit)| limit),
            failing: counters.journal_failing.get() == 1,
            frame: counters.journal_frame.get(),
            durable_frame: counters.journal_durable_frame.get(),
        }
    }
}

impl SinkView {
    fn new(joins: Option<String>, name: String, counters: &SinkCounters) -> SinkView {
        SinkView {
            name,
            joins,
            state: counters.state.word(),
            connected: counters.connected.get() == 1,
            waiting_rows: counters.waiting_rows.get(),
            waiting_tokens: counters.waiting_tokens.get(),
            oldest_seconds: in_ms(counters.waiting_oldest_seconds.get()),
            queue_frames: counters.queue_frames.get(),
            lag_frames: (counters.credit_usable.get() == 1).then(|| counters.lag_frames.get()),
            spilled_frames: counters.spilled_frames.get(),
            rows_per_second: counters.rows_per_second.get(),
            rows_joined: counters.rows_joined.get(),
        }
    }
}

/// Seconds, to the millisecond.
fn in_ms(time: Duration) -> f64 {
    time.as_millis() as f64 / 1000.0
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
