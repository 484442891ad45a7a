//! A trial: recorded frames pass through the stages of a stream, off the path.
//!
//! The stages are those of a running stream, with the times of the records. Nothing is written, sent or aborted: the journal
//! discards its bytes, there is no sink and no upstream, and no call reaches a service.

use crate::build::{PlannedSink, held_row_joins};
use crate::frame_load::FrameLoadReader;
use crate::markers::ReleaseMarkers;
use crate::setup::SinkSetup;
use crate::stages::Stages;
use crate::written_signals::recorded_signals;
use afterbay_batch::frame_log::FrameLog;
use afterbay_batch::hold::HeldRows;
use afterbay_batch::ledger::{AttributesOf, Ledger, LedgerLinks, RestartGap};
use afterbay_batch::records::{JournalPolicy, RecordCopy, Records};
use afterbay_batch::{FrameDecoder, Received, RoutingTable, Timestamp};
use afterbay_chain::{
    CallDone, CallHandle, CallService, Chain, ChainCalls, ChainTelemetry, PluginSetup, PluginStatus,
};
use afterbay_config as config;
use afterbay_events::{Event, Events, Health, HoldEnd, Metrics, PluginCounters, Recorder, StreamTelemetry};
use afterbay_journal::reader::OperatorAbort;
use afterbay_journal::storage::DiscardingStorage;
use afterbay_journal::{Background, FrameNo, JournalDirectory, JournalOptions, OpenError, SyncPolicy};
use afterbay_wire::Layouts;
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The time between two searches for abandoned requests, as in a running stream.
const ABANDON_EVERY: Duration = Duration::from_secs(60);

/// Rounds of answers between two frames.
const ANSWER_ROUNDS: usize = 64;

/// The parts of a [`Trial`].
pub struct TrialSetup {
    /// The checked configuration of the stream.
    pub config: config::Stream,
    /// The sinks, in the order of the configuration. No sink is connected.
    pub sinks: Vec<SinkSetup>,
    /// The layouts of the stream's msgpack frames.
    pub layouts: Layouts,
    /// The plugins, in the order of the configuration.
    pub plugins: Vec<PluginSetup>,
    /// The source of request attributes for plugins.
    pub attributes: AttributesOf,
    /// Time without a row after which a request is closed.
    pub abandon_after: Duration,
    /// The time of the first frame, in Unix nanoseconds.
    pub begins_unix_ns: u64,
    /// The metrics that the plugins' own series go to.
    pub metrics: Metrics,
}

/// A plugin of a trial.
pub struct TrialPlugin {
    /// The plugin's status.
    pub status: PluginStatus,
    /// The counters of a running stream's plugin.
    pub counters: Arc<PluginCounters>,
}

/// A stream off the path.
pub struct Trial {
    stages: Stages,
    clock: RecordedClock,
    abandon_after: Duration,
    abandon_at: Instant,
    /// Whether a frame had signals.
    has_signals: bool,
    calls: Arc<NoService>,
    metrics: Metrics,
    events: Recorder,
    stream: String,
}

/// Recorded times as points of the monotonic clock. Time never goes back.
struct RecordedClock {
    begun: Timestamp,
    now: Timestamp,
}

impl RecordedClock {
    fn at(&self, unix_ns: u64) -> Timestamp {
        let since = Duration::from_nanos(unix_ns.saturating_sub(self.begun.unix_ns));
        let instant = self.begun.instant.checked_add(since).unwrap_or(self.now.instant);
        Timestamp { instant: instant.max(self.now.instant), unix_ns }
    }

    fn at_instant(&self, instant: Instant) -> Timestamp {
        let since = instant.saturating_duration_since(self.begun.instant);
        Timestamp { instant, unix_ns: self.begun.unix_ns.saturating_add(since.as_nanos() as u64) }
    }
}

/// Accepts calls and answers none.
#[derive(Default)]
struct NoService(AtomicU64);

impl CallService for NoService {
    fn send(&self, _endpoint: &str, _body: Bytes, _done: CallDone) -> CallHandle {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::new(())
    }
}

impl Trial {
    /// Starts the plugins, without a live request.
    pub fn start(setup: TrialSetup) -> Result<Trial, OpenError> {
        let TrialSetup { config, sinks, layouts, plugins, attributes, abandon_after, metrics, .. } = setup;
        let stream = config.name.to_string();
        let options = JournalOptions { sync: SyncPolicy::None, abandon_after, ..JournalOptions::default() };
        let storage = Arc::new(DiscardingStorage::default());
        let directory = JournalDirectory::open_on(storage, Path::new("/trial"), options, Background::Caller)?;
        let (writer, recovered) = directory.stream(&stream)?;
        let (events, recorder) = Events::recorded();
        let health = Health::default();
        let telemetry =
            StreamTelemetry { stream: stream.as_str().into(), events, counters: metrics.stream(&stream) };
        let begun = Timestamp { instant: Instant::now(), unix_ns: setup.begins_unix_ns };
        let sinks: Vec<PlannedSink> = sinks.into_iter().map(PlannedSink::new).collect();
        let routing = Arc::new(RoutingTable::new(sinks.iter().map(PlannedSink::target).collect()));
        let policy = JournalPolicy::default();
        let journal = Some(Arc::new(writer.reader()));
        let mut records = Records::new(writer, policy, &recovered, telemetry.clone(), health.clone(), begun);
        records.keep_copies();
        let attributes = Some(attributes);
        let (links, gap) =
            (LedgerLinks { attributes, journal, ..LedgerLinks::default() }, RestartGap::default());
        let ledger = Ledger::new(&recovered.live, links, gap, routing, telemetry.clone(), begun);
        let calls = Arc::new(NoService::default());
        let chain_calls = ChainCalls::new(calls.clone(), Arc::new(|| ()));
        let outputs = ChainTelemetry { stream: telemetry, metrics: metrics.clone(), health };
        let chain = Chain::start(plugins, chain_calls, outputs, None, &ledger, begun);
        let stages = Stages {
            frame_log: FrameLog::new(records, &recovered),
            decoder: FrameDecoder::new(layouts),
            ledger,
            chain,
            held_rows: HeldRows::new(held_row_joins(&sinks)),
            markers: ReleaseMarkers::new(recovered.last_frame),
            frame_load: FrameLoadReader::default(),
        };
        Ok(Trial {
            stages,
            clock: RecordedClock { begun, now: begun },
            abandon_after,
            abandon_at: begun.instant + ABANDON_EVERY,
            has_signals: false,
            calls,
            metrics,
            events: recorder,
            stream,
        })
    }

