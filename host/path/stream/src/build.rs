//! Builds the pipeline: at the start, and after a panic from the journal and the parts that outlived the panic.
//!
//! Owns the plan: the configuration of a stream, which stays while pipelines come and go.

mod planned;
mod rescue;

pub(crate) use planned::{PlannedSink, held_row_joins};
pub(crate) use rescue::{Rescued, rescue};

use rescue::LastingStages;

use crate::clock::Clock;
use crate::delivery::{
    Budget, Delivery, ReaderCount, Resume, Router, Sink, SinkSender, StartError, UnconfirmedFrames,
    push_options,
};
use crate::frame_load::FrameLoadReader;
use crate::markers::ReleaseMarkers;
use crate::pipeline::Pipeline;
use crate::poison::PoisonDetector;
use crate::pressure::Pressure;
use crate::receive::Receive;
use crate::report::Report;
use crate::setup::{Reopen, Setup};
use crate::stages::Stages;
use afterbay_batch::frame_log::FrameLog;
use afterbay_batch::hold::{HeldRows, HoldTimes};
use afterbay_batch::ledger::{Ledger, LedgerLinks, RestartGap};
use afterbay_batch::records::{JournalPolicy, Records};
use afterbay_batch::{FrameDecoder, Joins, RoutingTable, Timestamp};
use afterbay_chain::{Chain, ChainCalls, ChainTelemetry, JournalSource, TakenOver};
use afterbay_config as config;
use afterbay_events::event::{HoldLost, JournalNotice, NotContinued, SinkRemoved, SinkResuming, SinkSettled};
use afterbay_events::{Health, SinkCounters, StreamTelemetry};
use afterbay_journal::{BacklogItem, FrameNo, JournalWriter, RecoveredStream, SinkProgress};
use afterbay_sockets::{
    CreditOptions, InheritedPush, KeepAs, Lasting, Pull, PullOptions, Push, PushOptions, TokenRange,
};
use afterbay_supervision::fdstore::FdName;
use afterbay_wire::Layouts;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The poll's token of the waker. The sockets' tokens follow.
pub(crate) const WAKER: mio::Token = mio::Token(0);
/// Time between two looks at the readers' counts at the start.
const COUNT_EVERY: Duration = Duration::from_millis(10);
/// The longest time of one plugin's replay at a hand-over. The stream stands still meanwhile.
const REPLAY_PAUSE_MAX: Duration = Duration::from_secs(5);

/// The configuration of a stream, from which its pipelines are built.
pub(crate) struct Plan {
    pub(crate) config: config::Stream,
    pub(crate) sinks: Vec<PlannedSink>,
    /// The counters of each sink.
    sink_counters: Vec<Arc<SinkCounters>>,
    routing: Arc<RoutingTable>,
    pub(crate) layouts: Layouts,
    journal_policy: JournalPolicy,
    spill_max: u64,
    budget: Budget,
    reopen: Reopen,
    clock: Arc<dyn Clock>,
    pub(crate) waker: Arc<mio::Waker>,
    pub(crate) telemetry: StreamTelemetry,
    pub(crate) health: Health,
}

/// An open journal, and the decoder to read its frames.
struct OpenJournal {
    writer: JournalWriter,
    recovered: RecoveredStream,
    decoder: FrameDecoder,
}

