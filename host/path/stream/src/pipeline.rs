//! The path of a batch, on one screen: [`Pipeline::run`], [`Pipeline::carry`] and [`Stages::run`].
//!
//! scheduler ─PUSH▶ receive ▶ persist (journal) ▶ decode ▶ account (ledger) ▶ chain (plugins) ▶ settle (ledger) ▶ route ▶
//! sinks (outbox ▶ socket) ─PUSH▶ readers
//!
//! Each stage consumes the type that the stage before makes, so an ordinary batch skips no stage. Release markers and poison
//! frames are not decoded. The state of a stage is in the stage's crate.

use crate::clock::Clock;
use crate::delivery::{Delivery, Portion};
use crate::poison::PoisonDetector;
use crate::pressure::Pressure;
use crate::receive::Receive;
use crate::stages::Stages;
use afterbay_batch::outbox::FrameToSend;
use afterbay_batch::{Timestamp, failpoint};
use afterbay_chain::{CatchUpResult, JournalSource, REPLAY_TIME_MAX};
use afterbay_journal::Background;
use afterbay_journal::FrameNo;
use std::time::{Duration, Instant};

/// Frames that pass before the readers' sockets get them: several share a system call, and none waits for long.
const FRAMES_PER_ROUND: usize = 16;

/// The stages of one stream.
pub(crate) struct Pipeline {
    pub(crate) receive: Receive,
    pub(crate) stages: Stages,
    pub(crate) delivery: Delivery,
    pub(crate) pressure: Pressure,
    pub(crate) poison: PoisonDetector,
    /// The part of the memory for what waits that the live requests have.
    pub(crate) live_requests: Portion,
}

impl Pipeline {
    /// Carries up to [`FRAMES_PER_ROUND`] received frames to the sinks, and sends what the readers take. `on_written` gets the
    /// frames that the kernel now has whole. Returns whether there may be more to do at once.
    pub(crate) fn run(
        &mut self,
        now: Timestamp,
        clock: &dyn Clock,
        on_written: &mut dyn FnMut(&mut dyn Iterator<Item = FrameToSend>),
    ) -> bool {
        self.persist_release_marker(now);
        self.persist_signals(now);
        for _ in 0..FRAMES_PER_ROUND {
            if self.full().is_some() {
                break;
            }
            let number = FrameNo(self.stages.frame_log.last_frame().0 + 1);
            let Some(received) = self.receive.next(number, clock) else { break };
            self.stages.frame_log.persist(received, now);
            if self.stages.frame_log.unpersisted() == 0 {
                self.receive.forget_last();
            }
            self.carry(1, now);
        }
        // Frames that waited for a sync of the disk.
        self.carry(FRAMES_PER_ROUND, now);
        let Stages { ledger, frame_log, .. } = &self.stages;
        self.live_requests.set(ledger.memory() + frame_log.records.requests_memory());
        let sends_more =
            self.delivery.send(&mut self.stages.frame_log.records, &mut self.stages.decoder, now, on_written);
        let receives_more = self.receive.pull.has_more() && self.full().is_none();
        sends_more || self.stages.frame_log.has_next() || receives_more
    }

    /// Carries persisted frames through the plugins to the sinks' queues.
    fn carry(&mut self, frames_max: usize, now: Timestamp) {
        for _ in 0..frames_max {
            let Some(persisted) = self.stages.frame_log.next(now) else { break };
            // Before any verdict. Plugins change between two frames.
            self.stages.frame_log.records.record_plugins(self.stages.chain.components());
            let poison = self.poison.enter(persisted.frame());
            let has_taken = self.delivery.has_taken(persisted.frame());
            let stages = &mut self.stages;
            let settled = if stages.markers.is_marker(&persisted) {
                stages.release(persisted, now)
            } else if let Some(why) = poison {
                stages.pass_unread(persisted, why)
            } else if has_taken {
                // An earlier run sent the frame and was killed before it recorded the outcome.
                stages.recover(persisted, now)
            } else {
                stages.run(persisted, self.receive.pull.peers() == 1, now)
            };
            self.poison.leave();
            self.delivery.push(settled, &mut self.stages.frame_log.records);
        }
    }

    /// Persists a release marker if held rows are due to be released.
    fn persist_release_marker(&mut self, now: Timestamp) {
        if self.full().is_none() && self.stages.persist_release_marker(now) {
            self.carry(1, now);
        }
    }

