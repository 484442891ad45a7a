//! Puts the stages in their order: at the start, and again after a panic, on the same connections.
//!
//! Owns what stays the same over a stream's life. What a panic may have left half done, which is everything but the sockets,
//! is made anew out of the journal.

mod planned;

pub(crate) use planned::PlannedSink;

use crate::pipeline::{Pipeline, PoisonFrame};
use crate::pressure::Pressure;
use crate::receive::Receive;
use crate::report::Report;
use crate::setup::{Reopen, Setup};
use afterbay_batch::{FrameDecoder, Received, RoutingTable, Timestamp};
use afterbay_chain::{Chain, ChainTelemetry};
use afterbay_config as config;
use afterbay_delivery::{
    Budget, Out, Resume, Router, Sink, SinkParts, SinkSender, StartError, Tap, counts, push_options,
};
use afterbay_events::Health;
use afterbay_events::StreamTelemetry;
use afterbay_events::event::{HoldLost, JournalNotice, SinkRemoved, SinkResuming, SinkSettled};
use afterbay_hold::HeldRows;
use afterbay_journal::{BacklogItem, FrameNo, JournalWriter, RecoveredStream, is_release_marker};
use afterbay_ledger::{Ledger, RestartGap, UpstreamAborts};
use afterbay_outbox::{Joins, Options as OutboxOptions, Outbox, When};
use afterbay_persist::Persister;
use afterbay_sockets::{CreditOptions, Pull, PullOptions, Push, PushOptions, TokenRange};
use afterbay_wire::Layouts;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// The token of the waker; the sockets' follow.
pub(crate) const WAKER: mio::Token = mio::Token(0);

/// What a stream's path is made of, and made anew.
pub(crate) struct Plan {
    pub(crate) config: config::Stream,
    pub(crate) sinks: Vec<PlannedSink>,
    routing: Arc<RoutingTable>,
    pub(crate) layouts: Layouts,
    on_error: config::OnError,
    durable_first: bool,
    spill_max: u64,
    budget: Budget,
    reopen: Reopen,
    pub(crate) waker: Arc<mio::Waker>,
    pub(crate) telemetry: StreamTelemetry,
    pub(crate) health: Health,
}

/// What a panic leaves: the connections, what had come over them and was in no journal yet, and the plugins.
pub(crate) struct Rescued {
    pub(crate) receive: Receive,
    pub(crate) sends: Vec<SinkSender>,
    pub(crate) chain: Chain,
    pub(crate) pressure: Pressure,
    pub(crate) route: Router,
    pub(crate) taps: Vec<Tap>,
    pub(crate) aborts: UpstreamAborts,
    /// As in [`Pipeline`].
    pub(crate) arrived: Option<(Received, FrameNo)>,
    /// As in [`Pipeline`]; with what the journal had refused.
    pub(crate) returned: VecDeque<Received>,
    pub(crate) poison: Option<PoisonFrame>,
}