/// Binds, connects, and builds the first pipeline.
pub(crate) fn start(
    setup: Setup,
    registry: &mio::Registry,
    waker: &Arc<mio::Waker>,
) -> Result<(Plan, Pipeline, Report), StartError> {
    let Setup { config, listen, sinks, layouts, journal, plugins, events, metrics, health, .. } = setup;
    let mut inherited = setup.inherited;
    let stream = config.name.to_string();
    let counters = metrics.stream(&stream);
    let telemetry = StreamTelemetry { stream: stream.as_str().into(), events, counters };
    let sinks: Vec<PlannedSink> = sinks.into_iter().map(PlannedSink::new).collect();
    let counters_of = |sink: &PlannedSink| metrics.sink(&stream, &sink.config.name);
    let plan = Plan {
        sink_counters: sinks.iter().map(counters_of).collect(),
        routing: Arc::new(RoutingTable::new(sinks.iter().map(PlannedSink::target).collect())),
        sinks,
        layouts,
        journal_policy: setup.journal_policy,
        spill_max: setup.spill_max,
        budget: setup.budget,
        reopen: setup.reopen,
        clock: setup.clock,
        waker: waker.clone(),
        telemetry: telemetry.clone(),
        health: health.clone(),
        config,
    };
    let mut journal = plan.open(journal, &plan.layouts);
    let now = plan.clock.now();

    let config = &plan.config;
    let pull_tokens = TokenRange { first: WAKER.0 + 1, count: 1 + config.max_peers };
    let pull_options = PullOptions {
        max_message_bytes: usize::try_from(config.max_message_bytes).unwrap_or(usize::MAX),
        listen_mode: config.listen_mode,
        max_peers: config.max_peers,
        last_frame: journal.recovered.last_frame.0,
        ..PullOptions::default()
    };
    let mut senders = Vec::new();
    let first_token = pull_tokens.first + pull_tokens.count;
    for (token, sink) in (first_token..).zip(&plan.sinks) {
        let credit = sink.config.credit.clone().map(CreditOptions::new);
        // The name in the journal: a new reader does not get the connection of another.
        let name = FdName::sink(&stream, &sink.name);
        let keep = Some(KeepAs { store: setup.fdstore.clone(), name: name.clone() });
        let options = PushOptions { credit, keep, ..push_options() };
        let tokens = TokenRange { first: token, count: 1 };
        let found = inherited.take(&name).map(|fds| InheritedPush::open(fds, &sink.connect));
        let push = match found.transpose() {
            Ok(Some(found)) => Push::adopt(registry, tokens, &sink.connect, options, found, now.instant),
            Ok(None) => Push::connect(registry, tokens, &sink.connect, options, now.instant),
            Err(why) => {
                let (stream, name, why) = (telemetry.stream.clone(), name.to_string(), why.to_string());
                telemetry.publish(NotContinued { stream, name, why, lost_bytes: 0 });
                Push::connect(registry, tokens, &sink.connect, options, now.instant)
            }
        };
        let push = push.map_err(|error| StartError::Connect { stream: stream.clone(), error })?;
        senders.push(SinkSender::new(push, sink.joins_under_pressure(config), now.instant));
    }
    let readers = plan.resume(&mut journal, senders, |sender| sender.push.is_connected());
    let lasting = Lasting { store: &setup.fdstore, stream: &stream, inherited: &mut inherited };
    let pull = Pull::bind(registry, pull_tokens, &listen, pull_options, Some(lasting))
        .map_err(|error| StartError::Bind { stream: stream.clone(), error })?;
    drop(inherited);
    let now = plan.clock.now();
    let names = plan.sinks.iter().map(|sink| sink.config.name.as_str());
    let sinks = names.zip(plan.sink_counters.iter().cloned());
    let report = Report::new(telemetry.clone(), health, sinks, now.instant);
    let gap = RestartGap::new(journal.recovered.last_frame, &journal.recovered.live);
    let attributes = (!plugins.is_empty()).then_some(setup.attributes);
    let reader = Some(Arc::new(journal.writer.reader()));
    let links = LedgerLinks {
        upstream: setup.upstream,
        leases: setup.leases,
        interrupted: setup.interrupted,
        attributes,
        journal: reader,
        records: setup.records,
        ..LedgerLinks::default()
    };
    let ledger = plan.ledger(&mut journal, links, gap, now);
    let outputs =
        ChainTelemetry { stream: telemetry.clone(), metrics: metrics.clone(), health: plan.health.clone() };
    let woken = waker.clone();
    // The waker fails only if the stream has ended.
    let calls = ChainCalls::new(setup.calls, Arc::new(move || drop(woken.wake())));
    let (handed_plugins, holds) = setup.handed_over.map(|state| (state.plugins, state.holds)).unzip();
    let layouts = plan.layouts.clone();
    let through = journal.recovered.last_frame;
    let start_chain = |ledger: &Ledger, records: &mut Records| {
        let mut journal = || {
            let (backlog, layouts) = (records.backlog_of_live_requests()?, layouts.clone());
            Some(JournalSource { time_max: REPLAY_PAUSE_MAX, backlog, through, layouts })
        };
        let taken_over = handed_plugins.map(|state| TakenOver { state, journal: &mut journal });
        Chain::start(plugins, calls, outputs, taken_over, ledger, now)
    };
    let lasting = LastingStages {
        receive: Receive::new(pull),
        pressure: Pressure::new(setup.scheduler, now.instant),
        frame_load: FrameLoadReader::new(setup.frame_loads, setup.connector),
        poison: PoisonDetector::default(),
    };
    let pipeline =
        plan.pipeline(journal, ledger, readers, lasting, start_chain, &holds.unwrap_or_default(), now);
    Ok((plan, pipeline, report))
}

