//! Builds the pipeline: at the start, and after a panic from the journal and the parts that outlived the panic.
//!
//! Owns the plan: the configuration of a stream, which stays while pipelines come and go.

mod planned;
mod rescue;

pub(crate) use planned::PlannedSink;
pub(crate) use rescue::{Rescued, rescue};

use rescue::LastingStages;

use crate::clock::Clock;
use crate::markers::ReleaseMarkers;
use crate::pipeline::Pipeline;
use crate::poison::PoisonDetector;
use crate::pressure::Pressure;
use crate::receive::Receive;
use crate::report::Report;
use crate::setup::{Reopen, Setup};
use afterbay_batch::{FrameDecoder, RoutingTable, Timestamp};
use afterbay_chain::{Chain, ChainCalls, ChainTelemetry};
use afterbay_config as config;
use afterbay_delivery::{
    Budget, Delivery, ReaderCount, Resume, Router, Sink, SinkSender, StartError, Tap, UnconfirmedFrames,
    push_options,
};
use afterbay_events::event::{HoldLost, JournalNotice, SinkRemoved, SinkResuming, SinkSettled};
use afterbay_events::{Health, StreamTelemetry};
use afterbay_fdstore::{FdStore, Inherited};
use afterbay_hold::HeldRows;
use afterbay_journal::{BacklogItem, FrameNo, JournalWriter, RecoveredStream, SinkProgress};
use afterbay_ledger::{Ledger, RestartGap, UpstreamAborts};
use afterbay_outbox::Joins;
use afterbay_persist::{JournalPolicy, Persister};
use afterbay_sockets::{CreditOptions, Lasting, Pull, PullOptions, Push, PushOptions, TokenRange};
use afterbay_wire::Layouts;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The poll's token of the waker. The sockets' tokens follow.
pub(crate) const WAKER: mio::Token = mio::Token(0);
/// Time between two looks at the readers' counts at the start.
const COUNT_EVERY: Duration = Duration::from_millis(10);

/// The configuration of a stream, from which its pipelines are built.
pub(crate) struct Plan {
    pub(crate) config: config::Stream,
    pub(crate) sinks: Vec<PlannedSink>,
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
    let Setup { config, listen, sinks, taps, layouts, journal, plugins, events, metrics, health, .. } = setup;
    let stream = config.name.to_string();
    let counters = metrics.stream(&stream);
    let telemetry = StreamTelemetry { stream: stream.as_str().into(), events, counters };
    let sinks: Vec<PlannedSink> = sinks.into_iter().map(PlannedSink::new).collect();
    let plan = Plan {
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
    let mut journal = plan.open(journal);
    let resumes = plan.resume(&mut journal);
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
    let (store, mut inherited) = (FdStore::new(), Inherited::default());
    let lasting = Lasting { store: &store, stream: &stream, inherited: &mut inherited };
    let pull = Pull::bind(registry, pull_tokens, &listen, pull_options, Some(lasting))
        .map_err(|error| StartError::Bind { stream: stream.clone(), error })?;
    let mut readers = Vec::new();
    let first_token = pull_tokens.first + pull_tokens.count;
    for (token, (sink, resume)) in (first_token..).zip(plan.sinks.iter().zip(resumes)) {
        let credit = sink.config.credit.clone().map(CreditOptions::new);
        let options = PushOptions { taken: resume.last_sent(), credit, ..push_options() };
        let tokens = TokenRange { first: token, count: 1 };
        let push = Push::connect(registry, tokens, &sink.connect, options, now.instant)
            .map_err(|error| StartError::Connect { stream: stream.clone(), error })?;
        readers.push((SinkSender::new(push, sink.joins_under_pressure(config), now.instant), resume));
    }
    let counters = plan.sinks.iter().map(|sink| {
        let name = sink.config.name.as_str();
        (name, metrics.sink(&stream, name))
    });
    let report = Report::new(telemetry.clone(), health, counters, now.instant);
    let gap = RestartGap::new(journal.recovered.last_frame, &journal.recovered.live);
    let ledger = plan.ledger(&mut journal, UpstreamAborts::new(setup.upstream), gap, now.instant);
    let outputs =
        ChainTelemetry { stream: telemetry.clone(), metrics: metrics.clone(), health: plan.health.clone() };
    let woken = waker.clone();
    // The waker fails only if the stream has ended.
    let calls = ChainCalls::new(setup.calls, Arc::new(move || drop(woken.wake())));
    let chain = Chain::start(plugins, setup.attributes, calls, outputs, &ledger, now);
    let taps = taps.into_iter().map(|tap| Tap::start(tap, telemetry.clone(), &metrics, now.instant));
    let lasting = LastingStages {
        receive: Receive::new(pull),
        chain,
        pressure: Pressure::new(setup.scheduler, now.instant),
        taps: taps.collect::<Result<_, _>>()?,
        poison: PoisonDetector::default(),
    };
    let pipeline = plan.pipeline(journal, ledger, readers, lasting, now);
    Ok((plan, pipeline, report))
}

impl Plan {
    /// Builds the pipeline after a panic as a restart would, but on the same connections. If the journal cannot be opened,
    /// `rescued` comes back unchanged, with the reason.
    pub(crate) fn rebuild(
        &self,
        rescued: Rescued,
        now: Timestamp,
    ) -> Result<Pipeline, (Box<Rescued>, String)> {
        let journal = match (self.reopen)() {
            Ok(journal) => journal,
            Err(error) => return Err((Box::new(rescued), error.to_string())),
        };
        let Rescued { mut lasting, aborts, senders } = rescued;
        let mut journal = self.open(journal);
        let mut readers = Vec::new();
        for (sink, sender) in self.sinks.iter().zip(senders) {
            let OpenJournal { writer, recovered, .. } = &mut journal;
            let resume = Resume::after_panic(&sink.name, recovered, &sender, writer);
            self.report_unconfirmed(sink, &resume);
            readers.push((sender, resume));
        }
        self.settle_unrecorded(&mut journal);
        // The journal may lack the frame that was last received. (It may also lack a release marker, which is made anew.)
        lasting.receive.take_back(journal.recovered.last_frame);
        let ledger = self.ledger(&mut journal, aborts, RestartGap::default(), now.instant);
        lasting.chain.restart_after_panic(&ledger, now);
        Ok(self.pipeline(journal, ledger, readers, lasting, now))
    }