/// Binds, connects, and puts the stages in their order.
pub(crate) fn start(
    setup: Setup,
    registry: &mio::Registry,
    waker: &Arc<mio::Waker>,
) -> Result<(Plan, Pipeline, Report), StartError> {
    let time = Timestamp::now();
    let now = time.instant;
    let Setup { config, listen, sinks, taps, layouts, journal, plugins, events, metrics, health, .. } = setup;
    let stream = config.name.to_string();
    let telemetry =
        StreamTelemetry { stream: stream.as_str().into(), events, counters: metrics.stream(&stream) };
    let sinks: Vec<PlannedSink> = sinks.into_iter().map(PlannedSink::new).collect();
    let plan = Plan {
        routing: Arc::new(RoutingTable::new(sinks.iter().map(PlannedSink::target).collect())),
        sinks,
        layouts,
        on_error: setup.on_error,
        durable_first: setup.durable_first,
        spill_max: setup.spill_max,
        budget: setup.budget,
        reopen: setup.reopen,
        waker: waker.clone(),
        telemetry: telemetry.clone(),
        health: health.clone(),
        config,
    };
    let mut base = plan.base(journal);
    let resumed = plan.resume(&mut base);
    let route = Router::new(plan.routing.clone(), telemetry.clone());

    let config = &plan.config;
    let pull_tokens = TokenRange { first: WAKER.0 + 1, count: 1 + config.max_peers };
    let pull_options = PullOptions {
        max_message_bytes: usize::try_from(config.max_message_bytes).unwrap_or(usize::MAX),
        listen_mode: config.listen_mode,
        max_peers: config.max_peers,
        ..PullOptions::default()
    };
    let pull = Pull::bind(registry, pull_tokens, &listen, pull_options)
        .map_err(|error| StartError::Bind { stream: stream.clone(), error })?;
    let counters = plan.sinks.iter().map(|sink| {
        let name = sink.config.name.as_str();
        (name, metrics.sink(&stream, name))
    });
    let report = Report::new(telemetry.clone(), health, counters, now);
    let mut ends = Vec::new();
    let first_token = pull_tokens.first + pull_tokens.count;
    for (token, (sink, resume)) in (first_token..).zip(plan.sinks.iter().zip(resumed)) {
        let credit = sink.config.credit.clone().map(CreditOptions::new);
        let options = PushOptions { taken: resume.last_sent(), credit, ..push_options() };
        let tokens = TokenRange { first: token, count: 1 };
        let push = Push::connect(registry, tokens, &sink.connect, options, now)
            .map_err(|error| StartError::Connect { stream: stream.clone(), error })?;
        ends.push((SinkSender::new(push, sink.joins_under_pressure(config), now), resume));
    }
    let restart = RestartGap::new(base.recovered.last_frame, &base.recovered.live);
    let ledger = plan.ledger(&mut base, UpstreamAborts::new(setup.upstream), restart, now);
    let health = plan.health.clone();
    let outputs = ChainTelemetry { stream: telemetry.clone(), metrics: metrics.clone(), health };
    let chain = Chain::start(plugins, setup.attributes, outputs, &ledger, time);
    let pressure = Pressure::new(setup.scheduler, now);
    let mut path = plan.path(base, Receive::new(pull), ledger, (chain, pressure, route), ends);
    for tap in taps {
        let counters = metrics.tap(&stream, tap.config.name.as_str());
        path.taps.push(Tap::start(tap, telemetry.clone(), counters)?);
    }
    Ok((plan, path, report))
}

/// What the path stands on: the journal, and the decoder to read it with.
struct Base {
    writer: JournalWriter,
    recovered: RecoveredStream,
    decode: FrameDecoder,
}

impl Plan {
    /// After a panic: the path as it would be after a restart, but on the same connections. `Err`: the journal could not
    /// be opened again, and everything is as it was.
    pub(crate) fn rebuild(&self, rescued: Rescued) -> Result<Pipeline, (Box<Rescued>, String)> {
        let journal = match (self.reopen)() {
            Ok(journal) => journal,
            Err(error) => return Err((Box::new(rescued), error.to_string())),
        };
        let Rescued {
            receive,
            sends,
            aborts,
            mut chain,
            pressure,
            route,
            taps,
            arrived,
            mut returned,
            poison,
        } = rescued;
        let mut base = self.base(journal);
        let last_frame = base.recovered.last_frame;
        let ends = self.sinks.iter().zip(sends).map(|(sink, send)| {
            let Base { writer, recovered, .. } = &mut base;
            let resume = Resume::living(&sink.name, recovered, &send, writer);
            self.tell_unconfirmed(sink, &resume);
            (send, resume)
        });
        let ends = ends.collect();
        self.tell_unrecorded(&mut base);
        let now = Timestamp::now();
        let ledger = self.ledger(&mut base, aborts, RestartGap::default(), now.instant);
        chain.restart_after_panic(&ledger, now);
        let mut path = self.path(base, receive, ledger, (chain, pressure, route), ends);
        (path.poison, path.taps) = (poison, taps);
        // It may be in the journal already.
        let arrived = arrived.filter(|(_, before)| *before == last_frame).map(|(received, _)| received);
        arrived.into_iter().for_each(|received| returned.push_front(received));
        // What is to go on is marked anew.
        returned.retain(|received| !is_release_marker(&received.bytes));
        path.returned = returned;
        Ok(path)
    }