impl Plan {
    /// Builds the pipeline after a panic, or after a hand-over that failed, as a restart would, but on the same connections. If
    /// the journal cannot be opened, `rescued` comes back unchanged, with the reason.
    pub(crate) fn rebuild(
        &self,
        rescued: Rescued,
        now: Timestamp,
    ) -> Result<Pipeline, (Box<Rescued>, String)> {
        let journal = match (self.reopen)() {
            Ok(journal) => journal,
            Err(error) => return Err((Box::new(rescued), error.to_string())),
        };
        let Rescued { mut lasting, layouts, mut chain, holds, links, senders } = rescued;
        let mut journal = self.open(journal, &layouts);
        // A hand-over has recorded what the readers that are away lack.
        let is_kept = |sender: &SinkSender| holds.is_none() || sender.push.is_connected();
        let readers = self.resume(&mut journal, senders, is_kept);
        // The journal may lack the frame that was last received. (It may also lack a release marker, which is made anew.)
        lasting.receive.receive_again(journal.recovered.last_frame);
        let ledger = self.ledger(&mut journal, links, RestartGap::default(), now);
        let restart_chain = |ledger: &Ledger, _: &mut Records| {
            match &holds {
                Some(_) => chain.continue_after_hand_over(),
                None => chain.restart_after_panic(ledger, now),
            }
            chain
        };
        let times = holds.as_deref().unwrap_or_default();
        Ok(self.pipeline(journal, ledger, readers, lasting, restart_chain, times, now))
    }

    fn open(
        &self,
        (mut writer, recovered): (JournalWriter, RecoveredStream),
        layouts: &Layouts,
    ) -> OpenJournal {
        let waker = self.waker.clone();
        // The waker fails only if the stream has ended.
        writer.on_change(Box::new(move || drop(waker.wake())));
        let counters = self.telemetry.counters.clone();
        writer.on_sync(Box::new(move |time| counters.journal_sync_seconds.observe(time)));
        OpenJournal { writer, recovered, decoder: FrameDecoder::new(layouts.clone()) }
    }

    /// The ledger with the live requests of the last run.
    fn ledger(
        &self,
        journal: &mut OpenJournal,
        links: LedgerLinks,
        gap: RestartGap,
        now: Timestamp,
    ) -> Ledger {
        let OpenJournal { writer, recovered, decoder } = journal;
        let (routing, telemetry) = (self.routing.clone(), self.telemetry.clone());
        let mut ledger = Ledger::new(&recovered.live, links, gap, routing, telemetry, now);
        ledger.restore_counts(&recovered.live, writer, decoder);
        // Only a choice of sinks, plugins and another engine need the requests' first rows.
        let config = &self.config;
        if self.sinks.len() > 1 || !config.plugins.is_empty() || config.migration.is_some() {
            ledger.restore_first_rows(&recovered.live, writer, decoder);
        }
        ledger
    }

    /// The rule for joining held rows: every reader of the stream must allow the join.
    pub(crate) fn held_row_joins(&self) -> Joins {
        held_row_joins(&self.sinks)
    }