    fn open(&self, (mut writer, recovered): (JournalWriter, RecoveredStream)) -> OpenJournal {
        let waker = self.waker.clone();
        // The waker fails only if the stream has ended.
        writer.on_change(Box::new(move || drop(waker.wake())));
        OpenJournal { writer, recovered, decoder: FrameDecoder::new(self.layouts.clone()) }
    }

    /// The ledger with the live requests of the last run.
    fn ledger(
        &self,
        journal: &mut OpenJournal,
        aborts: UpstreamAborts,
        gap: RestartGap,
        now: Instant,
    ) -> Ledger {
        let OpenJournal { writer, recovered, decoder } = journal;
        let (routing, telemetry) = (self.routing.clone(), self.telemetry.clone());
        let mut ledger = Ledger::new(&recovered.live, aborts, gap, routing, telemetry, now);
        ledger.restore_counts(&recovered.live, writer, decoder);
        // With one sink and no plugin, nothing needs the requests' first rows.
        if self.sinks.len() > 1 || !self.config.plugins.is_empty() {
            ledger.restore_first_rows(&recovered.live, writer, decoder);
        }
        ledger
    }

    /// The rule for joining held rows: every reader of the stream must allow the join.
    pub(crate) fn held_row_joins(&self) -> Joins {
        let joins = || self.sinks.iter().map(|sink| &sink.joins);
        let nowhere = joins().find(|joins| matches!(joins, Joins::Nowhere));
        let somewhere = || joins().find(|joins| matches!(joins, Joins::WhereTextIsWhole(_)));
        nowhere.or_else(somewhere).cloned().unwrap_or_default()
    }