    fn base(&self, journal: (JournalWriter, RecoveredStream)) -> Base {
        let (mut writer, recovered) = journal;
        writer.on_change(Box::new({
            let waker = self.waker.clone();
            // It fails only where the stream has ended.
            move || drop(waker.wake())
        }));
        Base { writer, recovered, decode: FrameDecoder::new(self.layouts.clone()) }
    }

    /// The requests that the last run has left.
    fn ledger(&self, base: &mut Base, aborts: UpstreamAborts, restart: RestartGap, now: Instant) -> Ledger {
        let Base { writer, recovered, decode } = base;
        let (routing, telemetry) = (self.routing.clone(), self.telemetry.clone());
        let mut ledger = Ledger::new(&recovered.live, aborts, restart, routing, telemetry, now);
        ledger.restore_counts(&recovered.live, writer, decode);
        // With one sink and no plugin nobody asks.
        if self.sinks.len() > 1 || !self.config.plugins.is_empty() {
            ledger.restore_first_rows(&recovered.live, writer, decode);
        }
        ledger
    }

    /// Where rows may be joined that plugins hold: as every reader of the stream has it.
    pub(crate) fn held_rows(&self) -> Joins {
        let joins = || self.sinks.iter().map(|sink| &sink.joins);
        let nowhere = joins().find(|joins| matches!(joins, Joins::Nowhere));
        let somewhere = || joins().find(|joins| matches!(joins, Joins::WhereTextIsWhole(_)));
        nowhere.or_else(somewhere).cloned().unwrap_or_default()
    }

    /// What each sink has of an earlier run's frames.
    fn resume(&self, base: &mut Base) -> Vec<Resume> {
        let Base { writer, recovered, decode } = base;
        let is_removed = |known: &&afterbay_journal::SinkProgress| {
            known.is_reader() && !self.sinks.iter().any(|sink| sink.name == known.name())
        };
        for removed in recovered.sinks.iter().filter(is_removed) {
            self.tell_removed(removed, recovered.last_frame);
            writer.forget(removed.name());
        }
        let known = |sink: &PlannedSink| recovered.sinks.iter().find(|known| known.name() == sink.name);
        let out = self.sinks.iter().map(|sink| {
            let out = Out::of(known(sink)?, sink.config.credit.as_deref(), recovered, writer, decode)?;
            if out.sent() > 0 {
                let (stream, sink) = (self.telemetry.stream.clone(), sink.name.as_str().into());
                self.telemetry.publish(SinkResuming { stream, sink, frames: out.sent() });
            }
            Some(out)
        });
        let counts = counts(&out.collect::<Vec<_>>());
        let resumed = self.sinks.iter().zip(counts).map(|(sink, count)| {
            let resume = match known(sink) {
                Some(known) => Resume::new(known, recovered, count, writer, decode),
                None => {
                    writer.taken_sent(&sink.name, 0, recovered.last_frame, None);
                    Resume::of_another(&sink.name, recovered.last_frame)
                }
            };
            self.tell_unconfirmed(sink, &resume);
            resume
        });
        let resumed = resumed.collect();
        self.tell_unrecorded(base);
        resumed
    }

    /// Publishes which frames a sink may lack that the configuration no longer has. A sink with another reader is still configured.
    fn tell_removed(&self, removed: &afterbay_journal::SinkProgress, last: FrameNo) {
        let name = removed.name().split('@').next().unwrap_or_default();
        let frames = removed.open_frames(last);
        if frames > 0 && self.sinks.iter().all(|sink| sink.config.name.as_str() != name) {
            let (stream, sink) = (self.telemetry.stream.clone(), name.into());
            self.telemetry.publish(SinkRemoved { stream, sink, frames });
        }
    }