    /// Finds out which frames of an earlier run each reader has. The connection of a kept sender knows. Otherwise the count of
    /// the reader does: waits while readers may still finish frames.
    fn resume(
        &self,
        journal: &mut OpenJournal,
        senders: Vec<SinkSender>,
        is_kept: impl Fn(&SinkSender) -> bool,
    ) -> Vec<(SinkSender, Resume)> {
        let OpenJournal { writer, recovered, decoder } = journal;
        let is_removed = |known: &&SinkProgress| {
            known.is_reader() && !self.sinks.iter().any(|sink| sink.name == known.name())
        };
        for removed in recovered.sinks.iter().filter(is_removed) {
            self.report_removed(removed, recovered.last_frame);
            writer.forget(removed.name());
        }
        let known = |sink: &PlannedSink| recovered.sinks.iter().find(|known| known.name() == sink.name);
        let unconfirmed = self.sinks.iter().zip(&senders).map(|(sink, sender)| {
            if is_kept(sender) {
                return None;
            }
            let page = sink.config.credit.as_deref();
            let frames = UnconfirmedFrames::of(known(sink)?, page, recovered, writer, decoder)?;
            if frames.sent() > 0 {
                let (stream, sink) = (self.telemetry.stream.clone(), sink.name.as_str().into());
                self.telemetry.publish(SinkResuming { stream, sink, frames: frames.sent() });
            }
            Some(frames)
        });
        let counts = wait_for_counts(unconfirmed.collect(), &*self.clock);
        let now = self.clock.now().instant;
        let readers =
            self.sinks.iter().zip(senders.into_iter().zip(counts)).map(|(sink, (mut sender, count))| {
                let resume = match known(sink) {
                    _ if is_kept(&sender) => Resume::after_panic(&sink.name, recovered, &sender, writer),
                    Some(known) => Resume::after_restart(known, recovered, count, writer, decoder),
                    None => {
                        writer.taken(&sink.name, 0, recovered.last_frame, None, 0);
                        Resume::for_new_reader(&sink.name, recovered.last_frame)
                    }
                };
                self.report_unconfirmed(sink, &resume);
                if !is_kept(&sender) {
                    // The next frame reports a failing disk, and the next start then knows as much as this one. Until then no
                    // reader is connected: its connection could outlive this process, and what it has confirmed would be lost.
                    let is_recorded = known(sink).is_none() || writer.flush().is_ok();
                    sender.push.hold(!is_recorded);
                    sender.begin_after(resume.progress.last_sent(), resume.confirmed, now);
                }
                (sender, resume)
            });
        let readers = readers.collect();
        self.report_unrecorded(journal);
        readers
    }

    /// Publishes the frames that the reader of a removed sink may lack. A sink with a new reader is not removed.
    fn report_removed(&self, removed: &SinkProgress, last: FrameNo) {
        let name = removed.name().split('@').next().unwrap_or_default();
        let frames = removed.open_frames(last);
        if frames > 0 && self.sinks.iter().all(|sink| sink.config.name.as_str() != name) {
            let (stream, sink) = (self.telemetry.stream.clone(), name.into());
            self.telemetry.publish(SinkRemoved { stream, sink, frames });
        }
    }

    /// Publishes the number of frames that the reader may or may not have.
    fn report_unconfirmed(&self, sink: &PlannedSink, resume: &Resume) {
        let unconfirmed_frames = resume.unconfirmed;
        if unconfirmed_frames > 0 {
            let (stream, sink) = (self.telemetry.stream.clone(), sink.name.as_str().into());
            self.telemetry.publish(SinkSettled { stream, sink, resent_frames: 0, unconfirmed_frames });
        }
    }

    /// If an earlier run sent frames without a record: says so, and lets the journal forget it, now that each sink's state is
    /// known.
    fn report_unrecorded(&self, journal: &mut OpenJournal) {
        if !journal.recovered.unrecorded {
            return;
        }
        let what = "frames were sent while the disk refused the records of them: frames that no reader's count confirms \
                    are not sent again"
            .to_owned();
        let stream = self.telemetry.stream.clone();
        self.telemetry.publish(JournalNotice { stream, is_wrong: true, what });
        // If this write fails, the next start reports this again.
        let _written = journal.writer.forget_unrecorded();
    }