    /// Persists the signals that plugins were last called for, if the journal does not have them yet.
    fn persist_signals(&mut self, now: Timestamp) {
        if !self.pressure.has_unrecorded() || self.full().is_some() {
            return;
        }
        if let Some(signals) = self.pressure.take_unrecorded(now) {
            self.stages.frame_log.persist(signals, now);
            self.carry(1, now);
        }
    }

    /// The reason why nothing more is received. During the drain, full sinks are no reason: the journal has room for the
    /// frames that the kernel still has, and a stop would lose these.
    pub(crate) fn full(&self) -> Option<&'static str> {
        let of_sinks = || if self.receive.pull.is_closing() { None } else { self.delivery.full() };
        self.stages.frame_log.full().or_else(of_sinks)
    }

    /// Delivers the answers of services to plugins. Returns whether more answers wait.
    pub(crate) fn deliver_answers(&mut self, now: Timestamp) -> bool {
        failpoint::at("answers");
        self.stages.deliver_answers(now)
    }

    /// Closes the requests that have had no row for this time.
    pub(crate) fn close_abandoned(&mut self, abandon_after: Duration, now: Timestamp) {
        self.stages.close_abandoned(abandon_after, now);
    }

    /// Handles an event of the poll.
    pub(crate) fn ready(&mut self, event: &mio::event::Event, now: Instant) {
        if self.receive.pull.owns(event.token()) {
            return self.receive.pull.ready(event, now);
        }
        self.delivery.ready(event, now);
    }

    /// Does what is due: connections, retries of the disk, starts of plugins, held rows, the pressure snapshot.
    pub(crate) fn tick(&mut self, now: Timestamp) {
        self.receive.pull.tick(now.instant);
        self.delivery.tick(now.instant);
        self.stages.frame_log.tick(now);
        self.stages.tick_chain(now);
        if self.stages.chain.wants_signals() && self.pressure.deadline() <= now.instant {
            let Stages { frame_log, ledger, chain, .. } = &mut self.stages;
            let sinks = &self.delivery.sinks;
            let (snapshot, has_changed) = self.pressure.snapshot(frame_log, sinks, ledger, now.instant);
            chain.set_signals(&snapshot, has_changed, ledger, now);
        }
    }

    /// The time at which [`Pipeline::tick`] or [`Pipeline::run`] is due.
    pub(crate) fn deadline(&self, now: Instant) -> Option<Instant> {
        let pressure = self.stages.chain.wants_signals().then(|| self.pressure.deadline());
        // A pending marker releases the rows that are due.
        let held_rows = self.stages.held_rows.deadline(now).filter(|_| !self.stages.markers.is_pending());
        let deadlines = [
            self.receive.pull.deadline(),
            self.stages.frame_log.deadline(),
            self.delivery.deadline(),
            self.stages.chain.deadline(),
            pressure,
            held_rows,
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Starts the catch-up rounds that new plugin instances wait for, each on a thread of its own, or runs them. `done` gets
    /// the results.
    pub(crate) fn start_catch_ups(
        &mut self,
        background: Background,
        done: impl Fn(CatchUpResult) + Clone + Send + 'static,
    ) {
        for round in self.stages.chain.take_catch_ups() {
            let records = &mut self.stages.frame_log.records;
            let backlog = if round.reads_journal() { records.backlog_of_live_requests() } else { None };
            let (through, layouts) = (self.delivery.last_pushed(), self.stages.decoder.layouts().clone());
            let journal =
                backlog.map(|backlog| JournalSource { time_max: REPLAY_TIME_MAX, backlog, through, layouts });
            if background == Background::Caller {
                done(round.run(journal));
                continue;
            }
            let done = done.clone();
            // Without a thread, the new instance never takes over, as if its component could not be read.
            let _started =
                std::thread::Builder::new().name("catch-up".into()).spawn(move || done(round.run(journal)));
        }
    }

    /// Number and bytes of the received frames that a reader has not taken. Without credit, the kernel's word counts for the
    /// reader.
    pub(crate) fn backlog_size(&self) -> (usize, u64) {
        let (log, delivery) = (self.stages.frame_log.backlog_size(), self.delivery.backlog_size());
        (log.0 + delivery.0, log.1 + delivery.1)
    }

    /// Whether the readers have taken everything that was received.
    pub(crate) fn is_drained(&self) -> bool {
        self.stages.held_rows.is_empty()
            && self.stages.frame_log.backlog_size().0 == 0
            && self.delivery.is_drained()
    }
}