    /// Does what is due before this time, then carries a frame that was received at this time. Returns the frame's number in
    /// the trial, which counts release markers, too.
    pub fn frame(&mut self, bytes: Bytes, received_unix_ns: u64) -> FrameNo {
        let at = self.clock.at(received_unix_ns);
        self.advance(at.instant);
        self.clock.now = at;
        if let Some(signals) = recorded_signals(&bytes) {
            self.has_signals = true;
            self.stages.chain.set_signals(&signals, true, &self.stages.ledger, at);
        }
        self.stages.frame_log.persist(Received { bytes, at }, at);
        let frame = self.stages.frame_log.last_frame();
        self.carry(at);
        frame
    }

    /// Makes the next row of this rid the request's last, as an operator's abort does. Does nothing if no request has the rid.
    pub fn abort(&mut self, rid: &str) {
        let Some(live) = self.stages.ledger.request_status(rid).live else { return };
        for step in [OperatorAbort::Expected, OperatorAbort::Due] {
            self.stages.ledger.set_operator_abort(rid, live.number, step, &mut self.stages.frame_log.records);
        }
    }

    /// Releases all held rows: first those whose time is over by and by, then the others, as at the end of a stream.
    pub fn end(&mut self) {
        while let Some(due) = self.held_rows_deadline() {
            self.work(due);
        }
        self.stages.held_rows.end_all(HoldEnd::Stop);
        let now = self.clock.now;
        while self.release(now) {}
    }

    /// Does what is due up to this time, each at its own time.
    fn advance(&mut self, until: Instant) {
        while let Some(due) = self.deadline().filter(|due| *due <= until) {
            self.work(due);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let deadlines = [self.stages.chain.deadline(), self.held_rows_deadline(), Some(self.abandon_at)];
        deadlines.into_iter().flatten().min()
    }

    /// In a stream, rows that may leave at once do so after the frames that have arrived. A trial does not know how many these were.
    fn held_rows_deadline(&self) -> Option<Instant> {
        self.stages.held_rows.deadline(self.clock.now.instant + config::bounds::PLUGIN_HOLD.1)
    }

    /// One turn of a stream without a new frame.
    fn work(&mut self, due: Instant) {
        // A deadline in the past must not stop the time.
        let now = self.clock.at_instant(due.max(self.clock.now.instant + Duration::from_nanos(1)));
        self.clock.now = now;
        self.stages.tick_chain(now);
        self.deliver_answers(now);
        self.release(now);
        if now.instant >= self.abandon_at {
            self.abandon_at = now.instant + ABANDON_EVERY;
            let abandon_after = self.abandon_after;
            self.stages.close_abandoned(abandon_after, now);
        }
    }

    /// Releases the held rows that are due, if there are any.
    fn release(&mut self, now: Timestamp) -> bool {
        let is_due = self.stages.persist_release_marker(now);
        self.carry(now);
        is_due
    }

    fn carry(&mut self, now: Timestamp) {
        while let Some(persisted) = self.stages.frame_log.next(now) {
            let stages = &mut self.stages;
            // The settled frame goes to no sink.
            let _settled = match stages.markers.is_marker(&persisted) {
                true => stages.release(persisted, now),
                false => stages.run(persisted, false, now),
            };
            self.deliver_answers(now);
        }
    }

    /// Delivers the outcomes of calls that cannot be made. A plugin may make another such call for each outcome.
    fn deliver_answers(&mut self, now: Timestamp) {
        for _ in 0..ANSWER_ROUNDS {
            if !self.stages.deliver_answers(now) {
                return;
            }
        }
    }

    /// Takes the records since the last call: outcomes of frames, and ends of requests.
    pub fn take_records(&mut self) -> Vec<RecordCopy> {
        self.stages.frame_log.records.take_copies()
    }

    /// Takes the events since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        let events = self.events.all();
        self.events.clear();
        events
    }

    /// The number of calls of plugins that no service got.
    pub fn calls_not_sent(&self) -> u64 {
        self.calls.0.load(Ordering::Relaxed)
    }

    /// Whether a plugin reads the signals, and no frame had any.
    pub fn lacks_signals(&self) -> bool {
        self.stages.chain.wants_signals() && !self.has_signals
    }

    /// The plugins, in the order of the chain.
    pub fn plugins(&self) -> Vec<TrialPlugin> {
        let plugin = |status: PluginStatus| TrialPlugin {
            counters: self.metrics.plugin(&self.stream, &status.plugin),
            status,
        };
        self.stages.chain.statuses().into_iter().map(plugin).collect()
    }
}