    /// `start_chain` starts the plugins or lets them continue. `holds` has the times of the rows that stay held.
    #[expect(clippy::too_many_arguments, reason = "the parts of a pipeline")]
    fn pipeline(
        &self,
        journal: OpenJournal,
        mut ledger: Ledger,
        readers: Vec<(SinkSender, Resume)>,
        lasting: LastingStages,
        start_chain: impl FnOnce(&Ledger, &mut Records) -> Chain,
        holds: &[HoldTimes],
        now: Timestamp,
    ) -> Pipeline {
        let OpenJournal { writer, recovered, mut decoder } = journal;
        let LastingStages { receive, pressure, frame_load, poison } = lasting;
        let (telemetry, health) = (self.telemetry.clone(), self.health.clone());
        let mut records =
            Records::new(writer, self.journal_policy, &recovered, telemetry.clone(), health, now);
        let planned = self.sinks.iter().zip(&self.sink_counters);
        let sinks = planned.zip(readers).map(|((sink, counters), (sender, resume))| {
            let (options, memory) = (sink.outbox_options(&self.config), self.budget.portion());
            Sink::new(sink.name.clone(), options, memory, sender, resume, &records, counters.clone())
        });
        let router = Router::new(self.routing.clone(), telemetry);
        let delivery = Delivery::new(router, sinks.collect(), self.spill_max);
        let mut held_rows = self.recover_held_rows(&records, &mut decoder, &ledger, &recovered, now.instant);
        ledger.restore_held(&recovered.live, &held_rows, &mut records);
        let chain = start_chain(&ledger, &mut records);
        held_rows.restore(holds, now.instant, |plugin| chain.knows_holds(plugin));
        let markers = ReleaseMarkers::new(recovered.last_frame);
        let frame_log = FrameLog::new(records, &recovered);
        let stages = Stages { frame_log, decoder, ledger, chain, held_rows, markers, frame_load };
        let live_requests = self.budget.portion();
        Pipeline { receive, stages, delivery, pressure, poison, live_requests }
    }

    /// Reads the rows that an earlier run held and did not release.
    fn recover_held_rows(
        &self,
        records: &Records,
        decoder: &mut FrameDecoder,
        ledger: &Ledger,
        recovered: &RecoveredStream,
        now: Instant,
    ) -> HeldRows {
        let mut held_rows = HeldRows::new(self.held_row_joins());
        let Some(after) = records.held_after() else { return held_rows };
        let report_lost = |why: String| {
            self.telemetry.publish(HoldLost { stream: self.telemetry.stream.clone(), why });
        };
        let mut backlog = records.backlog_from(FrameNo(after.0 + 1));
        while backlog.position() <= recovered.last_frame {
            match backlog.next() {
                Ok(Some(BacklogItem::Frame(frame))) => {
                    let live = |number| ledger.numbered(number);
                    if let Err(why) = held_rows.recover(&frame, decoder, live, now) {
                        report_lost(why);
                    }
                }
                Ok(Some(BacklogItem::Skipped(..))) => {}
                Ok(None) => break,
                Err(error) => {
                    report_lost(error.to_string());
                    if !error.is_missing() {
                        break;
                    }
                }
            }
        }
        held_rows
    }
}

/// Waits until the count of every reader is final.
fn wait_for_counts(mut unconfirmed: Vec<Option<UnconfirmedFrames>>, clock: &dyn Clock) -> Vec<ReaderCount> {
    let mut counts: Vec<Option<ReaderCount>> = unconfirmed.iter().map(|_| None).collect();
    loop {
        let now = clock.now().instant;
        for (frames, count) in unconfirmed.iter_mut().zip(&mut counts).filter(|(_, count)| count.is_none()) {
            *count = frames.as_mut().map_or(Some(ReaderCount::Unknown), |frames| frames.count(now));
        }
        if counts.iter().all(Option::is_some) {
            return counts.into_iter().flatten().collect();
        }
        clock.sleep(COUNT_EVERY);
    }
}