    /// Finds out which frames of an earlier run each reader has. Waits while readers may still finish frames.
    fn resume(&self, journal: &mut OpenJournal) -> Vec<Resume> {
        let OpenJournal { writer, recovered, decoder } = journal;
        let is_removed = |known: &&SinkProgress| {
            known.is_reader() && !self.sinks.iter().any(|sink| sink.name == known.name())
        };
        for removed in recovered.sinks.iter().filter(is_removed) {
            self.report_removed(removed, recovered.last_frame);
            writer.forget(removed.name());
        }
        let known = |sink: &PlannedSink| recovered.sinks.iter().find(|known| known.name() == sink.name);
        let unconfirmed = self.sinks.iter().map(|sink| {
            let page = sink.config.credit.as_deref();
            let frames = UnconfirmedFrames::of(known(sink)?, page, recovered, writer, decoder)?;
            if frames.sent() > 0 {
                let (stream, sink) = (self.telemetry.stream.clone(), sink.name.as_str().into());
                self.telemetry.publish(SinkResuming { stream, sink, frames: frames.sent() });
            }
            Some(frames)
        });
        let counts = wait_for_counts(unconfirmed.collect(), &*self.clock);
        let resumes = self.sinks.iter().zip(counts).map(|(sink, count)| {
            let resume = match known(sink) {
                Some(known) => Resume::after_restart(known, recovered, count, writer, decoder),
                None => {
                    writer.taken_sent(&sink.name, 0, recovered.last_frame, None);
                    Resume::for_new_reader(&sink.name, recovered.last_frame)
                }
            };
            self.report_unconfirmed(sink, &resume);
            resume
        });
        let resumes = resumes.collect();
        self.settle_unrecorded(journal);
        resumes
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
        let unconfirmed_frames = resume.unconfirmed();
        if unconfirmed_frames > 0 {
            let (stream, sink) = (self.telemetry.stream.clone(), sink.name.as_str().into());
            self.telemetry.publish(SinkSettled { stream, sink, resent_frames: 0, unconfirmed_frames });
        }
    }

    /// If an earlier run sent frames without a record: says so, and lets the journal forget it, now that each sink's state is
    /// settled.
    fn settle_unrecorded(&self, journal: &mut OpenJournal) {
        if !journal.recovered.unrecorded {
            return;
        }
        let what = "frames were sent while the disk refused the records of them: frames that no reader's count confirms \
                    are not sent again"
            .to_owned();
        let stream = self.telemetry.stream.clone();
        self.telemetry.publish(JournalNotice { stream, is_wrong: true, what });
        // If this write fails, the next start settles the sinks again.
        let _written = journal.writer.settled();
    }

    fn pipeline(
        &self,
        journal: OpenJournal,
        mut ledger: Ledger,
        readers: Vec<(SinkSender, Resume)>,
        lasting: LastingStages,
        now: Timestamp,
    ) -> Pipeline {
        let OpenJournal { writer, recovered, mut decoder } = journal;
        let LastingStages { receive, mut chain, taps, pressure, poison } = lasting;
        let (telemetry, health) = (self.telemetry.clone(), self.health.clone());
        let mut persister =
            Persister::new(writer, self.journal_policy, &recovered, telemetry.clone(), health, now);
        let sinks = self.sinks.iter().zip(readers).map(|(sink, (sender, resume))| {
            let (options, memory) = (sink.outbox_options(&self.config), self.budget.portion());
            Sink::new(sink.name.clone(), options, memory, sender, resume, &persister)
        });
        let router = Router::new(self.routing.clone(), telemetry);
        let delivery = Delivery::new(router, sinks.collect(), taps, self.spill_max);
        let held_rows = self.recover_held_rows(&persister, &mut decoder, &ledger, &recovered, now.instant);
        let ended = ledger.restore_held(&recovered.live, &held_rows, &mut persister);
        chain.close_requests(&ended, &ledger, now);
        let markers = ReleaseMarkers::new(recovered.last_frame);
        Pipeline {
            receive,
            persister,
            decoder,
            ledger,
            chain,
            held_rows,
            markers,
            delivery,
            pressure,
            poison,
        }
    }

    /// Reads the rows that an earlier run held and did not release. They are released unchanged in the first round.
    fn recover_held_rows(
        &self,
        persister: &Persister,
        decoder: &mut FrameDecoder,
        ledger: &Ledger,
        recovered: &RecoveredStream,
        now: Instant,
    ) -> HeldRows {
        let mut held_rows = HeldRows::new(self.held_row_joins());
        let Some(after) = persister.held_after() else { return held_rows };
        let slots = ledger.slots();
        let report_lost = |why: String| {
            self.telemetry.publish(HoldLost { stream: self.telemetry.stream.clone(), why });
        };
        let mut backlog = persister.backlog_from(FrameNo(after.0 + 1));
        while backlog.position() <= recovered.last_frame {
            match backlog.next() {
                Ok(Some(BacklogItem::Frame(frame))) => {
                    let live = |number| slots.get(&number).copied();
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