    /// Says of how many frames nobody can say whether the reader has them.
    fn tell_unconfirmed(&self, sink: &PlannedSink, resume: &Resume) {
        if resume.unconfirmed() > 0 {
            let (stream, sink) = (self.telemetry.stream.clone(), sink.name.as_str().into());
            let unconfirmed_frames = resume.unconfirmed();
            self.telemetry.publish(SinkSettled { stream, sink, resent_frames: 0, unconfirmed_frames });
        }
    }

    /// Says why that is, where frames left before this start of which no record says so; what they mean to each sink is settled.
    fn tell_unrecorded(&self, base: &mut Base) {
        if !base.recovered.unrecorded {
            return;
        }
        let stream = self.telemetry.stream.clone();
        let what = "frames were forwarded while the disk took no record of it: those that no reader's count confirms are \
                    not sent again"
            .to_owned();
        self.telemetry.publish(JournalNotice { stream, is_wrong: true, what });
        // Where it cannot be written, the next start knows no more than this one.
        let _written = base.writer.settled();
    }

    fn path(
        &self,
        base: Base,
        receive: Receive,
        mut ledger: Ledger,
        (chain, pressure, route): (Chain, Pressure, Router),
        ends: Vec<(SinkSender, Resume)>,
    ) -> Pipeline {
        let Base { writer, recovered, mut decode } = base;
        let (telemetry, health) = (self.telemetry.clone(), self.health.clone());
        let persister =
            Persister::new(writer, self.on_error, self.durable_first, &recovered, telemetry, health);
        let sinks = self.sinks.iter().zip(ends).enumerate().map(|(place, (sink, (send, resume)))| {
            let options = outbox_options(&self.config, sink);
            let outbox = Outbox::new(options, resume.last_sent(), resume.done().0);
            let (name, memory) = (sink.name.clone(), self.budget.portion());
            Sink::new(SinkParts { name, place, outbox, memory, send, resume }, &persister)
        });
        let sinks: Vec<Sink> = sinks.collect();
        let held_rows = self.held(&persister, &mut decode, &ledger, recovered.last_frame);
        ledger.restore_held(&held_rows);
        Pipeline {
            held_rows,
            is_marker_pending: false,
            began_after: recovered.last_frame,
            receive,
            decode,
            ledger,
            chain,
            pressure,
            route,
            sinks,
            taps: Vec::new(),
            persister,
            spill_max: self.spill_max,
            shares: Vec::new(),
            keeps: None,
            arrived: None,
            returned: VecDeque::new(),
            settling: None,
            poison: None,
        }
    }

    /// What was held and not released: it is to go on as it came, at the first turn.
    fn held(
        &self,
        persister: &Persister,
        decode: &mut FrameDecoder,
        ledger: &Ledger,
        last: FrameNo,
    ) -> HeldRows {
        let mut held_rows = HeldRows::new(self.held_rows());
        let Some(after) = persister.held_after() else { return held_rows };
        let (slots, now) = (ledger.slots(), Instant::now());
        let lost = |why: String| {
            self.telemetry.publish(HoldLost { stream: self.telemetry.stream.clone(), why });
        };
        let mut backlog = persister.backlog_from(FrameNo(after.0 + 1));
        while backlog.position() <= last {
            match backlog.next() {
                Ok(Some(BacklogItem::Frame(frame))) => {
                    let live = |number| slots.get(&number).copied();
                    if let Err(why) = held_rows.recover(&frame, decode, live, now) {
                        lost(why);
                    }
                }
                Ok(Some(BacklogItem::Skipped(..))) => {}
                Ok(None) => break,
                Err(error) => {
                    lost(error.to_string());
                    if !error.is_missing() {
                        break;
                    }
                }
            }
        }
        held_rows
    }
}

pub(crate) fn outbox_options(config: &config::Stream, sink: &PlannedSink) -> OutboxOptions {
    OutboxOptions {
        when: match config.coalesce.when {
            config::CoalesceWhen::Never => When::Never,
            config::CoalesceWhen::Backpressure => When::Backpressure,
            config::CoalesceWhen::Window => When::Window(config.coalesce.window),
        },
        joins: sink.joins.clone(),
        max_rows: config.coalesce.max_rows,
        max_frames: sink.config.queue.frames,
        max_bytes: sink.config.queue.bytes,
    }
}
